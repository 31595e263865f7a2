"""A whole training has the logs of each epoch, and the weights at its end, that `fit` gives."""

import json
import warnings
from pathlib import Path
from typing import Any

import keras
import pytest

from tests.conformance import runner
from tests.conformance.runner import Reference
from tests.conformance.trainings import HEAD, TRAININGS, Training
from tests.processes.trainers import Trainer
from trainer import cli, config
from trainer.telemetry.metrics import Metrics
from trainer.training.context import TaskContext
from trainer.training.watch.watchdog import Watchdog

TOLERANCE = 2e-5


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if each.quick else [pytest.mark.long]) for name, each in TRAININGS.items()]
)
def test_a_training_is_that_of_fit(name: str, trainer: Trainer, reference: Reference) -> None:
    training = TRAININGS[name]
    ours, fits = trainer.folder / "mine.py", trainer.folder / "fit" / "mine.py"
    fits.parent.mkdir()
    for path in (ours, fits):
        path.write_text(f"{HEAD}\n{training.text}")
    reference.ask("train", path=fits, out=str(trainer.folder / "fit.npz"))
    run(training, trainer)
    wanted = reference.answer(trainer.folder / "fit.npz")
    export = max((trainer.folder / "run" / "export").iterdir(), key=lambda each: int(each.name))
    reference.ask("load", path=fits, export=export, batch_size=8, out=str(trainer.folder / "ours.npz"))
    found = reference.answer(trainer.folder / "ours.npz")
    assert runner.differences(found, wanted, TOLERANCE) == []
    expected, logs = (read(path.with_suffix(".logs")) for path in (fits, ours))
    if training.stops_at:  # the logs of the epoch in which the second process begins are those of its own steps
        expected, logs = expected[-1:], logs[-1:]
    assert [each.keys() for each in logs] == [each.keys() for each in expected]
    wrong = [runner.differences(*pair, TOLERANCE) for pair in zip(logs, expected, strict=True)]
    assert not any(wrong), (wrong, logs, expected)


def read(path: Path) -> list[dict[str, Any]]:
    """The logs that the callback of a model file has written."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(training: Training, trainer: Trainer) -> None:
    """Train `mine.py` in the folder: in this process, or by workers."""
    settings = {"export": "last", **training.settings}
    if training.launched:
        words = [f"--{name}={value}" for name, value in {**settings, "batch_size": 8 // training.learners}.items()]
        trainer.launch("--model=mine.py", "--train_dir=run", *training.launched, *words)
        return
    for steps in [{"train_steps": training.stops_at}, {"epochs": 3}] if training.stops_at else [{}]:
        keras.config.set_dtype_policy("float32")
        own = config.load_values(
            {**settings, **steps, "model": str(trainer.folder / "mine.py"), "train_dir": str(trainer.folder / "run")}
        )
        watchdog = Watchdog(own.stall_seconds, own.grace_seconds, save_seconds=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Keras says about the model is for its author
            assert cli._run_task(TaskContext(own, None, watchdog, Metrics("single", 0))) == 0
