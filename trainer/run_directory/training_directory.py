"""The training directory: its layout, the run that owns it, and the result of that run.

    model.ckpt-STEP.*, checkpoint   checkpoints
    best/                           the checkpoint with the best score on the held-out split, and its score
    divergences.jsonl               a JSON line for each roll-back after a divergence
    callbacks.npz                   the state of Keras's callbacks after the last epoch
    .candidate/                     a checkpoint during its evaluation
    .saving/                        a checkpoint that is being written
    .evaluating/                    a checkpoint with tables that the evaluator reads
    writer.json                     the chief that writes here; an earlier one stops
    run.json                        the run's model and data set; a run of other parameters or data is refused
    settings.yaml                   the settings of the run's chief; `--config` reads it
    result.json                     the run's progress, its best and last score, and its result when it is done
    export/STEP/                    the trained model as a SavedModel
    deltas/NUMBER.npz               what has changed in the model, for servers that follow the run
    .publishing/                    a checkpoint that becomes an export while the run trains
    train/, test/                   TensorBoard summaries
    test/evaluations.jsonl          the evaluator's evaluations
    test/evaluator                  the evaluator touches this file while it runs
    mlflow.json                     the identifier by which `trainer models publish` finds the run in MLflow
    logs/                           each task's log; `trainer launch` adds config.yaml, the settings of the tasks

Only the chief (or a single process) writes here, with these exceptions: the evaluator writes `test/`, `best/` and
`.evaluating/`, and the launcher, or the chart's `task.sh` in Kubernetes, writes `logs/`; `trainer models publish`
writes `mlflow.json`.
"""

import errno
import itertools
import json
import re
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from trainer.data.files import write_atomically
from trainer.errors import ConfigurationError
from trainer.run_directory import writer
from trainer.run_directory.writer import Writer
from trainer.text import truncate

EVALUATOR_SECONDS = 60.0
"""An evaluator that has not touched its file for this long counts as absent."""


NOT_COMPARED = ("dataset_uri",)
"""Facts about a run that may change: the data may move."""


@dataclass(frozen=True)
class TrainingDirectory:
    """The paths in a training directory."""

    path: Path
    uri: str | None = None
    """The address of its copy on an object store, if it has one."""
    writer: Writer | None = None
    """The chief that writes here, in its own process."""

    def __str__(self) -> str:
        return self.uri or str(self.path)

    def public(self, path: object) -> str:
        """The address that users know of a path in this directory."""
        return str(path).replace(str(self.path), str(self), 1)

    @property
    def checkpoint_prefix(self) -> Path:
        """The prefix of the checkpoints' names."""
        return self.path / "model.ckpt"

    @property
    def best(self) -> Path:
        """The folder of the best checkpoint."""
        return self.path / "best"

    @property
    def callbacks(self) -> Path:
        """The state of Keras's callbacks after the last epoch that they have ended."""
        return self.path / "callbacks.npz"

    @property
    def divergences(self) -> Path:
        """The roll-backs of the run, a JSON line each."""
        return self.path / "divergences.jsonl"

    @property
    def candidate(self) -> Path:
        """The folder of a checkpoint during its evaluation."""
        return self.path / ".candidate"

    @property
    def saving(self) -> Path:
        """The folder of a checkpoint that is being written."""
        return self.path / ".saving"

    @property
    def publishing(self) -> Path:
        """The folder of a checkpoint that becomes an export while the run trains."""
        return self.path / ".publishing"

    @property
    def exports(self) -> Path:
        """The folder of the exports."""
        return self.path / "export"

    @property
    def deltas(self) -> Path:
        """The folder of the deltas."""
        return self.path / "deltas"

    @property
    def evaluating(self) -> Path:
        """The folder of a checkpoint that the evaluator reads."""
        return self.path / ".evaluating"

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
        """The file that the evaluator touches while it runs."""
        return self.test_summaries / "evaluator"

    @property
    def has_evaluator(self) -> bool:
        """Whether an evaluator runs."""
        try:
            return time.time() - self.evaluator.stat().st_mtime < EVALUATOR_SECONDS
        except OSError:
            return False

    @property
    def settings(self) -> Path:
        """The settings of the run."""
        return self.path / "settings.yaml"

    @property
    def logs(self) -> Path:
        """The tasks' logs."""
        return self.path / "logs"

    @property
    def mlflow(self) -> Path:
        """The identifier of the directory in MLflow."""
        return self.path / "mlflow.json"

    def newest_step(self) -> int | None:
        """Return the global step of the newest checkpoint in TensorFlow's `checkpoint` file, or None."""
        listed = self.path / "checkpoint"
        text = listed.read_text(encoding="utf-8", errors="replace") if listed.exists() else ""
        found = re.match(r'model_checkpoint_path: ".*-(\d+)"', text)
        return int(found[1]) if found else None

    def create(self) -> None:
        """Create the directory unless it exists.

        Raises:
            ConfigurationError: the directory cannot be created or written.
            OSError: its volume is full.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path / ".writable", b"")
            (self.path / ".writable").unlink()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ConfigurationError(f"train_dir: {self.path} cannot be written ({error.strerror}).") from None

    def claim(self, run: dict[str, Any]) -> None:
        """Record the run that owns this directory, and the chief that writes it.

        Raises:
            ConfigurationError: the directory holds a run of another model or data set.
            SupersededError: this chief has restarted, and another one has claimed the directory meanwhile.
        """
        self.check(run)
        if self.writer:
            write_atomically(self.path / writer.FILE, self.writer.claim(self._read_writer()))
        write_atomically(self.path / "run.json", _to_json(run))

    def check_writer(self) -> None:
        """Check that no other chief has claimed the directory since.

        Raises:
            SupersededError: another one has.
        """
        if self.writer:
            self.writer.check(self._read_writer())

    def _read_writer(self) -> bytes | None:
        try:
            return (self.path / writer.FILE).read_bytes()
        except OSError:
            return None

    def check(self, run: dict[str, Any]) -> None:
        """Check that the directory holds no run of another model or data set.

        The source of a model may change: what makes another run are the parameters and the data.

        Raises:
            ConfigurationError: it does; the sentence names the difference.
        """
        found = self.read_claim()
        for key, value in run.items() if found else ():
            if key not in NOT_COMPARED and not _is_source(key, found.get(key), value) and found.get(key) != value:
                before, now = found.get(key), value
                if isinstance(before, dict) and isinstance(now, dict):
                    changed = [name for name in {**now, **before} if before.get(name) != now.get(name)]
                    before, now = ({name: each[name] for name in changed if name in each} for each in (before, now))
                difference = f"{key.replace('_', ' ')} ({_brief(before)}, this run's is {_brief(now)})"
                raise ConfigurationError(
                    f"train_dir: {self.path} holds a run of different {difference}: "
                    "choose another train_dir, or the settings of that run."
                )

    def read_claim(self) -> dict[str, Any]:
        """Return the facts about the run that owns this directory; empty if none does."""
        return _read_json(self.path / "run.json")

    def read_result(self) -> dict[str, Any]:
        """Return the content of result.json; empty if no run has started here.

        Raises:
            ConfigurationError: the file is damaged.
        """
        found = _read_json(self.path / "result.json")
        for name in ("global_step", "seconds"):
            value = found.get(name, 0)
            if not isinstance(value, float) and not (isinstance(value, int) and abs(value) < 2**63):
                raise ConfigurationError(
                    f"train_dir: {self.path / 'result.json'} has {name}={_brief(value)}, but a number was expected: "
                    "restore it, or remove it: the checkpoints stay."
                )
        return found

    def write_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Write result.json atomically, and return what it has.

        Raises:
            SupersededError: another chief has claimed the directory.
            OSError: it cannot be written.
        """
        self.check_writer()
        content = _to_json(result)
        if self.uri:
            content = content.replace(f'"{self.path}'.encode(), f'"{self.uri}'.encode())
        write_atomically(self.path / "result.json", content)
        return dict(json.loads(content))


def new_path() -> Path:
    """Create and return a new folder in `runs/` for this run. Creating it reserves the name.

    Raises:
        ConfigurationError: the folder cannot be created.
    """
    stem = datetime.now().strftime("%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        path = Path("runs") / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not path.is_dir():
                raise ConfigurationError("train_dir: runs is not a folder; choose a train_dir.") from None
        except OSError as error:
            raise ConfigurationError(
                f"train_dir: {path} cannot be created ({error.strerror}); choose another."
            ) from None
        else:
            return path
    raise AssertionError  # unreachable: `count` is infinite


def _is_source(key: str, *values: Any) -> bool:
    """Whether a fact of two runs is the model, and one of them has a file, whose digest follows on its name."""
    return key == "model" and any(" " in str(each) for each in values)


def _to_json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"train_dir: {path} cannot be read ({error}): restore it, or remove it if this run owns the directory."
        ) from None
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"train_dir: {path} does not hold a JSON object: restore it, or remove it if this run owns the directory."
        )
    return content


def _brief(value: Any) -> str:
    return truncate(json.dumps(value), 80)
