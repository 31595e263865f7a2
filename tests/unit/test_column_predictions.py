"""`trainer models predict` with files that are written in another way than those on which the model was trained."""

import csv
import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer import cli
from trainer.config import Settings
from trainer.problem.column_files import with_model

from .conftest import train_alone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras
]
ROWS = 100
START = datetime.date(2023, 1, 1)


def rows() -> list[dict[str, Any]]:
    """Rows with a date whose day is first, a number with a decimal comma, and a text."""
    return [
        {
            "customer_id": f"K{row}",
            "since": f"{START + datetime.timedelta(days=3 * row):%d/%m/%Y}",
            "fee": f"1,{row:03}",
            "city/place": ["Graz", "Wien"][row % 2],
            "churn": ["no", "yes"][row % 3 // 2],
        }
        for row in range(ROWS)
    ]


def write(file: Path, found: list[dict[str, Any]], delimiter: str = ";", without: str = "churn") -> Path:
    with file.open("w") as opened:
        names = [name for name in rows()[0] if name != without]
        writer = csv.DictWriter(opened, names, delimiter=delimiter, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(found)
    return file


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("run")
    write(folder / "rows.csv", rows(), without="")
    values: dict[str, Any] = {
        "data_dir": str(folder / "rows.csv"),
        "train_dir": str(folder),
        "target": "churn",
        "epochs": 1,
    }
    settings = with_model(Settings(**values, given=frozenset(values)))
    train_alone(settings)
    return folder


Predict = Callable[[Path], tuple[int, str, list[dict[str, str]]]]


@pytest.fixture
def predict(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Predict:
    """Runs the command; returns its exit code, what it says, and the predictions."""

    def start(data: Path) -> tuple[int, str, list[dict[str, str]]]:
        output = tmp_path / "out"
        code = cli.main(["models", "predict", str(run), "--data", str(data), "--output", str(output)])
        said = capsys.readouterr()
        with (output / "predictions.csv").open() as file:
            return code, said.err, [*csv.DictReader(file)]

    return start


def test_rows_mean_the_same_however_they_are_written(predict: Predict, tmp_path: Path) -> None:
    some = [row for row in rows() if int(row["since"][:2]) <= 12]  # no value says that the day is first
    _, _, expected = predict(write(tmp_path / "a.csv", rows()))
    found = {row["customer_id"]: row for row in expected}
    other = [{**row, "city/place": row["city/place"].upper()} for row in some]
    code, _, predictions = predict(write(tmp_path / "b.csv", other, ","))
    assert code == 0
    assert [float(row["probability_yes"]) for row in predictions] == pytest.approx(
        [float(found[row["customer_id"]]["probability_yes"]) for row in predictions], rel=1e-4
    )


def test_rows_without_ids_are_numbered(predict: Predict, tmp_path: Path) -> None:
    _, _, found = predict(write(tmp_path / "a.csv", rows(), without="customer_id"))
    assert [row["row"] for row in found] == [*map(str, range(ROWS))]


@pytest.mark.parametrize(
    ("name", "found", "sentence"),
    [
        ("a.csv", [{**rows()[0], "fee": each} for each in ("1,5", "2", "free")], "such as 'free' in row 2; correct it"),
        ("a.csv", [], "a.csv has no row; name another."),
        ("a.doc", rows(), "a.doc has no files with columns, which MODEL"),
    ],
)
def test_what_cannot_be_predicted_is_said(
    run: Path, name: str, found: Any, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / name, found)
    code = cli.main(["models", "predict", str(run), "--data", str(file), "--output", str(tmp_path / "out")])
    assert (code, sentence in capsys.readouterr().err) == (2, True)


LISTS = """
import keras
from keras import layers

def model():
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(10, 4, mask_zero=True)(ids))
    network = keras.Model({"ids": ids}, layers.Dense(1, activation="sigmoid")(x))
    network.compile("sgd", "binary_crossentropy")
    return network
"""


def test_lists_of_other_lengths_than_those_of_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lists.py").write_text(LISTS)

    def file(name: str, ids: list[list[int]]) -> Path:
        pq.write_table(pa.table({"ids": ids, "label": [row % 2 for row in range(len(ids))]}), tmp_path / name)
        return tmp_path / name

    values: dict[str, Any] = {
        "model": str(tmp_path / "lists.py"),
        "data_dir": str(file("train.parquet", [[1 + row % 9] * (1 + row % 4) for row in range(40)])),
        "train_dir": str(tmp_path / "run"),
        "train_steps": 2,
    }
    settings = with_model(Settings(**values, given=frozenset(values)))
    train_alone(settings)

    def predict(data: Path) -> tuple[int, str]:
        words = [str(tmp_path / "run"), "--data", str(data), "--output", str(tmp_path / "out")]
        return cli.main(["models", "predict", *words]), capsys.readouterr().err

    assert predict(file("short.parquet", [[1, 2], [2, 1], [5]]))[0] == 0
    found = pq.read_table(tmp_path / "out" / "predictions.parquet")["probability"].to_pylist()
    assert found[0] == pytest.approx(found[1], abs=1e-6)
    assert found[0] != pytest.approx(found[2], abs=1e-6)
    code, error = predict(file("long.parquet", [[1, 2, 3, 4, 5, 6]]))
    assert (code, error.count("\n")) == (2, 1)
    assert "takes lists of up to 4 elements, but one has 6" in error
