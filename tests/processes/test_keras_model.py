"""A Keras model on clusters of real processes. Plain Keras loads the result."""

import itertools
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tests.processes.trainers import PATIENCE, Trainer, step_in, wait_for_line, wait_until
from trainer.checkpoint.table_files import DynamicRows, StoredArrays
from trainer.kernels import library

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
        ("two_towers.py", ["--ps=2"], "test_recall_at_10", 0.1),
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
    """A share above the limit, which for the ten best of 200,000 is 0.00005 by chance; an error below it."""
    result = trainer.launch("--model", MODELS / model, "--workers=2", "--train_steps=300", *arguments)
    assert result[metric] * (1 if limit > 0 else -1) > limit
    assert result["dataset"] == "train_data"


@pytest.mark.parametrize(
    "model",
    ["dlrm.py", *(pytest.param(f"{each}.py", marks=pytest.mark.long) for each in ("wide_and_deep", "deepfm"))],
)
def test_tables_move_to_another_number_of_parameter_servers(trainer: Trainer, model: str) -> None:
    settings: list[str | Path] = ["--model", MODELS / model, "--workers=2", "--train_dir=run"]
    before = trainer.launch(*settings, "--ps=2", "--sync_replicas=false", "--train_steps=200")
    after = trainer.launch(*settings, "--ps=1", "--train_steps=400")
    assert "of_user/embeddings (300,000 x" in (trainer.folder / "run" / "logs" / "worker-0.log").read_text()
    assert after["global_step"] >= 400  # as asynchronous as the first run
    assert 0.65 < before["test_auc"] < after["test_auc"]


def ids_of(checkpoint: str) -> set[int]:
    """The ids that have rows in the example's table of items."""
    rows = StoredArrays(checkpoint).rows("of_item/embeddings")
    assert isinstance(rows, DynamicRows)
    return {*rows.ids.tolist()}


@pytest.mark.skipif(library.load() is None, reason="there is no compiler of C++")
def test_a_table_that_grows_survives_a_lost_server_and_moves_to_another_number(trainer: Trainer) -> None:
    settings: list[str | Path] = ["--model", MODELS / "growing.py", "--workers=2", "--train_dir=run"]
    launched = trainer.start("launch", *settings, "--ps=2", "--train_steps=3000", "--save_steps=200")
    log = trainer.folder / "run" / "logs" / "worker-0.log"
    wait_until(lambda: step_in(log) > 500 or launched.poll())
    trainer.task("ps", 1).kill()
    assert launched.wait(2 * PATIENCE) == 0
    wait_for_line(log, "restored", "the tables on ps 0 stay as they are")
    wait_for_line(log, "of_item/embeddings has rows for")
    before = ids_of(str(trainer.folder / "run" / "model.ckpt-3000"))
    after = trainer.launch(*settings, "--ps=1", "--sync_replicas=false", "--train_steps=3200")
    kept = before & ids_of(str(trainer.folder / "run" / f"model.ckpt-{after['global_step']}"))
    assert len(kept) > 0.9 * len(before), "a few had to leave for new ones"
    assert after["test_auc"] > 0.7


STOPS = """
import keras

class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        self.model.optimizer.learning_rate = 0.01
        self.model.stop_training = epoch == 2 and "val_accuracy" in logs

def model(input_shape, classes):
    layers = [keras.layers.Input(input_shape), keras.layers.Flatten(), keras.layers.Dense(classes)]
    network = keras.Sequential(layers)
    network.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return network

def fit_arguments():
    return {"epochs": 100, "callbacks": [Stop()]}
"""


@pytest.mark.parametrize(
    "roles",
    [["--ps=1", "--evaluator"], pytest.param(["--strategy=allreduce"], marks=pytest.mark.long)],
    ids=["ps", "allreduce"],
)
def test_a_callback_ends_the_run_on_all_replicas(trainer: Trainer, roles: list[str]) -> None:
    """The same command does not train it further."""
    path = trainer.folder / "mine.py"
    path.write_text(STOPS)
    arguments: list[str | Path] = ["--model", path, "--workers=2", *roles, "--train_dir", trainer.folder / "run"]
    result = trainer.launch(*arguments)
    assert result["stopped_before"] == 800
    assert 24 <= result["global_step"] < 800
    assert trainer.launch(*arguments)["global_step"] == result["global_step"]


def test_a_model_of_plain_ops_trains_as_the_documentation_shows_it(trainer: Trainer) -> None:
    text = (MODELS.parents[1] / "docs" / "trainer.md").read_text(encoding="utf-8")
    model = trainer.folder / "mine.py"
    model.write_text(textwrap.dedent(text.partition("no hidden layer:\n\n")[2].partition("\n\n`")[0]))
    result = trainer.launch("--model", model, "--ps=1", "--workers=1", "--train_steps=500")
    assert result["test_accuracy"] > 0.8


EPOCHS = """
import keras
import numpy as np

def data(seed):
    random = np.random.default_rng(seed)
    x = random.normal(size=(200, 4)).astype("float32")
    return x, (x.sum(1) > 0).astype("float32")

def train_data(context):
    return data(0)

def test_data(context):
    return data(1)

def model():
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")])
    network.compile(keras.optimizers.SGD(0.5), "binary_crossentropy", metrics=["accuracy"])
    return network

class Once(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 1

def fit_arguments():
    return {"epochs": 3, "batch_size": 50, "callbacks": [Once()]}
"""


def test_each_command_that_a_launch_prints_runs(trainer: Trainer) -> None:
    """Of a model whose file has the epochs, and a callback that ends the run after two of them."""
    (trainer.folder / "mine.py").write_text(EPOCHS)
    words = ["launch", "--model", "mine.py", "--ps", "0", "--workers", "1", "--train_dir"]
    assert trainer.run(*words, "first")[0] == 0
    code, output = trainer.run(*words, "second")
    assert code == 0
    commands = [line.partition("#") for line in output.partition("\nnext:\n")[2].splitlines() if "#" in line]
    found = {purpose.strip(): command.split()[1:] for command, _, purpose in commands}
    del found["show the curves"]  # it serves until it is stopped
    assert found["train on from here"][-2:] == ["--epochs", "15"]
    assert [*found] == ["train on from here", "a page on the run", "with the last run on this data"]
    before = json.loads((trainer.folder / "second" / "result.json").read_text())
    assert (before["global_step"], before["stopped_before"]) == (8, 12)
    for words in found.values():
        code, output = trainer.run(*words)
        assert code == 0, output
    after = json.loads((trainer.folder / "second" / "result.json").read_text())
    assert after["global_step"] == 15 * 4


COUNTING = """\
import pathlib

import keras
import numpy as np
from keras import layers


def train_data(context):
    return np.eye(50, dtype="float32"), np.zeros((50, 1), "float32")


def model():
    # An example adds 1 / n to its own weight in a step with n examples.
    network = keras.Sequential([layers.Input((50,)), layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    network.compile(keras.optimizers.SGD(1.0), lambda wanted, found: -found)
    return network


class Epochs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        with pathlib.Path("epochs").open("a") as file:
            file.write(f"{epoch} ")


def fit_arguments():
    return {"callbacks": [Epochs()], "validation_data": train_data(None), "batch_size": 4}
"""


def test_other_numbers_of_workers_take_what_is_left_of_an_epoch(trainer: Trainer) -> None:
    (trainer.folder / "mine.py").write_text(COUNTING)
    words = ["--model=mine.py", "--train_dir=run", "--export=last"]
    trainer.launch(*words, "--workers=2", "--train_steps=10")  # 24 examples of the second epoch
    found = trainer.launch(*words, "--workers=3", "--epochs=3")
    assert found["global_step"] == 10 + 3 + 5
    assert (trainer.folder / "epochs").read_text().split() == ["0", "1", "2"]
    stored = StoredArrays(str(trainer.folder / "run" / "model.ckpt-18"))
    (weights,) = (stored.whole(name) for name in stored.names if name.endswith("/kernel"))
    # Each step has as many examples as its learners take, but for the last one of an epoch.
    once = [sum(steps) for steps in itertools.product((1 / 8, 1 / 2), (1 / 8, 1 / 12, 1 / 2), (1 / 12, 1 / 2))]
    distances = np.abs(weights - np.array(once)).min(axis=1)
    assert distances.max() < 1e-5
    assert weights.sum() == pytest.approx(10 + 3 + 5, abs=1e-3)


def test_all_replicas_of_a_group_take_the_same_steps_after_a_change_of_their_number(trainer: Trainer) -> None:
    """The last step, 116, is known to the chief alone until they join it: the others would choose longer executions."""
    (trainer.folder / "mine.py").write_text(COUNTING)
    words = ["--model=mine.py", "--train_dir=run", "--strategy=allreduce", "--export=last"]
    trainer.launch(*words, "--workers=2", "--train_steps=73")  # ten epochs of 7 steps, and 24 examples
    found = trainer.launch(*words, "--workers=3", "--epochs=19")
    assert found["global_step"] == 73 + 3 + 8 * 5
    assert (trainer.folder / "epochs").read_text().split() == [str(epoch) for epoch in range(19)]
    stored = StoredArrays(str(trainer.folder / "run" / "model.ckpt-116"))
    (weights,) = (stored.whole(name) for name in stored.names if name.endswith("/kernel"))
    assert weights.sum() == pytest.approx(116, abs=1e-2)
