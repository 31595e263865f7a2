"""The points of the curve of goodput, and what was measured at each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.faults import faults
from benchmarks.faults.cluster import PLACES, SUPERVISOR, Place
from benchmarks.faults.faults import Fault
from benchmarks.faults.workload import MODES, Mode, Workload
from benchmarks.results import describe_machine
from trainer.telemetry.goodput import Seconds

Training = Mode | Literal["tables"]
"""How replicas train, or an asynchronous model of one table."""
MODES_AND_TABLES: tuple[Training, ...] = (*MODES, "tables")
INTERVALS = {15: 2, 60: 1, 300: 1}
"""Seconds between two faults, and how often there is one of each usual kind."""
RARE_SECONDS = 60
"""Seconds between the rare faults."""
USUAL: dict[Place, tuple[tuple[Fault, str], ...]] = {
    "processes": (
        *((faults.KILL, task) for task in ("worker-1", "ps-0", "leader")),
        *((faults.TERMINATE, task) for task in ("worker-1", "ps-1", "leader")),
    ),
    "cluster": (
        *((faults.KILL, task) for task in ("worker-1", "ps-0", "leader")),
        *((faults.DELETE, task) for task in ("worker-1", "ps-1", "leader")),
    ),
}
RARE: dict[Place, tuple[tuple[Fault, str], ...]] = {
    "processes": (
        *((faults.KILL, tasks) for tasks in ("evaluator-0", "all")),
        *((faults.STOP, task) for task in ("worker-1", "ps-0", "leader")),
        (faults.KILL_IN_SAVE, "leader"),
        (faults.CUT_CHECKPOINT, "all"),
        (faults.FULL, ""),
    ),
    "cluster": (
        *((faults.DELETE, tasks) for tasks in ("evaluator-0", SUPERVISOR, "all")),
        *((faults.CUT_OFF, task) for task in ("worker-1", "ps-0", "leader")),
        (faults.NO_DNS_KILL, "worker-1"),
        (faults.NO_API_SERVER_KILL, "worker-1"),
        (faults.KUBELET, ""),
        (faults.NODE_LOST, "leader"),
        (faults.NODE, "all"),  # last: the second node is lost
    ),
}


@dataclass(frozen=True)
class Point:
    """A run with a fault every so many seconds."""

    place: Place
    mode: Training
    interval: int
    """Seconds between two faults."""
    is_rare: bool = False
    """Whether it has each rare kind of fault once, and not the usual ones: no point of the curve."""

    @property
    def name(self) -> str:
        """The name by which `--only` and the results know it."""
        return f"{self.place} / {self.mode} / {'rare faults' if self.is_rare else f'{self.interval} s'}"

    @property
    def rounds(self) -> int:
        """How often there is a fault of each kind."""
        return 1 if self.is_rare else INTERVALS[self.interval]

    @property
    def _planned(self) -> Sequence[tuple[Fault, str]]:
        return (RARE if self.is_rare else USUAL)[self.place]

    @property
    def workload(self) -> Workload:
        """What it trains, for longer than it is measured."""
        mode: Mode = "asynchronous" if self.mode == "tables" else self.mode
        on_two_nodes = self.is_rare and self.place == "cluster"
        return Workload(
            mode,
            ps=0 if mode == "allreduce" else 2,
            chief=on_two_nodes,
            evaluator=self.is_rare,
            nodes=1 + on_two_nodes,
            seconds=10 * self.interval * self.rounds * len(self._planned),
            has_table=self.mode == "tables",
        )

    @property
    def kinds(self) -> list[tuple[Fault, list[str]]]:
        """The faults in turn, with the tasks that they hit."""
        workload = self.workload
        found = []
        for fault, name in self._planned:
            named = {"leader": [workload.leader], "all": workload.tasks, "": []}.get(name, [name])
            if set(named) <= {*workload.tasks, SUPERVISOR}:
                found.append((fault, named))
        return found


@dataclass(frozen=True)
class Struck:
    """A fault of a point, and what it cost."""

    fault: str
    hits: str
    """The tasks."""
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
    """All points: the shortest intervals first."""
    usual = [Point(place, mode, interval) for place in PLACES for interval in INTERVALS for mode in MODES_AND_TABLES]
    return usual + [Point(place, mode, RARE_SECONDS, is_rare=True) for place in PLACES for mode in MODES]
