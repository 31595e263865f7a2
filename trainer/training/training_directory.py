"""The training directory: what lies where in it, whose it is, and the result that a finished run leaves there.

    model.ckpt-STEP.*, checkpoint   checkpoints
    best/                           the checkpoint that did best on the held-out split, and its score
    divergences.jsonl               when the run diverged and was rolled back, a JSON line each time
    .candidate/                     a checkpoint that is being examined
    run.json                        what the run trains: model and data; another model or data set is refused
    result.json                     how far the run is, its best and last score, and once it is done its result
    export/STEP/                    the trained network as a SavedModel
    train/, test/                   TensorBoard summaries
    test/evaluations.jsonl          what the evaluator has examined
    test/evaluator                  touched by the evaluator while it is there
    logs/                           each task's log; of `trainer launch` also config.yaml, the settings it started with

Only the chief (or a single process) writes here, besides the evaluator in `test/` and `best/`, and in `logs/` the
launcher or, in Kubernetes, the chart's `task.sh`.
"""

import itertools
import json
import re
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from trainer.data.datasets import Dataset
from trainer.data.files import write_atomically
from trainer.errors import ConfigurationError
from trainer.models import Parameter, identify

EVALUATOR_SECONDS = 60.0
"""An evaluator that has given no sign for so long is taken for gone."""


@dataclass(frozen=True)
class TrainingDirectory:
    """The places in a training directory."""

    path: Path

    @property
    def checkpoint_prefix(self) -> Path:
        """What checkpoints' names begin with."""
        return self.path / "model.ckpt"

    @property
    def best(self) -> Path:
        """The folder of the best checkpoint."""
        return self.path / "best"

    @property
    def divergences(self) -> Path:
        """When the run was rolled back, a JSON line each time."""
        return self.path / "divergences.jsonl"

    @property
    def candidate(self) -> Path:
        """The folder of a checkpoint that is being examined."""
        return self.path / ".candidate"

    @property
    def train_summaries(self) -> Path:
        """TensorBoard summaries of training."""
        return self.path / "train"

    @property
    def test_summaries(self) -> Path:
        """TensorBoard summaries of evaluations on the held-out split."""
        return self.path / "test"

    @property
    def evaluations(self) -> Path:
        """The evaluator's scores, a JSON line for each checkpoint."""
        return self.test_summaries / "evaluations.jsonl"

    @property
    def evaluator(self) -> Path:
        """A file that the evaluator touches while it is there."""
        return self.test_summaries / "evaluator"

    @property
    def has_evaluator(self) -> bool:
        """Whether there is an evaluator."""
        try:
            return time.time() - self.evaluator.stat().st_mtime < EVALUATOR_SECONDS
        except OSError:
            return False

    @property
    def logs(self) -> Path:
        """The tasks' logs."""
        return self.path / "logs"

    def newest_step(self) -> int | None:
        """The global step of the newest checkpoint, by the file in which TensorFlow lists them."""
        listed = self.path / "checkpoint"
        text = listed.read_text(encoding="utf-8") if listed.exists() else ""
        found = re.match(r'model_checkpoint_path: ".*-(\d+)"', text)
        return int(found[1]) if found else None

    def create(self) -> None:
        """Make the directory, where it is absent.

        Raises:
            ConfigurationError: it cannot be made or written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path / ".writable", b"")
            (self.path / ".writable").unlink()
        except OSError as error:
            raise ConfigurationError(f"train_dir: {self.path} cannot be written ({error.strerror}).") from None

    def claim(self, run: dict[str, Any]) -> None:
        """Note whose directory this is.

        Raises:
            ConfigurationError: it holds a run of another model or data set.
        """
        self.check(run)
        write_atomically(self.path / "run.json", _to_json(run))

    def check(self, run: dict[str, Any]) -> None:
        """Refuse the directory if it holds a run of another model or data set.

        Raises:
            ConfigurationError: one sentence that names the difference.
        """
        found = _read_json(self.path / "run.json")
        for key, value in run.items() if found else ():
            if found.get(key) != value:
                there = f"{key.replace('_', ' ')} ({_brief(found.get(key))}, this run's is {_brief(value)})"
                raise ConfigurationError(
                    f"train_dir: {self.path} holds a run of different {there}: "
                    "choose another train_dir, or the settings of that run."
                )

    def read_result(self) -> dict[str, Any]:
        """The content of result.json; empty where no run has begun here."""
        return _read_json(self.path / "result.json")

    def write_result(self, result: dict[str, Any]) -> None:
        """Write result.json, in one step."""
        write_atomically(self.path / "result.json", _to_json(result))


def new_path() -> Path:
    """A folder in `runs/` that is this run's alone, made now so that no other run takes the name.

    Raises:
        ConfigurationError: it cannot be made.
    """
    stem = datetime.now().strftime("%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not path.is_dir():
                raise ConfigurationError("train_dir: runs is no folder; choose a train_dir.") from None
        except OSError as error:
            raise ConfigurationError(f"train_dir: {path} cannot be made ({error.strerror}); choose another.") from None
        else:
            return path
    raise AssertionError  # there is always a next number


def describe(model: str, parameters: dict[str, Parameter], dataset: Dataset) -> dict[str, Any]:
    """What makes a run this run: its checkpoints fit no other."""
    return {
        "model": identify(model),
        "parameters": {name: list(parameter.shape) for name, parameter in parameters.items()},
        "dataset": dataset.name,
        "dataset_digest": dataset.digest,
    }


def _to_json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"train_dir: {path} cannot be read ({error}).") from None
    if not isinstance(content, dict):
        raise ConfigurationError(f"train_dir: {path} holds no JSON object.")
    return content


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
