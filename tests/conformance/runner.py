"""Trains a model file by the trainer, in this process, and compares the run with what plain Keras does."""

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np

from tests.conformance.row import Row
from trainer import cli, config
from trainer.errors import EXIT_CONFIGURATION
from trainer.run_directory import curves
from trainer.telemetry.metrics import Metrics
from trainer.training.context import TaskContext
from trainer.training.watch.watchdog import Watchdog

Arrays = dict[str, Any]


class Reference:
    """The process of plain Keras."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.reference"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def ask(self, request: str, **arguments: Any) -> None:
        """Send a request, whose answer `answer` reads."""
        assert self._process.stdin
        values = {name: str(value) if isinstance(value, Path) else value for name, value in arguments.items()}
        self._process.stdin.write(json.dumps({"do": request, **values}) + "\n")
        self._process.stdin.flush()

    def answer(self, out: Path) -> Arrays:
        """The arrays of the oldest request.

        Raises:
            ReferenceError: Keras failed.
        """
        assert self._process.stdout
        line = self._process.stdout.readline()
        if failure := json.loads(line) if line else "the process has ended":
            raise ReferenceError(failure)
        with np.load(out) as found:
            return {name.replace("|", "/"): found[name] for name in found.files}

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


class ReferenceError(Exception):  # noqa: A001 - Python's own is for weak references
    """Plain Keras failed."""


@dataclass(frozen=True)
class Run:
    """A run of the trainer."""

    folder: Path
    code: int
    sentence: str
    """The last line on stderr, without the names of the program and of the model file."""
    has_begun: bool
    """Whether it has come to its steps."""
    tables: str = ""
    """The sentence of the log about tables."""

    def arrays(self) -> Arrays:
        """The curves of training, and the last values of the held-out split."""
        found = curves.read_below(self.folder)
        return {name: curve.values[-1] if "test/" in name else curve.values for name, curve in found.items()}

    @property
    def export(self) -> Path:
        """The folder of the exported model."""
        (found,) = (self.folder / "export").iterdir()
        return found


def settings(row: Row) -> dict[str, str]:
    """The settings of a row's run, which reports each step."""
    steps = {"train_steps": str(row.steps), "report_steps": "1", "steps_per_execution": "1"}
    own = {} if row.table_rows is None else {"table_rows": str(row.table_rows)}
    return {**steps, **own, "batch_size": str(row.batch_size), "export": "last"}


def train(path: Path, folder: Path, row: Row) -> Run:
    """Train a model file as `trainer train` does, without its handlers of signals."""
    own = config.load_values({**settings(row), "model": str(path), "train_dir": str(folder)})
    watchdog = Watchdog(own.stall_seconds, own.grace_seconds, save_seconds=1)
    errors = io.StringIO()
    keras.config.set_dtype_policy("float32")
    with _log_lines() as lines, contextlib.redirect_stderr(errors), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Keras says about the model is for its author
        code = cli._run_task(TaskContext(own, None, watchdog, Metrics("single", 0)))
    *_, last = errors.getvalue().splitlines() or [""]
    sentence = last.removeprefix("trainer: ").replace(f"model={path}: ", "").replace(str(path), path.name)
    tables = next((line for line in lines if line.startswith("tables, ")), "")
    return Run(folder, code, sentence, any(line.startswith("at step 0") for line in lines), tables)


@contextlib.contextmanager
def _log_lines() -> Iterator[list[str]]:
    lines: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("trainer")
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.setLevel(level)
    logger.removeHandler(handler)


def differences(found: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float) -> list[str]:
    """What differs, in a sentence for each array. An array that is expected must be found."""
    wrong = []
    for name, wanted in expected.items():
        if name not in found:
            wrong.append(f"{name} is missing")
        elif np.shape(found[name]) != np.shape(wanted):
            wrong.append(f"{name} has the shape {np.shape(found[name])}, not {np.shape(wanted)}")
        elif (distance := _distance(found[name], wanted)) > tolerance:
            wrong.append(f"{name} differs by {distance:.1e}")
    return wrong


SMALL = 1e-2
"""Smaller values may be the rounding of a gradient that is 0, such as that of a bias before BatchNormalization."""


def _distance(found: Any, wanted: Any) -> float:
    """The largest difference of two arrays, relative to the largest value."""
    found, wanted = _wide(found), _wide(wanted)
    if not np.array_equal(np.isfinite(found), np.isfinite(wanted)):
        return np.inf
    kept = np.isfinite(wanted)
    scale = max(SMALL, float(np.abs(wanted[kept]).max(initial=0)))
    return float(np.abs(found - wanted)[kept].max(initial=0)) / scale


def _wide(found: Any) -> Any:
    """The array in float64. A file of NumPy's has no type for bfloat16, only the two bytes."""
    array = np.asarray(found)
    return (array.view(ml_dtypes.bfloat16) if array.dtype.kind == "V" else array).astype(np.float64)


def softmax(logits: Any) -> Any:
    """The probabilities of logits."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def outcome(
    row: Row, name: str, folder: Path, reference: Reference, train: Callable[[Path, Path, Row], Run] = train
) -> str:
    """Train a row by plain Keras and by the trainer.

    Returns:
        The sentence with which the trainer refuses the row before the first step, what differs, or "" if nothing does.

    Raises:
        ReferenceError: Keras failed.
    """
    path, fitted_file, loaded_file = (folder / file for file in (f"{name}.py", "fitted.npz", "loaded.npz"))
    path.write_text(row.text.replace("{name}", name))
    reference.ask("fit", path=path, steps=row.steps, batch_size=row.batch_size, out=str(fitted_file))
    run = train(path, folder / "run", row)
    fitted = reference.answer(fitted_file)
    if run.code == EXIT_CONFIGURATION and not run.has_begun:
        return run.sentence
    if run.code:
        return f"exit code {run.code}: {run.sentence}"
    reference.ask("load", path=path, export=run.export, batch_size=row.batch_size, out=str(loaded_file))
    return "; ".join(compare(row, run, fitted, reference.answer(loaded_file)))


def compare(row: Row, run: Run, fitted: Arrays, loaded: Arrays) -> list[str]:
    """What differs between a run of the trainer and `fit`."""
    served = {name.removeprefix("served/"): value for name, value in loaded.items() if name.startswith("served/")}
    predicted = {name: value for name, value in loaded.items() if name.startswith("prediction/")}
    if list(served) == ["probabilities"]:
        (given,) = predicted.values()
        is_probability = np.allclose(given.sum(axis=-1), 1, atol=1e-3) and given.min() >= 0
        expected = {"probabilities": given if is_probability else softmax(given)}
    else:
        expected = {name.removeprefix("prediction/"): value for name, value in predicted.items()}
    wrong = [f"SavedModel: {each}" for each in differences(served, expected, row.tolerance)]
    curves_of = run.arrays()
    if row.compared == "learning":
        return wrong + _learning(curves_of["train/loss"], fitted["train/loss"])
    kept = {name: value for name, value in fitted.items() if not name.startswith("prediction/")}
    found = {**curves_of, **{name: value for name, value in loaded.items() if name.startswith("weight/")}}
    wrong += differences(found, kept, row.tolerance)
    tables = tuple(each.partition(" (")[0] for each in run.tables.partition(": ")[2].split("), ") if each)
    if row.table_rows and tables != row.tables:
        wrong.append(f"the tables are {tables}")
    if extra := [name for name in found if name.startswith("weight/") and name not in kept]:
        wrong.append(f"weights that fit does not have: {extra}")
    return wrong + [f"model.keras: {each}" for each in differences(predicted, _only(fitted, predicted), row.tolerance)]


def _only(arrays: Arrays, names: Mapping[str, Any]) -> Arrays:
    return {name: value for name, value in arrays.items() if name in names or name.startswith("prediction/")}


def _learning(found: Any, expected: Any) -> list[str]:
    """Whether two curves of the loss fall alike: each to a part of its start, and to similar values."""
    last = len(expected) // 3
    ends = [float(np.median(each[-last:])) for each in (found, expected)]
    start = float(np.mean(expected[:3]))  # an asynchronous worker may begin late
    wrong = []
    if ends[0] > 0.5 * start:
        wrong.append(f"the loss does not fall: to {ends[0]:.3f}; by fit from {start:.3f} to {ends[1]:.3f}")
    if max(ends) > 0.05 * start and not 0.2 < ends[0] / ends[1] < 5:
        wrong.append(f"the loss falls to {ends[0]:.3f}, by fit to {ends[1]:.3f}")
    return wrong
