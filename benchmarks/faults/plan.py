"""The plan of the matrix: each fault in each mode in which it differs, the most valuable cases first."""

from dataclasses import dataclass
from typing import Literal

from benchmarks.faults import faults
from benchmarks.faults.cluster import SUPERVISOR, TENSORBOARD
from benchmarks.faults.faults import Fault
from benchmarks.faults.workload import Mode, Workload

Place = Literal["processes", "cluster"]
PLACES: tuple[Place, ...] = ("processes", "cluster")
LASTING_SECONDS = 60
"""How much longer a run takes if others go on during a fault of this length."""


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
    given: dict[str, object] = {"ps": 0 if mode == "allreduce" else 1, "seconds": 120 if others_go_on else 45}
    workload = Workload(mode, **{**given, **options})  # type: ignore[arg-type]
    names: list[str] = []
    for target in targets:
        names += workload.tasks if target == "all" else [workload.leader if target == "leader" else target]
    return Case(place, workload, fault, tuple(names), at_end, volume)


SLOW = {"train_steps": 100, "step_seconds": 0.25}
"""For faults within the last five steps: progress lines are a second apart."""


def plan() -> list[Case]:
    """All cases, in the order in which they run."""
    asynchronous, synchronous, allreduce = "asynchronous", "synchronous", "allreduce"
    ps, worker, leader = "ps-0", "worker-1", "leader"
    cases = [_case("processes", mode, None) for mode in (asynchronous, synchronous, allreduce)]  # type: ignore[arg-type]
    cases += [_case("cluster", mode, None) for mode in (asynchronous, synchronous, allreduce)]  # type: ignore[arg-type]

    def add(place: Place, mode: Mode, fault: Fault, *targets: str, **options: object) -> None:
        cases.append(_case(place, mode, fault, *targets, **options))

    for mode in (asynchronous, synchronous):
        for target in (ps, worker, leader):
            add("cluster", mode, faults.DELETE, target)  # type: ignore[arg-type]
            add("processes", mode, faults.KILL, target)  # type: ignore[arg-type]
    for target in (worker, leader):
        add("cluster", "allreduce", faults.DELETE, target)
        add("processes", "allreduce", faults.KILL, target)
    for mode in (asynchronous, synchronous):
        add("cluster", mode, faults.CUT_OFF, ps)  # type: ignore[arg-type]
        add("cluster", mode, faults.CUT_OFF, worker, seconds=120)  # type: ignore[arg-type]
        add("processes", mode, faults.KILL, ps, leader)  # type: ignore[arg-type]
        add("processes", mode, faults.KILL, "all")  # type: ignore[arg-type]
        add("processes", mode, faults.CUT_CHECKPOINT, ps, leader)  # type: ignore[arg-type]
    add("cluster", "asynchronous", faults.DELETE, ps, leader)
    add("cluster", "synchronous", faults.KILL, "all")
    whole = {"chief": True, "ps": 2, "evaluator": True}
    for target in (SUPERVISOR, TENSORBOARD, "evaluator-0", leader, ps):
        add("cluster", "asynchronous", faults.DELETE, target, **whole)
    for target in (SUPERVISOR, "evaluator-0", leader, ps):
        add("cluster", "synchronous", faults.KILL, target, **whole)
    for target in (worker, leader, ps):
        add("processes", "asynchronous", faults.STOP, target)
        add("processes", "synchronous", faults.STOP, target)
    add("processes", "allreduce", faults.STOP, worker)
    add("cluster", "asynchronous", faults.NO_DNS)
    add("cluster", "asynchronous", faults.NO_API_SERVER)
    add("cluster", "synchronous", faults.KUBELET)
    add("processes", "asynchronous", faults.FULL, volume=True)
    add("processes", "asynchronous", faults.READ_ONLY)
    for target in (ps, worker, leader):
        add("cluster", "synchronous", faults.TERMINATE, target)
        add("processes", "asynchronous", faults.TERMINATE, target)
    add("processes", "asynchronous", faults.KILL_IN_SAVE, leader)
    add("processes", "allreduce", faults.KILL_IN_SAVE, leader)
    for target in (ps, worker, leader):
        add("processes", "synchronous", faults.KILL, target, at_end=True, **SLOW)
    add("processes", "allreduce", faults.KILL, leader, at_end=True, **SLOW)
    add("processes", "allreduce", faults.KILL, "all")
    add("processes", "synchronous", faults.KILL, "worker-2", workers=3, ps=2)
    add("cluster", "synchronous", faults.STOP, SUPERVISOR, "evaluator-0", **whole)
    add("cluster", "asynchronous", faults.DELETE, "all", **whole)
    add("cluster", "allreduce", faults.CUT_OFF, worker)
    add("cluster", "synchronous", faults.NODE, "all")
    return cases
