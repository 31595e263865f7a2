"""What a fault, an observer and a soak can do with a run, on this machine or in Kubernetes.

A task is named by role and index, such as `ps-0`. The program that starts the tasks again is `supervisor`: the
launcher, or the supervisor of a release.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from benchmarks.faults.workload import Workload

Place = Literal["processes", "cluster"]
"""Where a run is: by `trainer launch`, or a release in the throw-away cluster."""
PLACES: tuple[Place, ...] = ("processes", "cluster")
SUPERVISOR, TENSORBOARD = "supervisor", "tensorboard"


@dataclass(frozen=True)
class Line:
    """A line of a task's log."""

    time: float
    """When it was written, in seconds since 1970."""
    task: str
    text: str
    container: str = ""
    """What tells the containers of a task apart: a replaced or restarted one is another. Empty for processes."""


class FaultError(Exception):
    """A fault cannot be injected here, or a run did not start; the message says why."""


class Cluster(Protocol):
    """A run in progress."""

    workload: Workload

    @property
    def directory(self) -> Path:
        """The training directory, as a folder of this machine."""

    def new_lines(self) -> list[Line]:
        """The complete lines that all tasks and the supervisor have logged since the last call."""

    def send_signal(self, tasks: Sequence[str], number: int) -> None:
        """Send a signal to the programs of these tasks, to all of them at once."""

    def processes(self, task: str) -> list[int]:
        """The process ids of a task's program; empty while it does not run."""

    def exit_code(self) -> int | None:
        """0 if the run has succeeded, another code if it has failed, None while it lasts."""

    def restarts(self) -> int:
        """How many restarts of tasks the supervisor has counted."""

    def result(self) -> dict[str, Any]:
        """The content of result.json; empty if there is none."""

    def close(self) -> None:
        """End everything that still runs."""
