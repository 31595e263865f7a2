"""A model whose own code fails in mid-run: the task says so, and ends with a code that is not tried again."""

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


def look(images):
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
    return mlp(parameters, tf.ensure_shape(tf.numpy_function(look, [images], tf.float32), images.shape))
"""
SENTENCE = "the model's own code failed: RuntimeError: my data is bad (failing.py, line 17, in look)."
SETTINGS = ["--train_dir", "run", "--train_steps", "100000", "--steps_per_execution", "10", "--report_steps", "20"]


def write_model(folder: Path, culprits: list[int], kind: str = "python") -> str:
    """Make the model, which fails on workers of these indices."""
    file = folder / "failing.py"
    text = MODEL.lstrip().replace("CULPRITS", repr(culprits)).replace("KIND", repr(kind))
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize("culprits", [pytest.param([0, 1], id="both fail"), pytest.param([1], id="one fails")])
@pytest.mark.parametrize(
    "way",
    [
        pytest.param([], id="asynchronous"),
        pytest.param(["--sync_replicas"], id="synchronous"),
        pytest.param(["--sync_replicas", "--local_steps", "5"], id="local_steps"),
        pytest.param(["--strategy", "allreduce"], id="allreduce"),
    ],
)
def test_a_fault_in_the_model_ends_the_run_with_one_sentence(
    trainer: Trainer, way: list[str], culprits: list[int]
) -> None:
    model = write_model(trainer.folder, culprits)
    launcher = trainer.start("launch", "--workers", "2", "--model", model, *SETTINGS, *way)
    output, _ = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 1, output
    last = output.splitlines()[-1]
    found = re.fullmatch(r"worker (\d) failed for good: (.*) Its log is (.*)\.", last)
    assert found, output
    assert int(found[1]) in culprits
    assert found[2] == SENTENCE
    log = (trainer.folder / found[3]).read_text()
    assert log.splitlines()[-1] == f"trainer: {SENTENCE}"
    assert "at step 0 of" in log
    for line in ("looking for it", "beginning anew", "Traceback"):
        assert line not in log
    assert "starting again" not in output


@pytest.mark.parametrize(
    "way", [pytest.param([], id="single"), pytest.param(["--strategy", "mirrored"], id="mirrored")]
)
def test_a_fault_in_the_model_ends_a_single_process_with_one_sentence(trainer: Trainer, way: list[str]) -> None:
    code, output = trainer.run("train", "--model", write_model(trainer.folder, []), *SETTINGS, *way)
    assert code == 1
    assert output.splitlines()[-1] == f"trainer: {SENTENCE}"
    assert "Traceback" not in output


@pytest.mark.parametrize("way", ["--strategy=ps", "--strategy=allreduce"])
def test_an_op_of_the_model_that_fails_is_named(trainer: Trainer, way: str) -> None:
    model = write_model(trainer.folder, [], "op")
    code, output = trainer.run("launch", "--workers", "1", "--model", model, *SETTINGS, way)
    assert code == 1
    assert "the model's own code failed: indices = 1000 is not in [0, 10) (op GatherV2)." in output.splitlines()[-1]
    assert "Traceback" not in output


def test_a_setting_that_a_task_refuses_is_quoted_too(trainer: Trainer) -> None:
    (trainer.folder / "broken.py").write_text("import no_such_package\n")
    code, output = trainer.run("launch", "--workers", "1", "--model", "broken.py", "--train_dir", "run")
    assert code == 2
    last = output.splitlines()[-1]
    assert last.startswith("worker 0 failed for good: model: ")
    assert "no_such_package" in last
