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
from pathlib import Path
from typing import Any

from trainer import config
from trainer.config import Settings
from trainer.errors import ConfigurationError
from trainer.results import curves, task_logs
from trainer.results.curves import Curve
from trainer.results.task_logs import SIGNALS, Event, TaskLog
from trainer.storage.object_store import ObjectStore, is_uri
from trainer.training.training_directory import TrainingDirectory

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
        return "running" if time.time() - self.written < RUNNING_SECONDS else "silent"

    @property
    def export(self) -> Path | None:
        """The exported model, which may have moved with the directory; None if there is none."""
        name = Path(str(self.result.get("export", ""))).name
        path = self.directory.path / "export" / name
        return path if name and (path / "saved_model.pb").exists() else None

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


@contextlib.contextmanager
def open_run(place: str, argument: str) -> Iterator[Run]:
    """Read the run in a directory, or in a temporary copy of one on an object store, without its checkpoints.

    Args:
        place: A path or a URI.
        argument: What names it, for errors.

    Raises:
        ConfigurationError: it is no training directory.
        StoreError: the object store does not respond.
    """
    if not is_uri(place):
        yield _read(TrainingDirectory(Path(place)), argument)
        return
    store = ObjectStore(place, argument)
    with tempfile.TemporaryDirectory() as folder:
        for name in store.names():
            if ".data-" not in name or name.startswith("export/"):
                store.download(name, Path(folder) / name)
        yield _read(TrainingDirectory(Path(folder), store.uri), argument)


def is_run(path: Path) -> bool:
    """Whether a path is a training directory."""
    logs = path / "logs"
    return (path / "run.json").is_file() or (path / "result.json").is_file() or bool([*logs.glob("*-[0-9]*.log")])


def _read(directory: TrainingDirectory, argument: str) -> Run:
    path = directory.path
    if not path.is_dir() and not directory.uri:
        raise ConfigurationError(f"{argument}: {directory} is no directory; name the training directory of a run.")
    if not is_run(path):
        raise ConfigurationError(
            f"{argument}: {directory} is no training directory: it has neither run.json nor result.json nor logs/; "
            "name the directory that a run has printed as its training directory."
        )
    files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names if not name.endswith(".html")]
    return Run(
        directory,
        directory.read_result(),
        _read_settings(directory),
        curves.read(directory.train_summaries),
        curves.read(directory.test_summaries),
        task_logs.read(directory.logs),
        _read_lines(directory.divergences),
        _find_checkpoints(path),
        max(filter(None, map(_written, files)), default=math.nan),
    )


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
