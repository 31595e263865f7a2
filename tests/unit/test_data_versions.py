"""`trainer data versions`, `tag`, `stats` and `diff`."""

import re
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from tests.unit.data_command import DataCommand, write_images
from trainer.datasets import versions
from trainer.errors import ConfigurationError

IMAGES = np.random.default_rng(0).integers(0, 256, (60, 4, 3), np.uint8)


@pytest.fixture
def imported(data: DataCommand, uri: str, tmp_path: Path) -> str:
    """Version 1 has 20 images, version 2 twenty more, and version 3 replaces 10 of them."""
    for name, rows in (("one", range(20)), ("two", range(20, 40)), ("three", [*range(10, 40), *range(50, 60)])):
        indices = list(rows)
        write_images(tmp_path / name, IMAGES[indices], ["even" if index % 2 == 0 else "odd" for index in indices])
    data.json("import", tmp_path / "one", uri, "--tag=first", "--split=train")
    data.json("import", tmp_path / "two", uri, "--append", "--split=test")
    data.json("import", tmp_path / "three", uri, "--overwrite", "--note=ten of them are new", "--split=train")
    return uri


def test_versions_are_listed_with_their_tags_rows_and_imports(data: DataCommand, imported: str, tmp_path: Path) -> None:
    found = data.json("versions", imported)
    assert [(each["version"], each["tags"], each["rows"], each["import"]["mode"]) for each in found] == [
        (1, ["first"], 20, "create"),
        (2, [], 40, "append"),
        (3, [], 40, "overwrite"),
    ]
    lines = data.text("versions", imported).splitlines()
    assert lines[0].split() == ["version", "time", "tags", "rows", "made", "by"]
    assert lines[1].endswith(f"create: folders of images of {tmp_path}/one")
    assert lines[3].endswith("ten of them are new")


def test_a_version_of_another_program_is_listed_and_measured(data: DataCommand, imported: str) -> None:
    lance.dataset(imported).delete("y = 1")
    lance.dataset(imported).optimize.compact_files()
    *_, last = data.json("versions", imported)
    assert last["rows"] == 20
    assert last["import"] is None
    assert last["note"].endswith("by another program")
    found = data.json("stats", imported)
    assert found["splits"] == {"train": {"even": 20}}
    assert found["images"] == {"4x3x1": 20}
    assert found["values"]["x"]["count"] == 20 * 12


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_stored_statistics_are_those_of_the_rows(data: DataCommand, imported: str, version: int) -> None:
    stored = data.json("stats", imported, f"--data_version={version}")
    measured = versions._measured(lance.dataset(imported, version=version)).to_json()
    for name in ("rows", "splits", "images"):
        assert stored[name] == measured[name]
    for key, value in measured["values"]["x"].items():
        assert stored["values"]["x"][key] == pytest.approx(value)


def test_statistics_of_an_earlier_version_come_by_number_and_tag(data: DataCommand, imported: str) -> None:
    assert data.json("stats", imported, "--data_version=1") == data.json("stats", imported, "--data_version=first")
    text = data.text("stats", imported, "--data_version=2")
    assert "version 2: 40 rows" in text
    assert ["even", "10", "10"] in [line.split() for line in text.splitlines()]


def test_the_difference_of_versions(data: DataCommand, imported: str) -> None:
    found = data.json("diff", imported, "first", "2")
    assert (found["before"], found["after"], found["rows_unchanged"]) == (1, 2, 20)
    assert (found["added"], found["removed"]) == ({"test": {"even": 10, "odd": 10}}, {})
    # 10 to 19 are unchanged, 20 to 39 have another split, 0 to 9 are removed, 50 to 59 are new.
    found = data.json("diff", imported, "2", "3")
    assert found["added"] == {"train": {"even": 15, "odd": 15}}
    assert found["removed"] == {"train": {"even": 5, "odd": 5}, "test": {"even": 10, "odd": 10}}
    assert (found["rows_added"], found["rows_removed"], found["rows_unchanged"]) == (30, 30, 10)
    back = data.json("diff", imported, "3", "2")
    assert (back["added"], back["removed"]) == (found["removed"], found["added"])
    assert data.json("diff", imported, "2", "2")["rows_unchanged"] == 40
    lines = [line.split() for line in data.text("diff", imported, "2", "3").splitlines()]
    assert ["train", "even", "15", "5"] in lines


def test_rows_that_are_there_twice_count_twice(data: DataCommand, uri: str) -> None:
    def write(values: list[int]) -> None:
        columns: dict[str, Any] = {"a": values, "label": [0] * len(values)}
        lance.write_dataset(pa.table(columns), uri, mode="overwrite")

    write([1, 1, 1, 2])
    write([1, 3])
    found = data.json("diff", uri, "1", "2")
    assert (found["removed"], found["added"]) == ({"train": {"0": 3}}, {"train": {"0": 1}})
    assert found["rows_unchanged"] == 1


def test_rows_of_a_class_are_equal_when_its_number_changes(data: DataCommand, uri: str, tmp_path: Path) -> None:
    write_images(tmp_path / "one", IMAGES[:4], ["b", "c", "b", "c"])
    write_images(tmp_path / "two", IMAGES[:5], ["b", "c", "b", "c", "a"])
    data.json("import", tmp_path / "one", uri, "--split=train")
    data.json("import", tmp_path / "two", uri, "--overwrite", "--split=train")
    found = data.json("diff", uri, "1", "2")
    assert (found["added"], found["removed"]) == ({"train": {"a": 1}}, {})


def test_a_tag_is_created_moved_and_deleted(data: DataCommand, imported: str) -> None:
    assert data.json("tag", imported, "best") == {"uri": imported, "tag": "best", "version": 3}
    with pytest.raises(ConfigurationError, match=r"tag=best: version 3 of .* has this tag"):
        data.json("tag", imported, "best", "2")
    data.json("tag", imported, "best", "2", "--force")
    data.json("tag", imported, "same", "best")
    assert [each["tags"] for each in data.json("versions", imported)] == [["first"], ["best", "same"], []]
    assert "the tag best is deleted" in data.text("tag", imported, "best", "--delete")
    with pytest.raises(ConfigurationError, match=r"tag=best: .* has no such tag; its tags are: first, same"):
        data.json("tag", imported, "best", "--delete")
    assert lance.dataset(imported, version="same").version == 2


@pytest.mark.parametrize("name", ["7", "a b", "a/b", "ü", "..", ""])
def test_a_tag_that_is_no_name_is_refused(data: DataCommand, imported: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^tag={re.escape(name)}: letters, digits.*\.$"):
        data.json("tag", imported, name)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["versions", "{none}"], "{none}: there is no Lance dataset; name another place, or make one"),
        (
            ["stats", "{uri}", "--data_version=77"],
            "{uri} has no version '77': it has versions 1, 2, 3 and tag first; name one of these",
        ),
        (["diff", "{uri}", "first", "none"], "{uri} has no version 'none': it has versions 1, 2, 3 and tag first"),
        (["tag", "{uri}", "new", "77"], "{uri} has no version '77': it has"),
        (["tag", "{uri}", "first", "1", "--delete"], "--delete: the version 1 was given"),
        (["versions", "s3://key:secret@bucket/t.lance"], "URI: the URI has a user, a password or a port"),
    ],
)
def test_what_is_not_there_is_named(
    data: DataCommand, imported: str, tmp_path: Path, words: list[str], message: str
) -> None:
    names = {"uri": imported, "none": str(tmp_path / "none.lance")}
    with pytest.raises(ConfigurationError, match=rf"^{message.format(**names)}.*\.$") as caught:
        data.json(*[word.format(**names) for word in words])
    assert "secret" not in str(caught.value)
