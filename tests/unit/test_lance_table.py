"""Lance datasets: columns, splits, versions, and reading while the run trains."""

import tracemalloc
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from tests.unit.data_command import DataCommand
from trainer.data import datasets, lance_table
from trainer.data.columns import files, stored
from trainer.data.columns.choices import Choices
from trainer.data.columns.files import Model
from trainer.data.context import DataContext
from trainer.data.datasets import Dataset
from trainer.data.examples import Examples
from trainer.data.stream import Stream
from trainer.errors import ConfigurationError
from trainer.tensorflow import tf

ROWS = 50
IMAGES = np.random.default_rng(0).integers(0, 256, (ROWS, 4, 3, 1), np.uint8)
SCALED = IMAGES / np.float32(255)
LABELS = np.arange(ROWS) % 5


def tensors(array: Any) -> pa.Array:
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(array))


def png(image: Any) -> bytes:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return bytes(session.run(tf.io.encode_png(image)))


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of images and labels, in version 1 with the tag first; version 2 has twice the rows."""
    address = str(tmp_path / "images.lance")
    table = pa.table({"image": tensors(IMAGES), "label": LABELS})
    lance.write_dataset(table, address).tags.create("first", 1)
    lance.write_dataset(table, address, mode="append")
    return address


def load(uri: str, version: str | None = None, replica: int = 0) -> Dataset:
    return datasets.load("lance", version, False, DataContext(uri, 10, 7, replica, 2))


def in_memory(found: Dataset) -> tuple[Examples, Examples]:
    assert isinstance(found.train, Examples)
    assert isinstance(found.test, Examples)
    return found.train, found.test


@pytest.mark.parametrize(
    ("version", "rows", "read"), [(None, 100, "2"), ("2", 100, "2"), ("1", 50, "1"), ("first", 50, "1")]
)
def test_a_version_is_read_by_its_number_or_its_tag(uri: str, version: str | None, rows: int, read: str) -> None:
    found = load(uri, version)
    train, test = in_memory(found)
    assert (len(train), len(test)) == (rows * 9 // 10, rows // 10)
    assert found.version == read
    assert found.signature.input_shape == (4, 3, 1)
    assert found.signature.classes == 5
    pairs = {(image.tobytes(), int(label)) for part in (train, test) for image, label in zip(*part.arrays, strict=True)}
    assert pairs == {
        ((image / np.float32(255)).tobytes(), int(label)) for image, label in zip(IMAGES, LABELS, strict=True)
    }


def test_the_column_split_names_the_held_out_rows(tmp_path: Path) -> None:
    split = ["test" if n < 8 else "train" for n in range(ROWS)]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2.0 * ROWS)), 2)
    table = pa.table({"a": vectors, "b": np.arange(ROWS), "y": np.linspace(0, 1, ROWS), "split": split})
    lance.write_dataset(table, str(tmp_path / "t.lance"))
    train, test = in_memory(load(str(tmp_path / "t.lance")))
    assert test.inputs["a"].tolist() == [[2.0 * n, 2.0 * n + 1] for n in range(8)]
    assert test.inputs["b"].tolist() == [[n] for n in range(8)]
    assert len(train) == ROWS - 8
    assert train.targets.dtype == np.float32


def test_encoded_images_are_decoded(tmp_path: Path) -> None:
    lance.write_dataset(
        pa.table({"image": [png(image) for image in IMAGES], "label": LABELS}), str(tmp_path / "t.lance")
    )
    train, _ = in_memory(load(str(tmp_path / "t.lance")))
    assert {image.tobytes() for image in train.inputs} <= {image.tobytes() for image in SCALED}


def test_a_table_larger_than_the_memory_streams(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, held_out = in_memory(load(uri, "1"))
    monkeypatch.setattr(lance_table, "IN_MEMORY_BYTES", 0)
    found, other = load(uri, "1"), load(uri, "1", replica=1)
    assert isinstance(found.train, Stream)
    assert isinstance(found.test, Stream)
    assert isinstance(other.train, Stream)
    assert found.signature == whole.signature
    assert found.train.read
    assert other.train.read
    every = np.arange(len(whole))
    images, _ = found.train.read(every[::-1])
    assert np.array_equal(images, whole.inputs[::-1])
    assert np.array_equal(other.train.read(every[3:5])[0], whole.inputs[3:5])
    test = list(found.test.once(4))
    assert [len(labels) for _, labels in test] == [4, 1]
    assert np.array_equal(np.concatenate([images for images, _ in test]), held_out.inputs)


def test_a_row_takes_few_bytes_of_python_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strings took 80 bytes a row: gigabytes for a table of tens of millions of rows."""
    rows = 200_000
    split = pa.array(["train"] * (rows - 100) + ["test"] * 100)
    table = pa.table({"x": np.ones(rows, np.float32), "y": np.arange(rows, dtype=np.int32) % 5, "split": split})
    lance.write_dataset(table, str(tmp_path / "t.lance"))
    monkeypatch.setattr(lance_table, "IN_MEMORY_BYTES", 0)
    load(str(tmp_path / "t.lance"))  # imports
    tracemalloc.start()
    try:
        found = load(str(tmp_path / "t.lance"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(found.train, Stream)
    assert peak < 30 * rows, peak / rows


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": tensors(IMAGES)}, r"and a column y or label were expected, not image"),
        ({"label": LABELS}, "and a column y or label were expected, not label"),
        ({"a": ["one"] * ROWS, "y": LABELS}, "a: numbers, vectors, tensors or images were expected, not string"),
        ({"a": [None, *range(1, ROWS)], "y": LABELS}, "a: 1 rows have no value"),
        ({"a": [b"no image"] * ROWS, "y": LABELS}, "a: an image cannot be decoded"),
        (
            {"a": [png(IMAGES[0]), *[png(IMAGES[0][:2])] * (ROWS - 1)], "y": LABELS},
            "a: images of one size were expected",
        ),
        ({"a": LABELS, "y": LABELS, "split": ["train"] * ROWS}, "it has 50 rows to train on and 0 held-out rows"),
        ({"a": np.full(ROWS, np.nan), "y": LABELS}, "some values are not finite"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    lance.write_dataset(pa.table(columns), str(tmp_path / "t.lance"))
    with pytest.raises(ConfigurationError, match=rf"^data_dir={tmp_path}/t\.lance.*{message}.*\.$"):
        load(str(tmp_path / "t.lance"))


def test_an_absent_table_version_or_tag_is_refused(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"data_dir={tmp_path}/none.lance: there is no Lance dataset"):
        load(str(tmp_path / "none.lance"))
    for version in ("77", "none", "9" * 30, ""):
        with pytest.raises(
            ConfigurationError, match=f" has no version '{version}': it has versions 1, 2 and tag first;"
        ):
            load(uri, version)
    with pytest.raises(ConfigurationError, match="data_version=7, but only a Lance dataset has versions; remove it"):
        datasets.load("digits", "7", False, DataContext("", 10, 0, 0, 1))


def test_a_version_that_streams_has_a_digest_and_stays_as_it_was(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance_table, "IN_MEMORY_BYTES", 0)
    found = load(uri)
    digests = [found.digest, load(uri, "1").digest, load(uri, "first").digest]
    assert all(digest and len(digest) == 64 for digest in digests)
    assert digests[0] != digests[1] == digests[2]
    assert isinstance(found.test, Stream)
    before = [images.tobytes() for images, _ in found.test.once(4)]
    lance.write_dataset(pa.table({"image": tensors(IMAGES[:7]), "label": LABELS[:7]}), uri, mode="overwrite")
    lance.write_dataset(pa.table({"other": LABELS, "label": LABELS}), uri, mode="overwrite")
    assert [images.tobytes() for images, _ in found.test.once(4)] == before
    assert found.facts == {"dataset": "lance", "dataset_uri": uri, "dataset_version": "2", "dataset_digest": digests[0]}
    lance.dataset(uri).delete("label = 0")
    assert load(uri).digest not in digests


def test_the_same_examples_have_one_digest_in_each_version(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    table = pa.table({"image": tensors(IMAGES), "label": LABELS})
    lance.write_dataset(table, uri)
    lance.write_dataset(table, uri, mode="overwrite")
    assert load(uri, "1").digest == load(uri, "2").digest


@pytest.fixture
def medals(data: DataCommand, tmp_path: Path) -> tuple[Path, str]:
    """A CSV file with gaps, dates, ids and names with points, and the Lance dataset that was imported from it."""
    lines = ["score.sum,country,since,id,medal,split"]
    for row in range(400):
        country, split = ["NOR", "KEN", ""][row % 3], "val" if row % 5 == 0 else "train"
        gap = "" if row % 7 == 0 else row / 2
        lines.append(f"{gap},{country},2024-01-{1 + row % 28:02},{2**53 + row},{['gold', 'none'][row % 2]},{split}")
    (tmp_path / "medals.csv").write_text("\n".join([*lines, ""]))
    data.text("import", tmp_path / "medals.csv", tmp_path / "medals.lance", "--target=medal")
    return tmp_path / "medals.csv", str(tmp_path / "medals.lance")


def test_a_table_is_read_by_the_plan_of_its_files(medals: tuple[Path, str]) -> None:
    file, uri = medals
    choices = Choices(exclude=("country",))
    found = stored.load(uri, None, choices, Model())
    of_files = files.load(str(file), Choices("medal", exclude=("country",)), Model(), 0)
    assert found.plan == of_files.plan.with_readings({})
    assert {each.name: each.missing for each in found.plan.inputs} == {"score.sum": 46, "since": 0}
    assert found.baseline == of_files.baseline
    assert found.version == "1"
    assert isinstance(found.train, Examples)
    assert isinstance(of_files.train, Examples)
    assert (len(found.train), len(of_files.train)) == (320, 320)
    for own, other in zip(found.train.arrays, of_files.train.arrays, strict=True):
        np.testing.assert_array_equal(own, other)


def test_a_large_table_is_read_while_the_run_trains(medals: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    _, uri = medals
    whole = stored.load(uri, None, Choices(), Model())
    monkeypatch.setattr(stored, "IN_MEMORY_BYTES", 0)
    found = stored.load(uri, None, Choices(), Model())
    assert found.plan == whole.plan
    assert found.baseline == whole.baseline
    assert len(found.digest or "") == 64
    assert isinstance(whole.train, Examples)
    assert isinstance(whole.test, Examples)
    assert isinstance(found.train, Stream)
    assert isinstance(found.test, Examples)
    assert found.train.read
    assert found.train.signature == whole.train.signature
    indices = np.array([5, 1, 319])
    batches = [*found.train.once(100)]
    for index, array in enumerate(whole.train.arrays):
        np.testing.assert_array_equal(found.train.read(indices)[index], array[indices])
        np.testing.assert_array_equal(np.concatenate([batch[index] for batch in batches]), array)
    for own, other in zip(found.test.arrays, whole.test.arrays, strict=True):
        np.testing.assert_array_equal(own, other)


@pytest.mark.parametrize("in_memory_bytes", [0, 1 << 28])
def test_the_columns_of_another_program_are_a_table_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory_bytes: int
) -> None:
    """It has no column of splits, so some rows are held out, as of files."""
    monkeypatch.setattr(stored, "IN_MEMORY_BYTES", in_memory_bytes)
    columns = {"a": np.arange(100) / 7, "b": ["x", None] * 50, "churn": ["no", "no", "yes", "no"] * 25}
    lance.write_dataset(pa.table(columns), str(tmp_path / "t.lance"))
    found = stored.load(str(tmp_path / "t.lance"), None, Choices("churn"), Model())
    assert [each.kind for each in found.plan.inputs] == ["number", "category"]
    assert isinstance(found.test, Examples)
    assert len(found.test) == 20
