"""A CSV file with text, from the import to predictions: its class names and columns are in all that is written."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer import cli
from trainer.config import Settings, load_values
from trainer.datasets import commands
from trainer.datasets.importing import Progress
from trainer.export import export_folder
from trainer.serving import rest_v1, sources
from trainer.serving.predictor import Predictor

from .conftest import train_alone

pytestmark = pytest.mark.slow

COUNTRIES, MEDALS = ["KEN", "NOR", "USA"], ["gold", "none", "silver"]


def write(path: Path, rows: int) -> Path:
    """A table whose medals follow from the country and the score."""
    random = np.random.default_rng(rows)
    lines = ["age,country,score,medal"]
    for _ in range(rows):
        country, score = int(random.integers(3)), random.normal()
        medal = MEDALS[2] if abs(score) < 0.5 else MEDALS[country % 2]
        lines.append(f"{random.integers(18, 40)},{COUNTRIES[country]},{score:.3f},{medal}")
    path.write_text("\n".join([*lines, ""]))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the packaged network on such a table."""
    folder = tmp_path_factory.mktemp("run")
    words = ["import", str(write(folder / "medals.csv", 1000)), str(folder / "medals.lance"), "--target=medal"]
    commands.run(commands.parser().read(words), Progress())
    settings = Settings(
        dataset="lance",
        data_dir=str(folder / "medals.lance"),
        train_dir=str(folder / "run"),
        epochs=20,
    )
    train_alone(settings)
    return folder / "run"


@pytest.fixture
def export(run: Path) -> Path:
    found = export_folder.newest(run / "export")
    assert found
    return found


Models = Callable[..., tuple[int, str]]


@pytest.fixture
def models(capsys: pytest.CaptureFixture[str]) -> Models:
    """Runs `trainer models …`; returns its exit code, and its error or what it prints."""

    def start(*words: str | Path) -> tuple[int, str]:
        code = cli.main(["models", *map(str, words)])
        said = capsys.readouterr()
        return code, said.err or said.out

    return start


def test_the_result_and_the_export_name_classes_and_columns(run: Path, export: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert result["test_accuracy"] > 0.9
    data = json.loads((export / "data.json").read_text())
    for found in (result, data):
        assert found["classes"] == MEDALS
        assert found["baseline"]["what"] == "always gold"
    kinds = {each["name"]: (each["kind"], each["categories"]) for each in data["plan"]["inputs"]}
    assert kinds == {"age": ("number", []), "country": ("category", COUNTRIES), "score": ("number", [])}
    assert "classes" not in json.loads((run / "run.json").read_text())  # other names do not end a run
    facts = {"dataset", "dataset_digest", "dataset_uri", "dataset_version", "model", "output"}
    assert set(sources.read_data(export)) == facts


def test_the_rows_of_a_table_are_predicted(models: Models, run: Path, tmp_path: Path) -> None:
    table = write(tmp_path / "new.csv", 200)
    with table.open() as file:
        expected = [row["medal"] for row in csv.DictReader(file)]
    table.write_text(table.read_text().replace("NOR", "Nor") + "20,XXX,1.5,gold\n,nor,,gold\n1,2\n")
    code, said = models("predict", run, "--data", table, "--output", tmp_path / "out")
    assert code == 0
    assert said == (
        f"{tmp_path}/out: the predictions of 202 rows in predictions.csv and predictions.parquet; 1 skipped: new.csv: "
        "2 columns, but the header has 4: 1,2\n"
    )
    with (tmp_path / "out" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["row", "prediction", "probability", *(f"probability_{each}" for each in MEDALS)]
    assert [row["row"] for row in rows] == [str(number) for number in range(202)]
    assert np.mean([row["prediction"] == each for row, each in zip(rows, expected, strict=False)]) > 0.9


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("age,country\n1,NOR\n", "--data: {path} has no column score, which MODEL: the model {run} takes; add it."),
        ("country\nNOR\n", "--data: {path} has no column age, score, which MODEL: the model {run} takes; add them."),
        (
            "age,country,score\nold,NOR,1\n",
            "{path}: age: numbers were expected, not string, such as 'old' in row 0; correct it, or train without it "
            "by --exclude.",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    models: Models, run: Path, tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "new.csv"
    path.write_text(text)
    code, said = models("predict", run, "--data", path, "--output", tmp_path / "out")
    assert (code, said) == (2, f"trainer: {sentence.format(path=path, run=run)}\n")


REGRESSION = """
import keras

def model(input_shape):
    network = keras.Sequential([keras.Input(input_shape), keras.layers.Dense(1)])
    network.compile(keras.optimizers.Adam(0.05), "mse")
    return network
"""


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in Keras
def test_values_of_the_rows_of_a_table_are_predicted(models: Models, tmp_path: Path) -> None:
    table, model = tmp_path / "t.csv", tmp_path / "mine.py"
    table.write_text("a,b,y\n" + "".join(f"{n % 3},{n % 5},{n % 3 + 2 * (n % 5)}\n" for n in range(300)))
    words = ["import", str(table), str(tmp_path / "t.lance"), "--regression", "--test_fraction=0.3"]
    commands.run(commands.parser().read(words), Progress())
    model.write_text(REGRESSION)
    settings = load_values({
        "model": str(model), "dataset": "lance", "data_dir": str(tmp_path / "t.lance"),
        "train_dir": str(tmp_path / "run"), "train_steps": 600, "batch_size": 50,
    })  # fmt: skip
    train_alone(settings)
    code, _ = models("predict", tmp_path / "run", "--data", table, "--output", tmp_path / "out")
    assert code == 0
    with (tmp_path / "out" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["row", "prediction"]
    assert [float(row["prediction"]) for row in rows[:4]] == pytest.approx([0, 3, 6, 6], abs=0.2)


def test_a_model_of_something_else_takes_no_table(models: Models, tmp_path: Path) -> None:
    settings = Settings(train_dir=str(tmp_path / "digits"), train_steps=10)
    train_alone(settings)
    table = write(tmp_path / "new.csv", 3)
    code, said = models("predict", tmp_path / "digits", "--data", table, "--output", tmp_path / "out")
    assert (code, said) == (
        2,
        f"trainer: MODEL: the model {tmp_path}/digits does not take columns of a table; name a model that was trained "
        "on files with columns.\n",
    )


def test_pages_have_the_names_of_the_classes(models: Models, run: Path, export: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["report", str(run), "--output", str(page)]) == 0
    assert "".join(f'<th scope="col">{each}</th>' for each in MEDALS) in page.read_text()
    other = tmp_path / "7"
    other.symlink_to(export)
    code, _ = models("compare", run, other, "--html", page)
    assert code == 0


def test_a_response_has_the_names_of_the_classes(export: Path) -> None:
    predictor = Predictor(export)
    request = rest_v1.parse({"instances": [{"age": 20, "country": "NOR", "score": 2.0}]}, predictor.inputs)
    response: dict[str, Any] = rest_v1.respond(predictor.predict(request.values), request, predictor.classes)
    assert response["classes"] == MEDALS
    assert len(response["predictions"][0]) == len(MEDALS)
