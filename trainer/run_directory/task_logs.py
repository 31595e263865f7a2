"""What the tasks of a run have reported in their logs: starts, lost tasks, restored checkpoints, failures."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.telemetry import report

SIGNALS = (130, 143)
"""Exit codes after SIGINT and SIGTERM."""


@dataclass(frozen=True)
class Event:
    """Something that a task has reported, beside its progress."""

    task: str
    """Such as worker 0."""
    kind: str
    """started, restored, lost, ended or result."""
    time: float
    """Seconds since the epoch."""
    content: Any


@dataclass(frozen=True)
class TaskLog:
    """The log of one task, over all of its processes."""

    task: str
    events: Sequence[Event]

    @property
    def starts(self) -> int:
        """How often a process of the task has started."""
        return sum(event.kind == "started" for event in self.events)

    @property
    def failure(self) -> Event | None:
        """Why the task has ended, unless it has started again; None if it runs, is done, or was killed."""
        last = next((event for event in reversed(self.events) if event.kind in ("started", "ended", "result")), None)
        return last if last and last.kind == "ended" else None


def read(folder: Path) -> list[TaskLog]:
    """The logs of a folder, by the names of the tasks."""
    return [_read(path) for path in sorted(folder.glob("*.log")) if re.fullmatch(r"[a-z]+-\d+", path.stem)]


def _read(path: Path) -> TaskLog:
    task = path.stem.replace("-", " ")
    events = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            _, content = report.split(line) if report.MARK in line else ("", {})
            for kind in ("started", "restored", "lost", "ended", "result"):
                if kind in content and isinstance(content.get("time"), (int, float)):
                    events.append(Event(task, kind, content["time"], content[kind]))
    return TaskLog(task, events)
