"""The sizes of TensorFlow's thread pools, from the CPUs that this process may use, and their scheduling policy.

By default TensorFlow counts the CPUs of the machine, not those of the container. With parameter servers, more threads
than CPUs cost more in context switches than they gain.
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
    """Threads for one op."""
    inter_op: int
    """Ops that run at the same time."""


def choose(settings: Settings, role: str | None) -> Threads:
    """Return the thread pools of a task with this role (None: a single process).

    In a cluster a task leaves half of its CPUs to gRPC, which transfers parameters at the same time. The ops of a
    parameter server are too small for several threads.
    """
    cpus = usable_cpus()
    half = max(1, cpus // 2)
    intra_op, inter_op = {None: (cpus, cpus), "ps": (1, half)}.get(role, (half, half))
    return Threads(settings.intra_op_threads or intra_op, settings.inter_op_threads or inter_op)


def use_batch_scheduling() -> None:
    """Use SCHED_BATCH for the threads that this thread starts from now on, if the system supports it.

    In each step threads of TensorFlow and gRPC wake each other several times. By default Linux lets a woken thread
    preempt a thread that computes, in this task or another one. With SCHED_BATCH it does not (sched(7)).
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a container's security profile may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def effective_settings(settings: Settings, role: str | None) -> Settings:
    """Return the settings with the thread counts of a task with this role."""
    threads = choose(settings, role)
    return dataclasses.replace(settings, intra_op_threads=threads.intra_op, inter_op_threads=threads.inter_op)


def usable_cpus() -> int:
    """Return the CPUs that this process may use: its affinity, limited by its cgroups (version 2 or 1)."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        groups = Path("/proc/self/cgroup").read_text()
    except OSError:
        groups = ""
    limit = _cgroup_limit(Path("/sys/fs/cgroup"), groups)
    return affinity if limit is None else max(1, min(affinity, math.ceil(limit)))


def _cgroup_limit(root: Path, groups: str) -> float | None:
    """Return the lowest CPU limit of this process's cgroup and its parents; None if there is no limit.

    Args:
        root: The mount point of the cgroups. A container sees its own cgroup there, whatever the path in `groups`.
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
    """Return the CPU limit of a cgroup, from the file of its version; None if there is no limit."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
