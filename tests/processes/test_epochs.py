"""An epoch has each example once, whatever dies, and a run that is interrupted ends like one that is not."""

import signal
from pathlib import Path

import pytest

from benchmarks.faults import ledger_model
from tests.processes.trainers import PATIENCE, Trainer, step_in, wait_until
from trainer.data.leases import MOST_STEPS

LEDGER = Path(ledger_model.__file__)
EXAMPLES, EPOCHS, BATCH = 3000, 3, 5
PER_FILE = 50
FILES = f"""
import tensorflow as tf

from benchmarks.faults.ledger_model import model, test_data


def train_files(context):
    return [f"part-{{first}}" for first in range(0, {EXAMPLES}, {PER_FILE})]


def train_data(context, files):
    numbers = tf.data.TextLineDataset(files).map(lambda line: tf.strings.to_number(line, tf.int32))
    numbers = numbers.apply(tf.data.experimental.assert_cardinality({PER_FILE} * len(files)))
    return numbers.map(lambda number: (number[None], tf.fill([1], {EPOCHS}.0)))
"""
INTERRUPTED = """
import os
import pathlib
import signal

import keras
import numpy as np


class Interrupt(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (2, 1):
            self.interrupt(signal.SIGTERM)

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 4:
            self.interrupt(signal.SIGKILL)

    def interrupt(self, number):
        file = pathlib.Path(f"interrupted-{int(number)}")
        if "INTERRUPTED" in os.environ and not file.exists():
            file.touch()
            os.kill(os.getpid(), number)


def data(seed):
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(70, 4)).astype("float32")
    return inputs, inputs.sum(1, keepdims=True) + random.normal(size=(70, 1)).astype("float32")


def train_data(context):
    return data(0)


def test_data(context):
    return data(1)


def model():
    keras.utils.set_random_seed(1)
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    network.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return network


def fit_arguments():
    callbacks = [
        keras.callbacks.EarlyStopping(patience=5, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.5),
        keras.callbacks.CSVLogger("log.csv"),
        Interrupt(),
    ]
    return {"epochs": 40, "batch_size": 16, "callbacks": callbacks}
"""


@pytest.mark.parametrize(
    ("is_synchronous", "has_files", "lost"),
    [(False, False, [2]), (True, False, [0, 1, 2]), (True, True, [2])],
    ids=["asynchronous", "synchronous_and_all_are_lost", "synchronous_with_files"],
)
def test_each_example_is_taken_once_an_epoch_although_workers_are_lost(
    trainer: Trainer, is_synchronous: bool, has_files: bool, lost: list[int]
) -> None:
    """Then the run goes on with another number of workers."""
    if has_files:
        (trainer.folder / "mine.py").write_text(FILES)
        for first in range(0, EXAMPLES, PER_FILE):
            (trainer.folder / f"part-{first}").write_text("\n".join(map(str, range(first, first + PER_FILE))))
    words = [
        f"--model={'mine.py' if has_files else LEDGER}",
        "--train_dir=run",
        f"--batch_size={BATCH}",
        "--staleness_aware=false",
    ]
    words += [f"--sync_replicas={is_synchronous}", "--export=last"]
    environment = {"LEDGER": f"{EXAMPLES} {EPOCHS}", "STEP_SECONDS": "0.01"}
    launch = trainer.start("launch", *words, "--ps=1", "--workers=3", f"--epochs={EPOCHS - 1}", **environment)
    wait_until(lambda: step_in(trainer.folder / "run" / "logs" / "worker-2.log") > 50)
    for index in lost:
        trainer.task("worker", index).send_signal(signal.SIGKILL)
    output, _ = launch.communicate(timeout=PATIENCE)
    assert launch.returncode == 0, output
    found = trainer.launch(*words, "--ps=1", "--workers=2", f"--epochs={EPOCHS}", environment=environment)
    assert found["test_skipped"] == 0
    assert found["test_repeated"] * EXAMPLES <= MOST_STEPS * BATCH * len(lost)


def test_a_run_that_is_interrupted_ends_like_one_that_is_not(trainer: Trainer) -> None:
    logs = []
    for environment, ends in (({}, [0]), ({"INTERRUPTED": "1"}, [-signal.SIGTERM, -signal.SIGKILL, 0])):
        (trainer.folder / "mine.py").write_text(INTERRUPTED)
        for expected in ends:
            words = ["train", "--model=mine.py", f"--train_dir=run-{len(ends)}"]
            process = trainer.start(*words, **environment)
            output, _ = process.communicate(timeout=PATIENCE)
            code = process.returncode
            assert code in (expected, 128 - expected), output
        logs.append((trainer.folder / "log.csv").read_text())
        (trainer.folder / "log.csv").unlink()
    assert logs[0] == logs[1]
    assert len(logs[0].splitlines()) > 6
