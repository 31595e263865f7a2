"""The plan of the matrix: each fault in each mode in which it differs, the most valuable cases first."""

from dataclasses import dataclass
from typing import Literal

from benchmarks.faults import faults
from benchmarks.faults.cluster import SUPERVISOR, TENSORBOARD
from benchmarks.faults.faults import Fault
from benchmarks.faults.workload import MODES, Mode, Workload

Place = Literal["processes", "cluster"]
PLACES: tuple[Place, ...] = ("processes", "cluster")
LASTING_SECONDS = 60
"""An asynchronous run takes twice as long as a fault of at least this length, because others go on meanwhile."""


@dataclass(frozen=True)
class Case:
    """A run with one fault, or an undisturbed one."""

    place: Place
    workload: Workload
    fault: Fault | None = None
    targets: tuple[str, ...] = ()
    at_end: bool = False
    """Whether the fault is injected within the last five steps."""
    volume: bool = False
    """Whether the training directory is a small volume of its own."""

    @property
    def name(self) -> str:
        """The name by which `--only` and the results know the case."""
        words = [self.place, self.workload.mode, str(self.workload)]
        words += [self.fault.name if self.fault else "undisturbed", *([self.what] if self.targets else [])]
        return " / ".join(words)

    @property
    def what(self) -> str:
        """The tasks that are hit."""
        tasks = "all tasks" if set(self.targets) == set(self.workload.tasks) else ", ".join(self.targets)
        return tasks + (", in the last five steps" if self.at_end else "")


def _case(place: Place, mode: Mode, fault: Fault | None, *targets: str, **options: object) -> Case:
    """A case with the baseline's tasks, or with what `options` say. `leader` and `all` stand for tasks."""
    at_end, volume = bool(options.pop("at_end", False)), bool(options.pop("volume", False))
    others_go_on = bool(fault and fault.seconds >= LASTING_SECONDS and mode == "asynchronous")
    seconds = 2 * fault.seconds if fault and others_go_on else 45
    given: dict[str, object] = {"ps": 0 if mode == "allreduce" else 1, "seconds": seconds}
    workload = Workload(mode, **{**given, **options})  # type: ignore[arg-type]
    names: list[str] = []
    for target in targets:
        names += workload.tasks if target == "all" else [workload.leader if target == "leader" else target]
    return Case(place, workload, fault, tuple(names), at_end, volume)


SLOW = {"train_steps": 100, "step_seconds": 0.25}
"""For faults within the last five steps: progress lines are a second apart."""


def plan() -> list[Case]:
    """All cases, in the order in which they run."""
    ps, worker, leader = "ps-0", "worker-1", "leader"
    with_servers: tuple[Mode, ...] = ("asynchronous", "synchronous")
    whole = {"chief": True, "ps": 2, "evaluator": True}
    cases = [_case(place, mode, None) for place in PLACES for mode in MODES]
    cases += [_case("cluster", mode, None, **whole) for mode in with_servers]

    def add(place: Place, mode: Mode, fault: Fault, *targets: str, **options: object) -> None:
        cases.append(_case(place, mode, fault, *targets, **options))

    # One task is lost.
    for mode in with_servers:
        for target in (ps, worker, leader):
            add("cluster", mode, faults.DELETE, target)
            add("processes", mode, faults.KILL, target)
    for target in (worker, leader):
        add("cluster", "allreduce", faults.DELETE, target)
        add("processes", "allreduce", faults.KILL, target)
    add("processes", "synchronous", faults.KILL, "worker-2", workers=3, ps=2)
    add("processes", "synchronous", faults.KILL, "worker-2", workers=3, backups=1)
    for target in (SUPERVISOR, TENSORBOARD, "evaluator-0", leader, ps):
        add("cluster", "asynchronous", faults.DELETE, target, **whole)
    for target in (SUPERVISOR, TENSORBOARD, "evaluator-0", leader, ps, worker):
        add("cluster", "synchronous", faults.KILL, target, **whole)
    for target in (leader, ps):
        add("processes", "asynchronous", faults.KILL, target, chief=True, ps=2)
    for target in (ps, worker, leader):
        add("cluster", "synchronous", faults.TERMINATE, target)
        add("processes", "asynchronous", faults.TERMINATE, target)
    for target in (worker, leader):
        add("processes", "allreduce", faults.TERMINATE, target)

    # Several are lost, or all.
    for mode in with_servers:
        add("processes", mode, faults.KILL, ps, leader)
        add("processes", mode, faults.KILL, "all")
    add("processes", "allreduce", faults.KILL, "all")
    add("cluster", "asynchronous", faults.DELETE, ps, leader)
    add("cluster", "asynchronous", faults.DELETE, "all", **whole)
    add("cluster", "synchronous", faults.KILL, "all")

    # Tasks are stopped, or cut off from the network.
    for mode in with_servers:
        for target in (ps, worker, leader):
            add("cluster", mode, faults.CUT_OFF, target, seconds=120)
            add("processes", mode, faults.STOP, target)
        add("processes", mode, faults.STOP, leader, chief=True)
    for target in (worker, leader):
        add("processes", "allreduce", faults.STOP, target)
        add("cluster", "allreduce", faults.CUT_OFF, target)
    add("cluster", "synchronous", faults.STOP, SUPERVISOR, "evaluator-0", **whole)
    add("cluster", "synchronous", faults.STOP, TENSORBOARD, **whole)

    # The checkpoint and its volume.
    for mode in with_servers:
        add("processes", mode, faults.CUT_CHECKPOINT, ps, leader)
    for target in (leader, "all"):
        add("processes", "allreduce", faults.CUT_CHECKPOINT, target)
    for mode in MODES:
        add("processes", mode, faults.KILL_IN_SAVE, leader)
        add("processes", mode, faults.FULL, volume=True)
        add("processes", mode, faults.READ_ONLY)

    # The last five steps.
    for mode in with_servers:
        for target in (ps, worker, leader):
            add("processes", mode, faults.KILL, target, at_end=True, **SLOW)
    add("processes", "allreduce", faults.KILL, leader, at_end=True, **SLOW)

    # What the tasks run on.
    for mode in with_servers:
        add("cluster", mode, faults.NODE_LOST, leader, chief=True, nodes=2, seconds=2 * faults.NODE_LOST.seconds)
        add("cluster", mode, faults.NO_DNS)
        add("cluster", mode, faults.NO_DNS_KILL, ps)
        add("cluster", mode, faults.NO_API_SERVER)
        add("cluster", mode, faults.KUBELET)
    add("cluster", "asynchronous", faults.NO_API_SERVER_KILL, ps)
    for mode in MODES:  # last: the second node is lost
        add("cluster", mode, faults.NODE, "all")
    return cases
