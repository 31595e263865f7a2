"""`trainer data import`: sources, checks, splits and statistics."""

import gzip
import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from tests.unit.data_command import DataCommand, write_images
from trainer.data import datasets
from trainer.data.context import DataContext
from trainer.data.datasets import Dataset
from trainer.data.examples import Examples
from trainer.datasets import check, source
from trainer.errors import ConfigurationError

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (40, 6, 5, 3), np.uint8)
NAMES = ["cat", "dog"] * 20


def load(name: str, place: str | Path) -> Dataset:
    return datasets.load(name, None, False, DataContext(str(place), 10, 0, 0, 1))


def table(uri: str) -> Any:
    return lance.dataset(uri).to_table()


def write_idx(folder: Path, part: str, images: Any, labels: Any) -> None:
    folder.mkdir(exist_ok=True)
    head = struct.pack(f">{images.ndim + 1}I", 0x0800 + images.ndim, *images.shape)
    (folder / f"{part}-images-idx{images.ndim}-ubyte.gz").write_bytes(gzip.compress(head + images.tobytes()))
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x0801, len(labels)) + bytes(labels))


@pytest.mark.slow
def test_real_mnist_is_the_data_that_the_files_are(data: DataCommand, uri: str, mnist_folder: Path) -> None:
    found = data.json("import", mnist_folder, uri)
    assert (found["version"], found["rows"], found["skipped"]) == (1, 10000, 0)
    assert {split: sum(each.values()) for split, each in found["statistics"]["splits"].items()} == {
        "train": 9000,
        "test": 1000,
    }
    assert load("lance", uri).digest == load("mnist", mnist_folder).digest


def test_idx_files_of_colour_images_in_other_parts(data: DataCommand, uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    write_idx(folder, "emnist-letters-train", IMAGES[:30], [1] * 30)
    write_idx(folder, "emnist-letters-test", IMAGES[30:], [0] * 10)
    data.json("import", folder, uri)
    found = load("lance", uri)
    assert found.signature.input_shape == (6, 5, 3)
    assert isinstance(found.test, Examples)
    assert np.array_equal(found.test.inputs, IMAGES[30:] / np.float32(255))
    (folder / "emnist-letters-test-labels-idx1-ubyte").unlink()
    with pytest.raises(ConfigurationError, match="images emnist-letters-test, but not their labels"):
        data.json("import", folder, uri, "--overwrite")


@pytest.mark.parametrize("held_out", [True, False])
def test_npz_files_are_the_data_that_the_files_are(
    data: DataCommand, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_out: bool
) -> None:
    monkeypatch.setattr(source, "BATCH_ROWS", 7)
    folder = tmp_path / "raw"
    folder.mkdir()
    for name in ("a", "b", *(["test"] if held_out else [])):
        y = RANDOM.integers(0, 5, 20)
        np.savez(folder / f"{name}.npz", images=IMAGES[:20], words=RANDOM.integers(0, 99, (20, 4)), y=y)
    data.json("import", folder, uri)
    found, files = load("lance", uri), load("npz", folder)
    assert found.signature == files.signature
    if held_out:
        assert found.digest == files.digest
    else:
        assert set(table(uri)["split"].to_pylist()) == {"train", "test"}


def test_a_folder_of_images_for_each_class(data: DataCommand, uri: str, tmp_path: Path) -> None:
    write_images(tmp_path / "raw" / "train", IMAGES[:30], NAMES[:30])
    write_images(tmp_path / "raw" / "test", IMAGES[30:], NAMES[30:])
    (tmp_path / "raw" / "train" / "cat" / ".DS_Store").touch()
    found = data.json("import", tmp_path / "raw", uri)
    assert found["skipped"] == 0
    assert found["statistics"]["splits"] == {"train": {"cat": 15, "dog": 15}, "test": {"cat": 5, "dog": 5}}
    assert found["statistics"]["images"] == {"6x5x3": 40}
    assert json.loads(lance.dataset(uri).schema.metadata[b"classes"]) == ["cat", "dog"]
    trained = load("lance", uri)
    assert trained.signature.input_shape == (6, 5, 3)
    assert isinstance(trained.test, Examples)
    expected = [*IMAGES[30::2], *IMAGES[31::2]]
    assert np.array_equal(trained.test.inputs, np.stack(expected) / np.float32(255))
    assert trained.test.targets.tolist() == [0] * 5 + [1] * 5
    pixels = found["statistics"]["values"]["x"]
    assert pixels["mean"] == pytest.approx(IMAGES.mean())
    assert pixels["std"] == pytest.approx(IMAGES.std())


def test_classes_that_are_numbers_have_these_labels(data: DataCommand, uri: str, tmp_path: Path) -> None:
    write_images(tmp_path / "raw", IMAGES[:12], [str(number) for number in range(12)])
    data.json("import", tmp_path / "raw", uri)
    assert sorted(table(uri)["y"].to_pylist()) == list(range(12))
    assert json.loads(lance.dataset(uri).schema.metadata[b"classes"]) == [str(number) for number in range(12)]


def test_a_corrupt_image_among_a_thousand_is_skipped_counted_and_named(
    data: DataCommand, uri: str, tmp_path: Path
) -> None:
    small = RANDOM.integers(0, 256, (1000, 3, 3), np.uint8)
    write_images(tmp_path / "raw", small, ["one", "two"] * 500)
    broken = tmp_path / "raw" / "one" / "0500.png"
    broken.write_bytes(broken.read_bytes()[:50])
    found = data.json("import", tmp_path / "raw", uri)
    assert (found["rows"], found["skipped"]) == (999, 1)
    (named,) = found["first_skipped"]
    assert named.startswith("one/0500.png: the image is damaged (")
    (version,) = data.json("versions", uri)
    assert version["import"]["skipped"] == 1
    assert version["import"]["first_skipped"] == [named]
    assert load("lance", uri).signature.input_shape == (3, 3, 1)
    with pytest.raises(ConfigurationError, match=r"max_skipped=0, but 1 rows cannot be used, .*one/0500.png: .*\.$"):
        data.json("import", tmp_path / "raw", uri, "--append", "--max_skipped=0")
    assert len(data.json("versions", uri)) == 1


def test_images_of_other_sizes_modes_and_formats(data: DataCommand, uri: str, tmp_path: Path) -> None:
    write_images(tmp_path / "raw", IMAGES[:20], NAMES[:20])
    image = Image.fromarray(IMAGES[0])
    for name, each in {
        "wide.png": image.resize((9, 6)),
        "palette.gif": image.convert("P"),
        "grey.png": image.convert("L"),
        "photo.jpg": image,
        "other.bmp": image,
        "deep.png": Image.fromarray(np.full((6, 5), 65535, np.uint16)),
        "alpha.webp": image.convert("RGBA"),
    }.items():
        each.save(tmp_path / "raw" / "dog" / name)
    found = data.json("import", tmp_path / "raw", uri, "--test_fraction=0.3")
    assert found["rows"] == 24  # palette, photo, other and alpha have this size, or are converted
    assert [each.split(":")[0] for each in found["first_skipped"]] == ["dog/deep.png", "dog/grey.png", "dog/wide.png"]
    assert "the image is 6x9x3, but 6x5x3 was expected; see --image_size" in found["first_skipped"][2]
    assert load("lance", uri).signature.input_shape == (6, 5, 3)
    found = data.json("import", tmp_path / "raw", uri, "--overwrite", "--image_size=4x4x1", "--test_fraction=0.3")
    assert (found["rows"], found["skipped"]) == (27, 0)
    assert load("lance", uri).signature.input_shape == (4, 4, 1)
    with pytest.raises(ConfigurationError, match=r"image_size=4x4x3, but the images of .* are 4x4x1; choose that size"):
        data.json("import", tmp_path / "raw", uri, "--append", "--image_size=4x4x3")
    with pytest.raises(ConfigurationError, match=r"the image is 6x5x3, but 4x4x1 was expected"):
        data.json("import", tmp_path / "raw", uri, "--append")


def test_the_columns_of_a_table_stay_as_they_are(
    data: DataCommand, uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f"{2**53 + n},{n / 2},{'yes' if n % 3 else 'no'},2024-01-{1 + n % 28:02},C{n},true" for n in range(100)]
    lines[40:43] = [f"{2**53},,yes,,,", f"{2**53},nan,,2024-01-01,C,false", "1,2"]
    write_csv(tmp_path, "id,weight.kg,bought,since,code,is new?\n" + "\n".join(lines) + "\n")
    found = data.json("import", tmp_path / "t.csv", uri, "--target=bought", "--split=train")
    assert (found["rows"], found["first_skipped"]) == (98, ["t.csv: 2 columns, but the header has 6: 1,2"])
    assert "1 of 99 rows have no bought; they are left out" in caplog.text
    assert found["statistics"]["splits"] == {"train": {"no": 33, "yes": 65}}
    assert found["statistics"]["values"]["weight.kg"]["max"] == 49.5
    rows = table(uri)
    assert {each.name: str(each.type) for each in rows.schema} == {
        "id": "int64",
        "weight\u2024kg": "double",  # Lance has no point in a name
        "since": "timestamp[us]",
        "code": "string",
        "is new?": "bool",
        "bought": "string",
        "split": "string",
    }
    assert rows["id"].to_pylist()[:2] == [2**53, 2**53 + 1]
    assert rows.slice(40, 1).to_pylist()[0] == {
        "id": 2**53, "weight\u2024kg": None, "since": None, "code": None, "is new?": None, "bought": "yes",
        "split": "train",
    }  # fmt: skip
    assert json.loads(rows.schema.metadata[b"table"]) == {"target": "bought", "is_class": True}
    with pytest.raises(ConfigurationError, match=r"target=id, but the target of the dataset is bought; name it"):
        data.json("import", tmp_path / "t.csv", uri, "--append", "--target=id")
    with pytest.raises(
        ConfigurationError, match=r"--append: .*t.csv gives the columns id \(int64\), bought \(string\)"
    ):
        data.json("import", tmp_path / "t.csv", uri, "--append", "--inputs=id,bought")


def test_an_integer_column_may_have_other_numbers_later(data: DataCommand, uri: str, tmp_path: Path) -> None:
    lines = [f"{index},{index}" for index in range(120_000)] + ["0.5,1"]  # more than one block
    (tmp_path / "t.csv").write_text("x1,y\n" + "\n".join(lines) + "\n")
    assert data.json("import", tmp_path / "t.csv", uri)["statistics"]["rows"] == 120_001


def test_parquet_files_with_vectors_images_and_a_split(data: DataCommand, uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    write_images(tmp_path / "files", IMAGES, ["all"] * 40)
    pictures = [(tmp_path / "files" / "all" / f"{index:04}.png").read_bytes() for index in range(40)]
    pictures[3] = b"no image"
    columns = {
        "picture": pictures,
        "vector": [[index, 2.5] for index in range(40)],
        "label": np.linspace(0, 1, 40),
        "split": ["test" if index % 4 == 0 else "train" for index in range(40)],
    }
    pyarrow.parquet.write_table(pa.table(columns), folder / "a.parquet")
    found = data.json("import", folder, uri)
    assert (found["rows"], found["skipped"]) == (39, 1)
    assert found["first_skipped"] == ["a.parquet: row 3: it is not an image"]
    trained = load("lance", uri)
    assert {name: spec.shape for name, spec in trained.signature.inputs.items()} == {
        "picture": (6, 5, 3),
        "vector": (2,),
    }
    assert isinstance(trained.test, Examples)
    assert trained.test.inputs["vector"][:, 0].tolist() == list(range(0, 40, 4))
    assert trained.test.targets.dtype == np.float32


def write_csv(folder: Path, text: str) -> Path:
    (folder / "t.csv").write_text(text)
    return folder / "t.csv"


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_the_index_that_pandas_writes_is_left_out(
    data: DataCommand, uri: str, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = write_csv(tmp_path, f"{name},a,y\n" + "".join(f"{n},{n / 2},{n % 2}\n" for n in range(20)))
    assert set(data.json("import", path, uri)["statistics"]["values"]) == {"a"}
    assert f"{path}: the column {name!r}, an index that pandas writes, is left out" in caplog.text
    if name:
        found = data.json("import", path, uri, "--overwrite", f"--inputs=a,{name}")
        assert set(found["statistics"]["values"]) == {"a", name}


def test_whole_numbers_are_classes_unless_they_are_values(data: DataCommand, uri: str, tmp_path: Path) -> None:
    path = write_csv(tmp_path, "a,y\n" + "".join(f"{n},{n % 7}\n" for n in range(70)))
    found = data.json("import", path, uri, "--split=train")
    assert found["statistics"]["splits"] == {"train": {str(n): 10 for n in range(7)}}
    found = data.json("import", path, uri, "--overwrite", "--regression", "--split=train")
    assert found["statistics"]["splits"] == {"train": {"": 70}}
    found = data.json("import", path, uri, "--append", "--split=train")  # as the dataset has them
    assert found["statistics"]["values"]["y"]["max"] == 6
    path = write_csv(tmp_path, "a,y\n" + "".join(f"{n},{n % 7 - 1}\n" for n in range(50)))
    found = data.json("import", path, uri, "--overwrite")
    assert found["statistics"]["values"]["y"]["min"] == -1


@pytest.mark.parametrize(
    ("late", "names"),
    [("0.25,7", {"a"}), ("7,0.25", {"a", "y"}), ("A,7", set())],
)
def test_types_fit_all_rows(data: DataCommand, uri: str, tmp_path: Path, late: str, names: set[str]) -> None:
    lines = [f"{index % 9},{index % 9}" for index in range(300_000)]  # more than one block
    found = data.json("import", write_csv(tmp_path, "\n".join(["a,y", *lines, late, ""])), uri)
    assert set(found["statistics"]["values"]) == names


def test_appended_rows_have_the_types_of_the_dataset(data: DataCommand, uri: str, tmp_path: Path) -> None:
    data.json("import", write_csv(tmp_path, "age,code,empty,y\n1.5,a,,lost\n2,1,,won\n"), uri)
    data.json("import", write_csv(tmp_path, "y,empty,code,age\ndraw,,7,3\nwon,,8,\n"), uri, "--append", "--split=train")
    assert table(uri).select(["age", "code", "y"]).to_pylist()[2:] == [
        {"age": 3.0, "code": "7", "y": "draw"},
        {"age": None, "code": "8", "y": "won"},
    ]
    assert {*data.json("stats", uri)["splits"]["train"]} >= {"draw", "won"}
    with pytest.raises(ConfigurationError, match=r"gives the columns age \(string\), .* but .* has age \(double\), "):
        data.json("import", write_csv(tmp_path, "age,code,empty,y\nold,a,,lost\n"), uri, "--append")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a;b;y\n1,5;2;no\n2,5;3;yes\n", []),
        ("a\tb\ty\n1.5\t2\tno\n2.5\t3\tyes\n", []),
        ("a\tb\ty\n1.5\t2\tno\n2.5\t3\tyes\n", ["--delimiter=tab"]),
        ("a:b:y\n1.5:2:no\n2.5:3:yes\n", ["--delimiter=:"]),
        ("\ufeffa,b,y\n1.5, 2,no\n2.5,3,yes\n", []),
    ],
)
def test_the_delimiter_is_found_in_the_header(
    data: DataCommand, uri: str, tmp_path: Path, text: str, options: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    data.json("import", write_csv(tmp_path, text), uri, *options)
    assert table(uri).select(["a", "b"]).to_pylist() == [{"a": 1.5, "b": 2}, {"a": 2.5, "b": 3}]
    assert ("the delimiter is ';'" in caplog.text) == (";" in text)
    assert ("a: 1,5 is read as 1.5" in caplog.text) == (";" in text)


def test_parquet_files_of_hugging_face_and_pandas(data: DataCommand, uri: str, tmp_path: Path) -> None:
    write_images(tmp_path / "files", IMAGES, ["all"] * 40)
    pictures = [{"bytes": (tmp_path / f"files/all/{n:04}.png").read_bytes(), "path": None} for n in range(40)]
    prices = pa.array([Decimal("1.25")] * 40, pa.decimal128(9, 2))
    kinds = pa.array(NAMES).dictionary_encode()
    written = pa.table({"image": pictures, "price": prices, "label": kinds, "__index_level_0__": range(40)})
    pyarrow.parquet.write_table(written, tmp_path / "a.parquet")
    data.json("import", tmp_path / "a.parquet", uri, "--inputs=image")
    assert load("lance", uri).signature.input_shape == (6, 5, 3)
    data.json("import", tmp_path / "a.parquet", uri, "--overwrite", "--inputs=price")
    assert table(uri)["price"].to_pylist()[0] == 1.25
    dated = written.append_column("day", pa.array([0] * 40, pa.date32()))
    pyarrow.parquet.write_table(dated, tmp_path / "b.parquet")
    with pytest.raises(ConfigurationError, match="day: beside images or tensors, numbers and vectors were expected, n"):
        data.json("import", tmp_path / "b.parquet", uri, "--overwrite")


def test_labels_of_hugging_face_have_their_names(
    data: DataCommand, uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "a": {"dtype": "int64", "_type": "Value"}}
    rows = pa.table({"a": range(5), "label": [0, 1, 1, -1, 2]})
    described = rows.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(described, tmp_path / "a.parquet")
    found = data.json("import", tmp_path / "a.parquet", uri, "--split=train")
    assert found["statistics"]["splits"] == {"train": {"cat": 1, "dog": 2}}
    assert "2 of 5 rows have no label; they are left out" in caplog.text


def test_true_and_false_are_classes(data: DataCommand, uri: str, tmp_path: Path) -> None:
    path = write_csv(tmp_path, "a,y\n1,True\n2,false\n3,true\n")
    found = data.json("import", path, uri, "--split=train")
    assert found["statistics"]["splits"] == {"train": {"false": 1, "true": 2}}
    found = data.json("import", path, uri, "--overwrite", "--regression", "--split=train")
    assert found["statistics"]["splits"] == {"train": {"": 3}}


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_a_folder_of_images_to_validate_is_held_out(data: DataCommand, uri: str, tmp_path: Path, name: str) -> None:
    write_images(tmp_path / "raw" / "train", IMAGES[:30], NAMES[:30])
    write_images(tmp_path / "raw" / name, IMAGES[30:], NAMES[30:])
    found = data.json("import", tmp_path / "raw", uri)
    assert found["statistics"]["splits"] == {"train": {"cat": 15, "dog": 15}, "test": {"cat": 5, "dog": 5}}


@pytest.mark.parametrize("name", ["test1.csv", "val.csv", "validation-0.csv"])
def test_files_named_test_are_held_out(data: DataCommand, uri: str, tmp_path: Path, name: str) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "values.csv").write_text("a,y\n1,0\n2,1\n")
    (tmp_path / "raw" / name).write_text("a,y\n3,0\n")
    data.json("import", tmp_path / "raw", uri)
    assert {(a, split) for a, split in zip(*table(uri).select(["a", "split"]).to_pydict().values(), strict=True)} == {
        (1, "train"), (2, "train"), (3, "test"),
    }  # fmt: skip
    data.json("import", tmp_path / "raw", uri, "--append", "--split=train")
    assert sorted(table(uri)["split"].to_pylist()) == ["test", *["train"] * 5]


def test_equal_inputs_are_in_one_split_in_all_versions(data: DataCommand, uri: str, tmp_path: Path) -> None:
    for name, part in (("first", slice(0, 300)), ("second", slice(100, 600))):
        (tmp_path / name).mkdir()
        values = np.arange(600, dtype=np.float32)[part, np.newaxis]
        np.savez(tmp_path / name / "a.npz", x=values, y=np.zeros(len(values), np.int32))
    data.json("import", tmp_path / "first", uri, "--test_fraction=0.3")
    data.json("import", tmp_path / "second", uri, "--append", "--test_fraction=0.3")
    splits: dict[float, set[str]] = {}
    rows = table(uri)
    for (value,), split in zip(rows["x"].to_pylist(), rows["split"].to_pylist(), strict=True):
        splits.setdefault(value, set()).add(split)
    assert len(splits) == 600
    assert all(len(each) == 1 for each in splits.values())
    assert 120 < sum(each == {"test"} for each in splits.values()) < 240


def test_labels_outside_of_the_classes_are_skipped(data: DataCommand, uri: str, tmp_path: Path) -> None:
    write_images(tmp_path / "images", IMAGES, NAMES)
    data.json("import", tmp_path / "images", uri)
    png = (tmp_path / "images" / "cat" / "0000.png").read_bytes()
    labels = pa.array([0, 1, 2, -1], pa.int32())
    pyarrow.parquet.write_table(pa.table({"x": [png] * 4, "y": labels}), tmp_path / "more.parquet")
    found = data.json("import", tmp_path / "more.parquet", uri, "--append")
    assert (found["rows"], found["skipped"]) == (2, 2)
    assert found["first_skipped"] == [
        "more.parquet: row 2: the label is 2, but from 0 to 1 was expected",
        "more.parquet: row 3: the label is -1, but from 0 to 1 was expected",
    ]
    write_images(tmp_path / "others", IMAGES[:2], ["cat", "horse"])
    with pytest.raises(ConfigurationError, match="the class horse is not in the dataset, whose classes are cat, dog; "):
        data.json("import", tmp_path / "others", uri, "--append")


def test_a_dataset_that_exists_is_changed_only_on_demand(data: DataCommand, uri: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,y\n1,0\n2,1\n")
    data.json("import", tmp_path / "a.csv", uri, "--append")
    with pytest.raises(
        ConfigurationError, match=rf"^{uri} exists in version 1; add a version with --append .* or --overwrite .*\.$"
    ):
        data.json("import", tmp_path / "a.csv", uri)
    data.json("import", tmp_path / "a.csv", uri, "--append")
    data.json("import", tmp_path / "a.csv", uri, "--overwrite", "--note=again")
    assert [(each["rows"], each["note"]) for each in data.json("versions", uri)] == [
        (2, f"append: CSV files of {tmp_path}/a.csv"),
        (4, f"append: CSV files of {tmp_path}/a.csv"),
        (2, "again"),
    ]


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({}, [], "IDX files, .npz, .csv or .parquet files, or a folder of images for each class were expected"),
        ({"a.npz": b"", "b.csv": b""}, [], "has .npz files and CSV or Parquet files; give each a folder of its own"),
        ({"a.npz": b"no zip"}, [], "a.npz: the file is damaged or not .npz"),
        ({"train/x/a.png": b"", "other/x/b.png": b""}, [], "beside the folders train and test there is other; move it"),
        (
            {"train/x/a.png": b"", "val/x/b.png": b"", "test/x/c.png": b""},
            [],
            "it has the folders test and val, but one held-out split was expected; move the others away",
        ),
        ({"train/a.png": b"", "test/b.png": b""}, [], "a folder of images for each class was expected in train and te"),
        ({"a/b/c.png": b""}, [], "a/b: a folder of images has folders"),
        ({"a/c.png": b"", "a/d.png": b""}, [], "has no row that can be used; no version was written"),
        (
            {"a.csv": b"a,b\n1,2\n"},
            [],
            "has no column named target or label or y; name the column to predict with --target, one of a, b",
        ),
        ({"a.csv": b"a,b\n1,2\n"}, ["--target=c"], "target=c, but .* has no such column; name the"),
        ({"a.csv": b"a,y\n1,2\n"}, ["--inputs=c"], "inputs=c: .* has no such column; it has a, y"),
        ({"a.csv": b"a,y\n1,2\n2,2\n"}, [], "target=y: each training row has 2; there is nothing to learn"),
        ({"a.csv": b"y\n1\n2\n"}, [], "columns of inputs were expected beside y; add some"),
        ({"a.csv": b"a,split\n1,2\n"}, ["--target=split"], "--target=split: the dataset has the splits in the column"),
        ({"a.csv": b"a,y\n1,2\n", "b.csv": b"a,z\n1,2\n"}, [], "b.csv: it has no column y, as the first file has"),
        (
            {"a.csv": b"a,b,y\n1,2,3\n", "b.csv": b"b\n1\n", "c.csv": b"a,b\n1,2\n"},
            [],
            "b.csv: it has no column a, y; .*c.csv: it has no column y, as the first file has",
        ),
        ({"a.csv": b""}, [], "a.csv: the file is empty; a line with the names of the columns was expected"),
        ({"a.csv": b"a,b,a,y\n1,2,3,4\n"}, [], "a.csv: 2 columns are named a; give each its own name"),
        (
            {"a.csv": b"a,y\n1,yes\n"},
            ["--regression"],
            "regression: the target y of .* is a text, such as 'yes', but numbers were expected",
        ),
        ({"a.csv": b"a,y\n1,2\n"}, ["--delimiter=;"], "has no column named target or label or y"),
        ({"a.parquet": b"no"}, [], "a.parquet: the file cannot be read"),
        ({"train-images-idx3-ubyte": b"no"}, [], "images train, but not their labels"),
    ],
)
def test_a_source_that_cannot_be_used_is_refused_and_leaves_nothing(
    data: DataCommand, uri: str, tmp_path: Path, files: dict[str, bytes], options: list[str], message: str
) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=rf"{message}.*\.$") as caught:
        data.json("import", folder, uri, *options)
    assert len(str(caught.value).splitlines()) == 1
    assert not Path(uri).exists()


def test_a_source_that_is_not_there_is_refused(data: DataCommand, uri: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="SOURCE=nothing: there is no such file or folder"):
        data.json("import", "nothing", uri)
    with pytest.raises(ConfigurationError, match=r"SOURCE=s3:/bucket/raw: there is .*; download it first"):
        data.json("import", "s3://bucket/raw", uri)
    (tmp_path / "a.pdf").touch()
    with pytest.raises(ConfigurationError, match=r"SOURCE=.*a.pdf: no file has a name that ends in"):
        data.json("import", tmp_path / "a.pdf", uri)


def test_other_columns_are_not_appended(data: DataCommand, uri: str, tmp_path: Path) -> None:
    data.json("import", write_csv(tmp_path, "a,y\n1,0\n2,1\n"), uri)
    with pytest.raises(
        ConfigurationError, match=r"gives the columns a \(int64\), y \(double\), but .* has a .*, y \(int"
    ):
        data.json("import", write_csv(tmp_path, "a,y\n1,0.5\n2,1\n"), uri, "--append")


def test_a_tag_that_cannot_be_given_leaves_the_rows_and_says_so(data: DataCommand, uri: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,y\n1,0\n2,1\n")
    Path(uri).mkdir()
    (Path(uri) / "_refs").write_text("a file where Lance wants a folder")
    remedy = f"the rows are in version 1, so do not import them again; run \\S*trainer data tag {uri} best 1$"
    with pytest.raises(ConfigurationError, match=f"{uri} cannot be read: .*; {remedy}"):
        data.json("import", tmp_path / "a.csv", uri, "--tag=best")
    assert lance.dataset(uri).version == 1


def test_a_tag_is_given_to_the_new_version(data: DataCommand, uri: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,y\n1,0\n2,1\n")
    data.json("import", tmp_path / "a.csv", uri, "--tag=best")
    with pytest.raises(ConfigurationError, match=r"tag=best: version 1 of .* has this tag; .* move it with --force"):
        data.json("import", tmp_path / "a.csv", uri, "--append", "--tag=best")
    for wrong in ("12", ""):
        with pytest.raises(ConfigurationError, match=f"tag={wrong}: "):
            data.json("import", tmp_path / "a.csv", uri, "--append", f"--tag={wrong}")
    assert len(data.json("versions", uri)) == 1
    data.json("import", tmp_path / "a.csv", uri, "--append", "--tag=best", "--force")
    assert [each["tags"] for each in data.json("versions", uri)] == [[], ["best"]]


def test_a_batch_is_read_when_the_one_before_is_written(
    data: DataCommand, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    checked = check.Check._check

    def watch(self: check.Check, rows: source.Rows, pool: Any) -> Any:
        lengths.append(len(rows.batch))
        return checked(self, rows, pool)

    monkeypatch.setattr(check.Check, "_check", watch)
    (tmp_path / "a.csv").write_text("a,y\n" + "1,0\n2,1\n" * 2500)
    data.json("import", tmp_path / "a.csv", uri)
    assert lengths == [1000] * 5
