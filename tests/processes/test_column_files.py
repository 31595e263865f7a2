"""Files with columns, from the file to predictions, by the commands of README."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from tests.processes.trainers import PATIENCE, Trainer

EXAMPLES = Path(__file__).parents[2] / "examples"
STREAM = (
    "import trainer.data.columns.files as files; files.IN_MEMORY_BYTES = 0; from trainer.cli import main; "
    "raise SystemExit(main())"
)
"""The trainer, which reads files of any size while it trains."""
MODEL = """
import keras

def model():
    inputs = {name: keras.Input((), name=name) for name in ("a", "b")}
    stacked = keras.ops.stack([inputs["a"], inputs["b"]], axis=1)
    network = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(stacked))
    network.compile(keras.optimizers.Adam(0.05), "binary_crossentropy", metrics=["accuracy"])
    return network
"""


def test_a_csv_file_becomes_a_model_and_predictions_with_ids(trainer: Trainer, tmp_path: Path) -> None:
    words = ("--data", EXAMPLES / "customers.csv", "--target", "churn", "--train_dir", tmp_path / "run")
    code, output = trainer.run("launch", *words)
    assert code == 0, output
    for line in ("customer_id  the id of a row", "since        date: days", "age          number, mean", "always no: "):
        assert line in output
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["best"]["test_auc"] > 0.65
    new = ("--data", EXAMPLES / "new_customers.csv", "--output", tmp_path / "predictions")
    code, output = trainer.run("models", "predict", tmp_path / "run", *new)
    assert code == 0, output
    with (tmp_path / "predictions" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (EXAMPLES / "new_customers.csv").open() as file:
        ids = [row["customer_id"] for row in csv.DictReader(file)]
    assert [row["customer_id"] for row in rows] == ids
    assert {row["prediction"] for row in rows} <= {"no", "yes"}
    assert len({row["probability_yes"] for row in rows}) > 10


def test_parquet_files_larger_than_memory_train_a_model_of_ones_own_and_a_run_goes_on(
    trainer: Trainer, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    random = np.random.default_rng(0)
    for name, rows in (("part-0", 3000), ("part-1", 3000), ("test", 500)):
        a, b = random.normal(size=(2, rows))
        columns = {"a": a, "b": b, "unused": b, "label": (a + b > 0).astype(int)}
        pa.parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet", row_group_size=400)
    words = ("train", "--model", "mine.py", "--data_dir", tmp_path, "--train_dir", "run", "--batch_size", "64")

    def train(epochs: int) -> str:
        process = trainer.python("-c", STREAM, *words, "--epochs", str(epochs))
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, output
        return output

    output = train(1)
    assert "6,000 examples, 500 held out, 2 classes, in batches of 64; 1 epochs are 94 steps" in output
    train(3)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["global_step"] == 3 * 94
    assert result["test_accuracy"] > 0.95
