"""How many threads TensorFlow gets, from the CPUs that this process really may use, and how they share them.

By default TensorFlow counts the machine's CPUs, not the container's; and on parameter-server work more threads than
CPUs cost more in switching than they bring.
"""

import contextlib
import dataclasses
import math
import os
from dataclasses import dataclass
from pathlib import Path

from trainer.config import Settings


@dataclass(frozen=True)
class Threads:
    """The sizes of TensorFlow's two thread pools."""

    intra_op: int
    """Threads that one op may use."""
    inter_op: int
    """Ops that may run at the same time."""


def choose(settings: Settings, role: str | None) -> Threads:
    """The thread pools of a task of this role (None: a single process).

    In a cluster a task leaves half of its CPUs to gRPC, which moves parameters meanwhile; the ops of a parameter server
    are too small for several threads each.
    """
    cpus = usable_cpus()
    half = max(1, cpus // 2)
    intra_op, inter_op = {None: (cpus, cpus), "ps": (1, half)}.get(role, (half, half))
    return Threads(settings.intra_op_threads or intra_op, settings.inter_op_threads or inter_op)


def take_turns() -> None:
    """Let threads that this one starts from now on wait for their turn of a CPU, where the system knows how.

    Several times in a step one thread of TensorFlow or gRPC wakes another. As a rule Linux lets the one that wakes up
    interrupt whoever computes, of this task or another; with SCHED_BATCH it does not (sched(7)).
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a container's rules may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def in_force(settings: Settings, role: str | None) -> Settings:
    """The settings with the threads that a task of this role will have."""
    threads = choose(settings, role)
    return dataclasses.replace(settings, intra_op_threads=threads.intra_op, inter_op_threads=threads.inter_op)


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity, cut by the limits of its control groups (version 2 or 1)."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        groups = Path("/proc/self/cgroup").read_text()
    except OSError:
        groups = ""
    limit = _cgroup_limit(Path("/sys/fs/cgroup"), groups)
    return affinity if limit is None else max(1, min(affinity, math.ceil(limit)))


def _cgroup_limit(root: Path, groups: str) -> float | None:
    """The least CPU limit of this process's group and those above it; None where there is none.

    Args:
        root: Where control groups are mounted. A container sees its own group there, whatever the path in `groups`.
        groups: The content of /proc/self/cgroup: lines of hierarchy, controllers and path.
    """
    limits = []
    for line in groups.splitlines() or ["0::/"]:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "cpu" if controllers else root
        group = mount / path.lstrip("/")
        limits += [_limit_of(each) for each in (group, *group.parents) if each.is_relative_to(mount)]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit_of(group: Path) -> float | None:
    """The CPUs that a group may use at a time, by the file of its version; None where it says nothing."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
