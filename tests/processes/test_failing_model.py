"""A model whose code fails during a run: the task reports the error and exits with a permanent code."""

import json
import re
from pathlib import Path

import pytest

from tests.processes.trainers import PATIENCE, Trainer

MODEL = """
import json
import os

import numpy as np

from trainer.models.mlp import parameters
from trainer.models.mlp import logits as mlp
from trainer.tensorflow import tf

task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
seen = [0]


def check(images):
    seen[0] += 1
    if seen[0] > 60 and task.get("index") in (None, *CULPRITS):
        raise RuntimeError("my data is bad")
    return images


def count(images):
    seen[0] += 1
    return np.int32(1000 if seen[0] > 60 else 0)


def logits(parameters, images):
    if KIND == "op":
        number = tf.ensure_shape(tf.numpy_function(count, [images], tf.int32), [])
        with tf.device("/CPU:0"):
            return mlp(parameters, images) + tf.gather(tf.zeros([10]), number)
    return mlp(parameters, tf.ensure_shape(tf.numpy_function(check, [images], tf.float32), images.shape))
"""
SENTENCE = "the model's own code failed: RuntimeError: my data is bad (failing.py, line 17, in check)."
SETTINGS = ["--train_dir", "run", "--train_steps", "100000", "--steps_per_execution", "10", "--report_steps", "20"]
ASYNCHRONOUS = ["--sync_replicas=false"]
LOCAL_STEPS, ALLREDUCE = ["--sync_replicas", "--local_steps", "5"], ["--strategy", "allreduce"]


def write_model(folder: Path, culprits: list[int], kind: str = "python") -> str:
    """Write a model that fails on the workers with these indices."""
    file = folder / "failing.py"
    text = MODEL.lstrip().replace("CULPRITS", repr(culprits)).replace("KIND", repr(kind))
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize(
    ("options", "culprits"),
    [
        pytest.param(ASYNCHRONOUS, [0, 1], id="asynchronous, both workers fail", marks=pytest.mark.long),
        pytest.param(ASYNCHRONOUS, [1], id="asynchronous, one worker fails"),
        pytest.param(["--sync_replicas"], [0, 1], id="synchronous, both workers fail", marks=pytest.mark.long),
        pytest.param(["--sync_replicas"], [1], id="synchronous, one worker fails", marks=pytest.mark.long),
        pytest.param(LOCAL_STEPS, [0, 1], id="local steps, both workers fail", marks=pytest.mark.long),
        pytest.param(LOCAL_STEPS, [1], id="local steps, one worker fails", marks=pytest.mark.long),
        pytest.param(ALLREDUCE, [0, 1], id="all-reduce, both workers fail"),
        pytest.param(ALLREDUCE, [1], id="all-reduce, one worker fails", marks=pytest.mark.long),
    ],
)
def test_a_fault_in_the_model_ends_the_run_with_one_sentence(
    trainer: Trainer, options: list[str], culprits: list[int]
) -> None:
    model = write_model(trainer.folder, culprits)
    launcher = trainer.start("launch", "--workers", "2", "--model", model, *SETTINGS, *options)
    output, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 1, output
    last = output.splitlines()[-1]
    found = re.fullmatch(r"worker (\d) failed for good: (.*) Its log is (.*)\.", last)
    assert found, output
    assert int(found[1]) in culprits
    assert found[2] == SENTENCE
    log = (trainer.folder / found[3]).read_text()
    assert log.splitlines()[-1] == f"trainer: {SENTENCE}"
    assert len(re.findall(r" at step \d+ of ", log)) == 1
    for line in ("reconnecting", "restarting", "\nTraceback"):
        assert line not in log
    assert "starting again" not in output
    assert "continue with" not in output


def test_a_fault_in_the_model_ends_a_single_process_with_one_sentence(trainer: Trainer) -> None:
    code, output = trainer.run("train", "--model", write_model(trainer.folder, []), *SETTINGS)
    assert code == 1
    assert output.splitlines()[-1] == f"trainer: {SENTENCE}"
    assert "\nTraceback" not in output


@pytest.mark.parametrize("options", ["--strategy=ps", pytest.param("--strategy=allreduce", marks=pytest.mark.long)])
def test_a_failing_op_of_the_model_is_named(trainer: Trainer, options: str) -> None:
    model = write_model(trainer.folder, [], "op")
    code, output = trainer.run("launch", "--workers", "1", "--model", model, *SETTINGS, options)
    assert code == 1
    assert "the model's own code failed: indices = 1000 is not in [0, 10) (op GatherV2)." in output.splitlines()[-1]
    assert "\nTraceback" not in output


@pytest.mark.long
def test_an_invalid_setting_of_a_task_is_quoted(trainer: Trainer) -> None:
    (trainer.folder / "broken.py").write_text("import no_such_package\n")
    code, output = trainer.run("launch", "--workers", "1", "--model", "broken.py", "--train_dir", "run")
    assert code == 2
    last = output.splitlines()[-1]
    assert last.startswith("worker 0 failed for good: model=")
    assert "no_such_package" in last


FAILS_ON_HELD_OUT_DATA = """
import keras
import numpy as np
from keras import layers

def train_data(context):
    return np.arange(8, dtype="int32")[:, None], np.arange(8) % 2

def test_data(context):
    return np.full((4, 1), 8, "int32"), np.arange(4) % 2  # an id that the table lacks

def model():
    ids = layers.Input((1,), dtype="int32")
    return keras.Sequential([ids, layers.Embedding(8, 4), layers.Flatten(), layers.Dense(2)])
"""


def test_what_was_trained_is_exported_if_only_the_evaluation_at_the_end_fails(trainer: Trainer) -> None:
    (trainer.folder / "mine.py").write_text(FAILS_ON_HELD_OUT_DATA)
    code, output = trainer.run("train", "--model=mine.py", "--train_dir=run", "--train_steps=1")
    assert code == 1
    assert "fails on the held-out data" in output.splitlines()[-1]
    result = json.loads((trainer.folder / "run" / "result.json").read_text())
    assert result["state"] == "failed"
    assert (trainer.folder / result["export"] / "model.keras").is_file()
