"""The points of the curve of goodput, and what was measured at each."""

from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.faults import faults
from benchmarks.faults.faults import Fault
from benchmarks.faults.plan import PLACES, Place
from benchmarks.faults.workload import MODES, Mode, Workload
from benchmarks.results import describe_machine
from trainer.telemetry.goodput import Seconds

Training = Mode | Literal["tables"]
"""How replicas train, or an asynchronous model of one table."""
MODES_AND_TABLES: tuple[Training, ...] = (*MODES, "tables")
INTERVALS = {15: 2, 60: 1, 300: 1}
"""Seconds between two faults, and how often there is one of each kind."""
KINDS: dict[Place, tuple[tuple[Fault, str], ...]] = {
    "processes": (
        *((faults.KILL, role) for role in ("worker-1", "ps-0", "leader")),
        *((faults.TERMINATE, role) for role in ("worker-1", "ps-1", "leader")),
    ),
    "cluster": (
        *((faults.KILL, role) for role in ("worker-1", "ps-0", "leader")),
        *((faults.DELETE, role) for role in ("worker-1", "ps-1", "leader")),
    ),
}


@dataclass(frozen=True)
class Point:
    """A run with a fault each `interval` seconds."""

    place: Place
    mode: Training
    interval: int

    @property
    def name(self) -> str:
        """The name by which `--only` and the results know it."""
        return f"{self.place} / {self.mode} / {self.interval} s"

    @property
    def workload(self) -> Workload:
        """What it trains, for longer than it is measured."""
        seconds = 10 * self.interval * INTERVALS[self.interval] * len(KINDS[self.place])
        mode: Mode = "asynchronous" if self.mode == "tables" else self.mode
        return Workload(mode, ps=0 if mode == "allreduce" else 2, seconds=seconds, has_table=self.mode == "tables")

    @property
    def kinds(self) -> list[tuple[Fault, list[str]]]:
        """The faults in turn, with the tasks that they hit."""
        workload = self.workload
        named = [(fault, workload.leader if task == "leader" else task) for fault, task in KINDS[self.place]]
        return [(fault, [task]) for fault, task in named if task in workload.tasks]


@dataclass(frozen=True)
class Struck:
    """A fault of a point, and what it cost."""

    fault: str
    task: str
    pause: float
    back: float | None
    lost: int
    """Steps that were taken again."""
    seconds: float
    """The time until the next fault that did not count."""


@dataclass(frozen=True)
class Outcome:
    """What was measured at a point."""

    point: Point
    seconds: Seconds
    """What the time went into."""
    steps: int
    """How far the run came meanwhile."""
    struck: list[Struck] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=describe_machine)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Outcome":
        """Inverse of `asdict`."""
        struck = [Struck(**each) for each in content["struck"]]
        point, seconds = Point(**content["point"]), Seconds(**content["seconds"])
        return cls(**content | {"point": point, "seconds": seconds, "struck": struck})


def points() -> list[Point]:
    """All points, the shortest first."""
    return [Point(place, mode, interval) for place in PLACES for interval in INTERVALS for mode in MODES_AND_TABLES]
