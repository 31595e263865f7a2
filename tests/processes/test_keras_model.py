"""A Keras model on clusters of real processes. Plain Keras loads the result."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.trainers import PATIENCE, Trainer

MODELS = Path(__file__).parents[2] / "examples" / "models"
EVALUATE = """
import json, sys
import keras
from trainer.data import datasets
test = datasets.load("digits", None, False).test
model = keras.saving.load_model(sys.argv[1])
model.compile(loss=model.loss, metrics=["accuracy"])
_, accuracy = model.evaluate(test.images, test.labels, verbose=0)
print(json.dumps(accuracy))
"""


@pytest.mark.parametrize(
    "arguments",
    [["--ps=2"], ["--ps=1", "--sync_replicas"], ["--ps=0", "--strategy=allreduce"]],
    ids=["asynchronous", "synchronous", "allreduce"],
)
def test_replicas_train_a_keras_model_that_keras_loads(trainer: Trainer, arguments: list[str]) -> None:
    model = MODELS / "cnn_batchnorm.py"
    result = trainer.launch("--model", model, "--workers=2", "--train_steps=500", *arguments)
    assert result["test_accuracy"] > 0.8
    saved = trainer.folder / result["export"] / "model.keras"
    done = subprocess.run([sys.executable, "-c", EVALUATE, saved], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(result["test_accuracy"], abs=0.003)
