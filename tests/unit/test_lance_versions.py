"""`lance_versions` finds by names of files what Lance itself finds."""

import json
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from trainer.errors import StoreError
from trainer.storage import lance_versions


def write(uri: Path, inverted: bool = True) -> lance.LanceDataset:
    mode = "append" if uri.exists() else "create"
    return lance.write_dataset(pa.table({"x": [1]}), uri, mode=mode, enable_v2_manifest_paths=inverted)


@pytest.mark.parametrize("inverted", [False, True])
def test_the_newest_version_is_that_of_lance(tmp_path: Path, inverted: bool) -> None:
    uri = tmp_path / "a.lance"
    for number in range(1, 12):
        assert write(uri, inverted).version == number
        assert lance_versions.find(str(uri), "") == number


def test_a_tag_has_the_version_to_which_it_was_last_moved(tmp_path: Path) -> None:
    uri = tmp_path / "a.lance"
    for _ in range(3):
        dataset = write(uri)
    dataset.tags.create("latest", 3)
    assert lance_versions.find(str(uri), "latest") == 3
    dataset.tags.update("latest", 2)
    assert lance_versions.find(str(uri), "latest") == 2
    assert lance_versions.find(str(uri), "best") == f"{uri} has no tag best"


def test_versions_of_a_branch_do_not_count(tmp_path: Path) -> None:
    uri = tmp_path / "a.lance"
    branch = write(uri).create_branch("dev")
    lance.write_dataset(pa.table({"x": [1]}), branch, mode="append")
    write(uri).tags.create("trial", ("dev", None))
    assert lance_versions.find(str(uri), "") == 2
    assert "is on the branch dev" in str(lance_versions.find(str(uri), "trial"))


def test_what_is_absent_is_named(tmp_path: Path) -> None:
    for tag in ("", "latest"):
        assert str(tmp_path / "a.lance") in str(lance_versions.find(str(tmp_path / "a.lance"), tag))
    (tmp_path / "_versions").mkdir()
    assert lance_versions.find(str(tmp_path), "") == f"there is no dataset at {tmp_path}"


@pytest.mark.parametrize("content", ["", "[]", json.dumps({"version": "x"}), json.dumps({"branch": None})])
def test_a_damaged_tag_is_an_error(tmp_path: Path, content: str) -> None:
    tags = tmp_path / "_refs" / "tags"
    tags.mkdir(parents=True)
    (tags / "latest.json").write_text(content)
    with pytest.raises(StoreError, match=r"_refs/tags/latest\.json is not a tag of Lance"):
        lance_versions.find(str(tmp_path), "latest")


def test_a_place_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.lance").write_text("a file")
    for tag in ("", "latest"):
        with pytest.raises(StoreError, match=r"a\.lance cannot be read: Not a directory"):
            lance_versions.find(str(tmp_path / "a.lance"), tag)
