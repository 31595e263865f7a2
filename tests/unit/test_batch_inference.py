"""`trainer models predict` on the export of a trained run."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from trainer import cli
from trainer.config import Settings, load_values
from trainer.data import digits

from .conftest import train_alone
from .data_command import DataCommand

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on digits."""
    directory = tmp_path_factory.mktemp("run")
    settings = Settings(train_dir=str(directory), train_steps=200, batch_size=50, hidden_units=20)
    train_alone(settings)
    return directory


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Held-out digits as PNG files, in a folder for each class, and a hidden file."""
    _, test = digits.load()
    for index in range(300):
        folder = tmp_path / "pictures" / str(test.targets[index])
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.round(test.inputs[index, :, :, 0] * 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:03}.png")
    (tmp_path / "pictures" / ".hidden").write_text("no image")
    return tmp_path / "pictures"


Predict = Callable[..., tuple[int, str]]


@pytest.fixture
def predict(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Predict:
    """Runs the command; returns its exit code, and its error or what it prints."""

    def start(data: Path, model: Any = run, output: Path = tmp_path / "out", words: Any = ()) -> tuple[int, str]:
        code = cli.main(["models", "predict", str(model), "--data", str(data), "--output", str(output), *words])
        said = capsys.readouterr()
        assert bool(said.err) == bool(code)
        return code, said.err or said.out

    return start


def test_each_image_has_a_row_in_csv_and_parquet(predict: Predict, pictures: Path, tmp_path: Path) -> None:
    assert predict(pictures)[0] == 0
    with (tmp_path / "out" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == sorted(str(each.relative_to(pictures)) for each in pictures.rglob("*.png"))
    right = [row["prediction"] == row["file"].partition("/")[0] for row in rows]
    assert np.mean(right) > 0.8
    probabilities = np.array([[float(row[f"probability_{label}"]) for label in range(10)] for row in rows])
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-3)
    assert [str(label) for label in probabilities.argmax(axis=1)] == [row["prediction"] for row in rows]
    table = pq.read_table(tmp_path / "out" / "predictions.parquet")
    assert table.column_names == list(rows[0])
    assert table["file"].to_pylist() == [row["file"] for row in rows]
    assert np.allclose(table["probability"].to_numpy(), probabilities.max(axis=1), atol=1e-6)


def test_images_of_another_kind_are_converted(predict: Predict, pictures: Path, tmp_path: Path) -> None:
    (first,) = pictures.glob("*/000.png")
    larger = tmp_path / "larger"
    larger.mkdir()
    Image.open(first).resize((56, 56)).convert("RGB").save(larger / "a.jpg", quality=95)
    Image.open(first).save(larger / "b.png")
    assert predict(larger)[0] == 0
    found = pq.read_table(tmp_path / "out" / "predictions.parquet")["prediction"].to_pylist()
    assert found[0] == found[1]


@pytest.mark.parametrize("content", [b"", b"no image", None], ids=["empty", "text", "cut off"])
def test_a_damaged_image_is_skipped_counted_and_named_up_to_a_limit(
    predict: Predict, pictures: Path, tmp_path: Path, content: bytes | None
) -> None:
    (victim,) = pictures.glob("*/007.png")
    victim.write_bytes(victim.read_bytes()[:100] if content is None else content)
    code, errors = predict(pictures, words=["--max_skipped=0"])
    assert (code, errors.count("\n")) == (2, 1)
    assert str(victim) in errors
    assert not (tmp_path / "out").exists()
    code, text = predict(pictures)
    assert (code, text.count("\n")) == (0, 1)
    assert f"; 1 skipped: {victim}: " in text
    with (tmp_path / "out" / "predictions.csv").open() as file:
        found = [row["file"] for row in csv.DictReader(file)]
    present = sorted(str(each.relative_to(pictures)) for each in pictures.glob("*/*.png"))
    assert found == [each for each in present if not each.endswith("007.png")]


def test_a_folder_without_an_image_is_named(predict: Predict, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.md").write_text("no image")
    code, errors = predict(tmp_path / "texts")
    assert code == 2
    assert f"--data: {tmp_path / 'texts'} has no image that can be read" in errors


def test_an_absent_folder_model_or_output_is_named(predict: Predict, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for expected, (code, errors) in {
        "there is no ": predict(tmp_path / "absent"),
        "empty has no files": predict(tmp_path / "empty"),
        "nothing is not a model": predict(pictures, model=tmp_path / "nothing"),
        "file cannot be written": predict(pictures, output=tmp_path / "file"),
    }.items():
        assert (code, errors.count("\n")) == (2, 1), errors
        assert expected in errors


TABLE_MODEL = """
import keras
def spread(targets, outputs):
    return keras.ops.mean((keras.ops.cast(keras.ops.reshape(targets, [-1, 1]), "float32") - outputs) ** 2)
def model():
    network = keras.Sequential([keras.layers.Dense({units})])
    network.compile(keras.optimizers.Adam(0.05), {loss})
    return network
"""


def train_on_a_table(
    data: DataCommand, uri: str, tmp_path: Path, target: str, units: int, loss: str, train_steps: int = 60
) -> Path:
    """Import 200 rows, train on them, and return the table without its targets."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(200, 2)).round(4)
    labels = np.array(["no", "yes"])[(rows.sum(axis=1) > 0).astype(int)]
    lines = [f"{a},{b},{label},{a - b}" for (a, b), label in zip(rows, labels, strict=True)]
    (tmp_path / "all.csv").write_text("\n".join(["a,b,bought,difference", *lines]) + "\n")
    (tmp_path / "new.csv").write_text("\n".join(["a,b", *(f"{a},{b}" for a, b in rows)]) + "\n")
    data.text("import", tmp_path / "all.csv", uri, "--target", target, "--inputs", "a,b")
    (tmp_path / "net.py").write_text(TABLE_MODEL.replace("{units}", str(units)).replace("{loss}", loss))
    settings = load_values({
        "model": str(tmp_path / "net.py"), "dataset": "lance", "data_dir": uri, "train_dir": str(tmp_path / "run"),
        "train_steps": train_steps, "batch_size": 50,
    })  # fmt: skip
    train_alone(settings)
    return tmp_path / "new.csv"


def test_a_model_of_two_classes_by_one_output_predicts_above_a_threshold(
    data: DataCommand, uri: str, predict: Predict, tmp_path: Path
) -> None:
    loss = "keras.losses.BinaryCrossentropy(from_logits=True)"
    table = train_on_a_table(data, uri, tmp_path, "bought", 1, loss)
    taken = []
    for threshold in (0.5, 0.9):
        code, text = predict(table, tmp_path / "run", words=[f"--threshold={threshold}"])
        assert code == 0
        assert text.rstrip().endswith(f"; yes is predicted above a probability of {threshold:g}")
        found = pq.read_table(tmp_path / "out" / "predictions.parquet").to_pandas()
        assert [*found] == ["row", "prediction", "probability", "probability_no", "probability_yes"]
        assert np.allclose(found["probability_no"] + found["probability_yes"], 1)
        assert (found["prediction"] == np.where(found["probability_yes"] > threshold, "yes", "no")).all()
        own = np.where(found["prediction"] == "yes", found["probability_yes"], found["probability_no"])
        assert (found["probability"] == own).all()
        taken.append((found["prediction"] == "yes").sum())
    rows = np.loadtxt(table, delimiter=",", skiprows=1)
    assert ((rows.sum(axis=1) > 0) == (found["probability_yes"] > 0.5)).mean() > 0.9
    assert taken[1] < taken[0]
    code, text = predict(table, tmp_path / "run", words=["--threshold=2"])
    assert (code, "--threshold" in text) == (2, True)


def test_a_model_of_two_values_gives_both(data: DataCommand, uri: str, predict: Predict, tmp_path: Path) -> None:
    table = train_on_a_table(data, uri, tmp_path, "difference", 2, "spread", train_steps=5)
    code, text = predict(table, tmp_path / "run")
    assert code == 0, text
    found = pq.read_table(tmp_path / "out" / "predictions.parquet")
    assert found.column_names == ["row", "prediction_0", "prediction_1"]
    assert found["row"].to_pylist() == [*range(200)]
    assert (tmp_path / "out" / "predictions.csv").read_text().count("\n") == 201


def test_predictions_are_written_batch_by_batch(predict: Predict, pictures: Path, tmp_path: Path) -> None:
    """300 images are two batches; an earlier result stays if the command fails."""
    assert predict(pictures)[0] == 0
    before = (tmp_path / "out" / "predictions.parquet").read_bytes()
    with pq.ParquetFile(tmp_path / "out" / "predictions.parquet") as file:
        assert file.num_row_groups == 2
    (victim,) = pictures.glob("*/250.png")
    victim.write_bytes(b"")
    assert predict(pictures, words=["--max_skipped=0"])[0] == 2
    assert (tmp_path / "out" / "predictions.parquet").read_bytes() == before
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["predictions.csv", "predictions.parquet"]
