"""A run, as its training directory shows it: while it goes on, when it is done, and after it has failed."""

import contextlib
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trainer import config
from trainer.config import Settings
from trainer.errors import ConfigurationError
from trainer.export import export_folder
from trainer.run_directory import curves, task_logs
from trainer.run_directory.curves import Curve
from trainer.run_directory.task_logs import SIGNALS, Event, TaskLog
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.storage.object_store import ObjectStore, is_uri

PAUSE_SECONDS = 5.0
PAUSE_FACTOR = 10.0
"""Between two reports is a pause if they are further apart than this, and than this factor of the usual distance."""
RUNNING_SECONDS = 180.0
"""A run that has written nothing for this long may have been killed."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of the run."""

    name: str
    step: int
    size: int | None
    """In bytes; None if its data is not here."""
    time: float


@dataclass(frozen=True)
class Pause:
    """A time without a step."""

    step: int
    time: float
    seconds: float


@dataclass(frozen=True)
class Run:
    """A run and its directory."""

    directory: TrainingDirectory
    result: Mapping[str, Any]
    """The content of result.json; empty if the run has not trained yet."""
    settings: Settings | None
    train: Mapping[str, Curve]
    test: Mapping[str, Curve]
    tasks: Sequence[TaskLog]
    divergences: Sequence[Mapping[str, Any]]
    checkpoints: Sequence[Checkpoint]
    written: float
    """When something was written last, in seconds since the epoch."""

    @property
    def is_done(self) -> bool:
        """Whether the run has reached its end."""
        return self.result.get("state") == "done"

    @property
    def failures(self) -> list[Event]:
        """Why tasks have ended before the end of the run; empty if it is done."""
        return [] if self.is_done else [task.failure for task in self.tasks if task.failure]

    @property
    def state(self) -> str:
        """done, failed, stopped, running or silent."""
        if self.is_done:
            return "done"
        codes = [event.content.get("code") for event in self.failures]
        if any(code not in SIGNALS for code in codes):
            return "failed"
        if codes:
            return "stopped"
        return state_by_time(self.written)

    @property
    def export(self) -> Path | None:
        """The exported model; None if there is none."""
        return export_folder.of_result(self.directory.path, self.result)

    @property
    def pauses(self) -> list[Pause]:
        """The times without a step, the longest first."""
        curve = self.train.get("steps_per_second")
        if curve is None or len(curve) < 3:
            return []
        gaps = curve.times[1:] - curve.times[:-1]
        limit = max(PAUSE_SECONDS, PAUSE_FACTOR * float(sorted(gaps)[len(gaps) // 2]))
        found = [
            Pause(int(curve.steps[index]), float(curve.times[index]), float(gap))
            for index, gap in enumerate(gaps)
            if gap > limit
        ]
        return sorted(found, key=lambda pause: -pause.seconds)


def state_by_time(written: float) -> str:
    """Running or silent: the state of a run of which only the time is known when it has written last."""
    return "running" if time.time() - written < RUNNING_SECONDS else "silent"


@contextlib.contextmanager
def open_directory(place: str, argument: str) -> Iterator[TrainingDirectory]:
    """Find a directory, or make a temporary copy of one on an object store, without its checkpoints.

    Args:
        place: A path or a URI.
        argument: What names it, for errors.

    Raises:
        ConfigurationError: it does not exist.
        StoreError: the object store does not respond.
    """
    if not is_uri(place):
        if not Path(place).is_dir():
            raise ConfigurationError(f"{argument}: {place} is not a directory; name the training directory of a run.")
        yield TrainingDirectory(Path(place))
        return
    store = ObjectStore(place, argument)
    with tempfile.TemporaryDirectory() as folder:
        names = [*store.names()]
        models = {PurePosixPath(name).parent for name in names if PurePosixPath(name).name == export_folder.SAVED_MODEL}
        for name in names:
            if ".data-" not in name or models.intersection(PurePosixPath(name).parents):
                file = Path(folder) / name
                written = store.download(name, file)
                os.utime(file, (written, written))  # the state of a run depends on when it has written
        yield TrainingDirectory(Path(folder), store.uri)


@contextlib.contextmanager
def open_run(place: str, argument: str) -> Iterator[Run]:
    """Read the run in a directory, or in a temporary copy of one on an object store, without its checkpoints.

    Raises:
        ConfigurationError: it is not a training directory.
        StoreError: the object store does not respond.
    """
    with open_directory(place, argument) as directory:
        yield read_run(directory, argument)


def is_run(path: Path) -> bool:
    """Whether a path is a training directory of the trainer. Other programs may have files of these names too."""
    directory = TrainingDirectory(path)
    try:
        claim = directory.read_claim()
    except ConfigurationError:  # it is damaged, as its reader says
        return True
    if (path / "run.json").is_file() and ("model" in claim or not claim):
        return True
    with contextlib.suppress(ConfigurationError):  # it is not the trainer's JSON
        if {"state", "global_step"} <= directory.read_result().keys():
            return True
    return any(task.events for task in task_logs.read(directory.logs))


def read_run(directory: TrainingDirectory, argument: str) -> Run:
    """Read the run in a directory.

    Raises:
        ConfigurationError: it is not a training directory, or a file is damaged.
    """
    path = directory.path
    if not is_run(path):
        raise ConfigurationError(
            f"{argument}: {directory} is not a training directory: it has no run.json, result.json or logs of the "
            "trainer; name the directory that a run has printed as its training directory."
        )
    return Run(
        directory,
        directory.read_result(),
        _read_settings(directory),
        curves.read(directory.train_summaries),
        curves.read(directory.test_summaries),
        task_logs.read(directory.logs),
        _read_lines(directory.divergences),
        _find_checkpoints(path),
        last_written(directory),
    )


def last_written(directory: TrainingDirectory) -> float:
    """When a file of a run was written last, in seconds since the epoch; nan if there is none."""
    walk = os.walk(directory.path)
    files = [Path(folder, name) for folder, _, names in walk for name in names if not name.endswith(".html")]
    return max(filter(None, map(_written, [file for file in files if file != directory.mlflow])), default=math.nan)


def _written(path: Path) -> float | None:
    """When a file was written, in seconds since 1970; None if the run has removed it meanwhile."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _read_settings(directory: TrainingDirectory) -> Settings | None:
    """The settings of the run; None if it is older than this file, or if this version does not know one of them."""
    for file in (directory.settings, directory.logs / "config.yaml"):
        if file.is_file():
            with contextlib.suppress(ConfigurationError):
                return config.load_file(file)
    return None


def _read_lines(path: Path) -> list[Mapping[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # a crash has truncated it
            found.append(json.loads(line))
    return found


def _find_checkpoints(path: Path) -> list[Checkpoint]:
    found = []
    for index in path.glob("model.ckpt-*.index"):
        if match := re.fullmatch(r"(model\.ckpt-(\d+))\.index", index.name):
            with contextlib.suppress(FileNotFoundError):  # a run that goes on removes its oldest checkpoints
                data = [*path.glob(f"{match[1]}.data-*")]
                size = sum(each.stat().st_size for each in data) if data else None
                found.append(Checkpoint(match[1], int(match[2]), size, index.stat().st_mtime))
    return sorted(found, key=lambda checkpoint: checkpoint.step)
