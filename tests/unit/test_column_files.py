"""Files with columns as the examples of a run."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.columns import files
from trainer.data.columns.blocks import Blocks, windows
from trainer.data.columns.choices import Choices
from trainer.data.columns.files import Model, Splits
from trainer.data.columns.names import find
from trainer.data.examples import ArraySpec, Examples
from trainer.data.stream import Stream
from trainer.data.tabular.parquet import RowGroup
from trainer.errors import ConfigurationError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let copies of data be written to the test's folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()


def write(file: Path, rows: int, seed: int = 0, **more: Any) -> Path:
    """A CSV file with a number, a text with gaps, and a class that follows from them."""
    random = np.random.default_rng(seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(file, "wt") if file.suffix == ".gz" else file.open("w") as opened:
        writer = csv.writer(opened)
        writer.writerow(["number", "text", "label", *more])
        for _ in range(rows):
            number, text = random.normal(), random.choice(["a", "b", ""])
            writer.writerow([f"{number:.4f}", text, "yes" if number > 0 else "no", *more.values()])
    return file


def load(place: Path, **choices: Any) -> Splits:
    return files.load(str(place), Choices(**choices), Model(), 0)


def in_memory(split: Examples | Stream) -> Examples:
    assert isinstance(split, Examples)
    return split


def test_a_file_is_split_and_each_row_is_an_example(tmp_path: Path) -> None:
    found = load(write(tmp_path / "rows.csv", 1000))
    train, test = in_memory(found.train), in_memory(found.test)
    assert (found.kind, len(train), len(test)) == ("csv", 800, 200)
    assert found.plan.target.classes == ("no", "yes")
    assert set(train.inputs) == {"number", "text"}
    assert ((train.inputs["number"] > 0) == train.targets).all()
    assert found.baseline is not None
    assert found.baseline["accuracy"] == pytest.approx(max(test.targets.mean(), 1 - test.targets.mean()))


def test_files_of_a_folder_are_one_table_and_those_named_test_are_held_out(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", 30), write(tmp_path / "deep" / "b.csv.gz", 20, 1), write(tmp_path / "test.csv", 10, 2)
    (tmp_path / "_temporary").mkdir()
    write(tmp_path / "_temporary" / "c.csv", 5)
    found = load(tmp_path)
    assert (len(in_memory(found.train)), len(in_memory(found.test))) == (50, 10)


def test_texts_are_tables_if_there_is_no_other_data(tmp_path: Path) -> None:
    for name in ("a.txt", "b.data", ".hidden.csv", "c.pdf"):
        (tmp_path / name).touch()
    assert [path.name for path in find(tmp_path)] == ["a.txt", "b.data"]
    (tmp_path / "photo.JPG").touch()
    assert find(tmp_path) == []
    (tmp_path / "d.csv.gz").touch()
    assert [path.name for path in find(tmp_path)] == ["d.csv.gz"]
    assert find(tmp_path / "a.txt") == [tmp_path / "a.txt"]
    assert find(tmp_path / "c.pdf") == []


def test_folders_named_by_values_are_columns(tmp_path: Path) -> None:
    for year in (2023, 2024):
        for place in ("east", "west"):
            write(tmp_path / f"year={year}" / f"place={place}" / "rows.csv", 40, year)
    found = load(tmp_path)
    train = in_memory(found.train)
    assert set(train.inputs["year"].tolist()) == {2023.0, 2024.0}
    assert set(train.inputs["place"].tolist()) == {"east", "west"}


def test_rows_without_a_target_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path / "rows.csv", 50)
    file.write_text(file.read_text() + "0.5,a,\n" * 3)
    found = load(file)
    assert len(in_memory(found.train)) + len(in_memory(found.test)) == 50
    assert "3 of 53 rows have no label; they are left out" in caplog.text


def test_an_infinite_target_is_none(tmp_path: Path) -> None:
    rows = [f"{row % 7},{row / 2}" for row in range(60)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,y", *rows, "1,inf", "2,-inf", ""]))
    found = load(tmp_path / "rows.csv")
    assert len(in_memory(found.train)) + len(in_memory(found.test)) == 60
    assert np.isfinite(found.plan.target.stddev)


def test_a_class_that_only_held_out_rows_have_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "train.csv", 50)
    file = write(tmp_path / "test.csv", 10)
    file.write_text(file.read_text() + "0.5,a,perhaps\n")
    found = load(tmp_path)
    assert found.plan.target.classes == ("no", "yes")
    assert len(in_memory(found.test)) == 10
    assert "1 held-out rows have a class of label that no training row has" in caplog.text


def test_weights_and_ids_are_no_inputs(tmp_path: Path) -> None:
    found = load(write(tmp_path / "rows.csv", 50, w=2.0, key=7), sample_weight="w", id="key")
    train = in_memory(found.train)
    assert set(train.inputs) == {"number", "text"}
    assert train.weights is not None
    assert set(train.weights.tolist()) == {2.0}


@pytest.mark.parametrize(
    ("content", "choices", "sentence"),
    [
        ("a,b\n1,2\n3,4\n", {}, "no column named target or label or y; name the column to predict with --target, one"),
        ("a,label\n1,x\n2,y\n", {"target": "lable"}, "target=lable, but .* has no such column .did you mean label.*"),
        ("a,label\n1,x\n", {}, "1 of its rows have a label, but at least 2 are needed"),
        ("a,label\n", {}, "no rows|the file is empty"),
        ("a,label\n1,x\n2,x\n3,x\n", {}, "each training row has x; there is nothing to learn"),
        ("a,label\n1,x\n1,y\n1,x\n", {}, "no column can be an input .a: each row has 1."),
        ("a,split,label\n1,train,x\n2,train,y\n", {}, "0 rows are held out"),
    ],
)
def test_files_from_which_nothing_can_be_learnt_are_refused(
    tmp_path: Path, content: str, choices: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "rows.csv").write_text(content)
    with pytest.raises(ConfigurationError, match=sentence):
        load(tmp_path / "rows.csv", **choices)


def test_a_weight_that_is_none_is_named_with_its_row(tmp_path: Path) -> None:
    weights = [1.0] * 20 + [None] + [1.0] * 20
    file = tmp_path / "weights.csv"
    file.write_text("x,w,y\n" + "".join(f"{i % 7},{w or ''},{'' if i < 5 else i % 2}\n" for i, w in enumerate(weights)))
    with pytest.raises(ConfigurationError, match=r"weights.csv has no value in row 20; numbers from 0 were expected"):
        load(file, sample_weight="w")


def test_texts_beside_files_with_columns_are_not_read(tmp_path: Path) -> None:
    write(tmp_path / "data" / "rows.csv", 100)
    (tmp_path / "data" / "README.txt").write_text("Rows, as they are.\n")
    assert len(in_memory(load(tmp_path / "data").train)) == 80


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_kind_says_what_names_do_not(tmp_path: Path, kind: str) -> None:
    (tmp_path / "data").mkdir()
    for index in range(2):
        place = tmp_path / "data" / f"00000{index}_0"
        if kind == "csv":
            write(place, 100, index)
        else:
            pyarrow.parquet.write_table(pa.table({"x": [0.5, 1.0] * 50, "y": [0, 1] * 50}), place)
    with pytest.raises(ConfigurationError, match=r"data: no file has a name that ends in .csv, .*name such a file"):
        load(tmp_path / "data")
    for place, rows in ((tmp_path / "data", 200), (tmp_path / "data" / "000001_0", 100)):
        found = load(place, kind=kind)
        assert (found.kind, len(in_memory(found.train)) + len(in_memory(found.test))) == (kind, rows)


def test_other_columns_than_those_of_the_first_file_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    write(tmp_path / "data" / "a.csv", 100)
    write(tmp_path / "data" / "b.csv", 100, more=1)
    load(tmp_path / "data")
    assert "b.csv: more left out, as the first file, a.csv, has no such column" in caplog.text
    write(tmp_path / "data" / "0.csv", 100, other=1)
    with pytest.raises(
        ConfigurationError, match=r"a.csv: it has no column other; .* as the first file has; name one f"
    ):
        load(tmp_path / "data")


def test_labels_have_the_names_of_hugging_face(tmp_path: Path) -> None:
    table = pa.table({"x": [0.5, 1.0] * 50, "label": [0, 1] * 50})
    names = {"info": {"features": {"label": {"names": ["cat", "dog"]}}}}
    pyarrow.parquet.write_table(
        table.replace_schema_metadata({"huggingface": json.dumps(names)}), tmp_path / "a.parquet"
    )
    found = load(tmp_path / "a.parquet")
    assert found.baseline is not None
    assert (found.plan.target.classes, found.baseline["what"]) == (("cat", "dog"), "always cat")
    assert (in_memory(found.train).targets == (in_memory(found.train).inputs["x"] == 1.0)).all()


def test_names_may_have_capitals_and_folders_a_missing_value(tmp_path: Path) -> None:
    assert len(in_memory(load(write(tmp_path / "ROWS.CSV", 100)).train)) == 80
    write(tmp_path / "rows" / "year=2023" / "A.CSV", 100)
    write(tmp_path / "rows" / "year=__HIVE_DEFAULT_PARTITION__" / "a.csv", 100)
    (year,) = (each for each in load(tmp_path / "rows").plan.inputs if each.name == "year")
    assert (year.kind, year.mean) == ("number", 2023)
    assert 70 <= year.missing <= 90


@pytest.mark.parametrize("memory", [1 << 20, 0])
def test_infinite_targets_are_left_out(tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "IN_MEMORY_BYTES", memory)
    values = [float("inf") if row % 50 == 0 else row / 3 for row in range(1000)]
    pyarrow.parquet.write_table(pa.table({"x": [row % 7 for row in range(1000)], "y": values}), tmp_path / "a.parquet")
    found = load(tmp_path / "a.parquet")
    assert found.plan.target.mean == pytest.approx(np.mean([each for each in values if each < 1000]), rel=0.1)


def test_a_column_split_that_says_nothing_can_be_left_out(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", 100, split="left")
    with pytest.raises(
        ConfigurationError, match=r"both are needed; if the column split .* leave it out by --exclude split\."
    ):
        load(tmp_path / "a.csv")
    assert len(in_memory(load(tmp_path / "a.csv", exclude=("split",)).train)) == 80


def test_why_no_column_can_be_an_input_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"v{row},{row % 2}\n" for row in range(100)))
    with pytest.raises(
        ConfigurationError, match=r"no column can be an input \(x: its values differ in .*as those of an"
    ):
        load(tmp_path / "a.csv")


def test_a_file_of_one_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a::b\n1::2\n")
    with pytest.raises(ConfigurationError, match=r"it has one column, a::b, but .*: if its lines have several"):
        load(tmp_path / "a.csv", target="b")


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("nothing")
    with pytest.raises(ConfigurationError, match=r"no file has a name that ends in .csv, .*; name such a file, or"):
        load(tmp_path)
    with pytest.raises(ConfigurationError, match="there is no such file or folder"):
        load(tmp_path / "absent.csv")


@pytest.mark.parametrize("is_small", [True, False])
def test_a_list_of_another_length_is_named_with_its_file_and_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    if not is_small:
        monkeypatch.setattr(files, "IN_MEMORY_BYTES", 0)
    for index in range(2):
        lists = [[1.0, 2.0]] * 100
        if index:
            lists[71] = [1.0, 2.0, 3.0]
        columns = {"v": lists, "other": [float(row) for row in range(100)], "y": [0, 1] * 50}
        pa.parquet.write_table(pa.table(columns), tmp_path / f"{index}.parquet", row_group_size=30)
    model = Model(lambda: {"v": ArraySpec((2,), "float32"), "other": ArraySpec((), "float32")})

    def read() -> None:
        found = files.load(str(tmp_path), Choices(), model, 0)
        assert isinstance(found.train, Stream)
        list(found.train.once(10))

    with pytest.raises(ConfigurationError, match=r"1\.parquet: v: row 71 has a list of 3, but 2 elements"):
        read()


def parquet(folder: Path, files: int = 3, rows: int = 4000, group: int = 700) -> Path:
    """Parquet files with the number of each row, and a class."""
    folder.mkdir(exist_ok=True)
    for index in range(files):
        numbers = np.arange(index * rows, (index + 1) * rows)
        columns = {"row": numbers.astype(float), "half": numbers / 2, "label": numbers % 3}
        pa.parquet.write_table(pa.table(columns), folder / f"part-{index}.parquet", row_group_size=group)
    return folder


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each file be too large for the memory."""
    monkeypatch.setattr(files, "IN_MEMORY_BYTES", 0)


@pytest.mark.usefixtures("small_memory")
@pytest.mark.parametrize("files", [1, 3])
def test_large_files_are_read_each_row_once_an_epoch(tmp_path: Path, files: int) -> None:
    found = load(parquet(tmp_path / "rows", files))
    stream, test = found.train, in_memory(found.test)
    assert isinstance(stream, Stream)
    assert stream.size is not None
    assert stream.read is not None
    assert stream.size + len(test) == files * 4000
    orders = []
    for epoch in range(2):
        places = range(epoch * stream.size, (epoch + 1) * stream.size, 64)
        ends = [min(place + 64, (epoch + 1) * stream.size) for place in places]
        names = list(stream.signature.inputs)
        batches = [stream.read(np.arange(*ends_of)) for ends_of in zip(places, ends, strict=True)]
        leaves = [np.concatenate(each) for each in zip(*batches, strict=True)]
        rows = leaves[names.index("row")]
        assert sorted({*rows, *test.inputs["row"]}) == list(range(files * 4000))
        assert (rows % 3 == leaves[-1]).all()
        assert (rows[:-1] < rows[1:]).mean() == pytest.approx(0.5, abs=0.05)
        orders.append(rows)
    assert not np.array_equal(orders[0], orders[1])
    again = stream.read(np.arange(stream.size + 100, stream.size + 110))
    np.testing.assert_array_equal(again[names.index("row")], orders[1][100:110])
    once = np.concatenate([batch[names.index("row")] for batch in stream.once(100)])
    assert sorted(once) == sorted(orders[0])
    assert len(found.digest or "") == 64


@pytest.mark.usefixtures("small_memory")
def test_large_files_of_text_are_written_as_parquet_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    file = write(tmp_path / "rows.csv", 1000)
    first, second = load(file), load(file)
    assert caplog.text.count("are written as Parquet, once") == 1
    for found in (first, second):
        assert isinstance(found.train, Stream)
        assert (found.kind, found.train.size, len(in_memory(found.test))) == ("csv", 800, 200)
    assert [*(tmp_path / "cache").rglob("*.parquet")]


@pytest.mark.usefixtures("small_memory")
def test_a_column_of_splits_and_absent_targets_count_in_large_files_too(tmp_path: Path) -> None:
    rows = 3000
    numbers = np.arange(rows)
    columns = {
        "row": numbers.astype(float),
        "split": np.where(numbers % 5 == 0, "test", "train"),
        "y": pa.array(numbers * 0.5, mask=numbers % 10 == 1),
    }
    pa.parquet.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=450)
    found = load(tmp_path / "rows.parquet")
    assert isinstance(found.train, Stream)
    assert (found.train.size, len(in_memory(found.test))) == (2100, 600)
    assert not found.plan.target.classes


@settings(deadline=None)
@given(
    rows=st.lists(st.integers(0, 60), min_size=1, max_size=20).filter(any),
    size=st.integers(1, 40),
    epoch=st.integers(0, 3),
    batch=st.integers(1, 50),
)
def test_each_epoch_has_each_row_of_each_group_once(rows: list[int], size: int, epoch: int, batch: int) -> None:
    found = windows(rows, size, 7, epoch)
    assert [each.start for each in found] == [sum(one.rows for one in found[:index]) for index in range(len(found))]
    starts = np.cumsum([0, *rows])

    def read(group: RowGroup) -> Any:
        numbers = np.arange(starts[group.index], starts[group.index + 1])
        yield from (pa.record_batch({"row": numbers[at : at + 7]}) for at in range(0, len(numbers), 7))

    groups = [RowGroup(Path("rows"), index, count, 1) for index, count in enumerate(rows)]
    blocks = Blocks(groups, rows, read, lambda table: [table["row"].to_numpy()], 7)
    first = epoch * blocks.size
    taken = [blocks.read(np.arange(at, min(at + batch, first + blocks.size)))[0]
             for at in range(first, first + blocks.size, batch)]  # fmt: skip
    assert sorted(np.concatenate(taken)) == list(range(blocks.size))


def test_half_of_a_wrapped_batch_is_from_the_begin_of_the_epoch() -> None:
    def read(group: RowGroup) -> Any:
        yield pa.record_batch({"row": np.arange(50)})

    blocks = Blocks([RowGroup(Path("rows"), 0, 50, 1)], [50], read, lambda table: [table["row"].to_numpy()], 0)
    whole = blocks.read(np.arange(50, 100))[0]
    np.testing.assert_array_equal(blocks.read(np.array([98, 99, 50, 51]))[0], whole[[48, 49, 0, 1]])


@pytest.mark.slow
def test_a_tfrecord_file_that_is_cut_is_named(tmp_path: Path) -> None:
    from trainer.tensorflow import tf

    features = tf.train.Features(feature={"label": tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))})
    file = tmp_path / "rows.tfrecord"
    with tf.io.TFRecordWriter(str(file)) as writer:
        for _ in range(10):
            writer.write(tf.train.Example(features=features).SerializeToString())
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ConfigurationError, match=r"rows.tfrecord: the file cannot be read \(truncated record at "):
        load(file)
