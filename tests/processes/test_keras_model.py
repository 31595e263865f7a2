"""A Keras model on clusters of real processes. Plain Keras loads the result."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.processes.trainers import PATIENCE, Trainer

MODELS = Path(__file__).parents[2] / "examples" / "models"
EVALUATE = """
import json, sys
import keras
from trainer.data import digits
_, test = digits.load()
model = keras.saving.load_model(sys.argv[1])
model.compile(loss=model.loss, metrics=["accuracy"])
_, accuracy = model.evaluate(test.inputs, test.targets, verbose=0)
print(json.dumps(accuracy))
"""


@pytest.mark.long
def test_replicas_train_a_keras_model_that_keras_loads(trainer: Trainer) -> None:
    model = MODELS / "cnn_batchnorm.py"
    result = trainer.launch("--model", model, "--workers=2", "--ps=2", "--train_steps=1200", patience=2 * PATIENCE)
    assert result["test_accuracy"] > 0.97
    saved = trainer.folder / result["export"] / "model.keras"
    done = subprocess.run([sys.executable, "-c", EVALUATE, saved], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    exported = result["best"]["test_accuracy"]
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(exported, abs=0.003)


@pytest.mark.parametrize(
    ("model", "arguments", "metric", "limit"),
    [
        ("text_classifier.py", ["--ps=0", "--strategy=allreduce"], "test_auc", 0.8),
        pytest.param(
            "regression.py",
            ["--ps=1", "--sync_replicas", "--wire_dtype=bfloat16"],
            "test_mae",
            -0.7,
            marks=pytest.mark.long,
        ),
    ],
)
def test_replicas_train_on_data_of_the_models_own(
    trainer: Trainer, model: str, arguments: list[str], metric: str, limit: float
) -> None:
    """An area under the curve above the limit; an error below it."""
    result = trainer.launch("--model", MODELS / model, "--workers=2", "--train_steps=300", *arguments)
    assert result[metric] * (1 if limit > 0 else -1) > limit
    assert result["dataset"] == "train_data"


def test_a_model_of_plain_ops_trains_as_the_documentation_shows_it(trainer: Trainer) -> None:
    text = (MODELS.parents[1] / "docs" / "trainer.md").read_text(encoding="utf-8")
    model = trainer.folder / "mine.py"
    model.write_text(textwrap.dedent(text.partition("no hidden layer:\n\n")[2].partition("\n\n`")[0]))
    result = trainer.launch("--model", model, "--ps=1", "--workers=1", "--train_steps=500")
    assert result["test_accuracy"] > 0.8
