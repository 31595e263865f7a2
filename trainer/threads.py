"""How many threads TensorFlow gets, from the CPUs that this process really may use.

By default TensorFlow counts the machine's CPUs, not the container's; and on parameter-server work more threads than
CPUs cost more in switching than they bring.
"""

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

    In a cluster a replica leaves half of its CPUs to gRPC, which moves parameters meanwhile; a parameter server runs
    small ops for many replicas.
    """
    cpus = usable_cpus()
    half = max(1, cpus // 2)
    intra_op, inter_op = {None: (cpus, cpus), "ps": (1, max(2, cpus))}.get(role, (half, half))
    return Threads(settings.intra_op_threads or intra_op, settings.inter_op_threads or inter_op)


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity, cut by a container's limit (cgroup version 2 or 1)."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(affinity, math.ceil(_cgroup_limit(Path("/sys/fs/cgroup")) or affinity)))


def _cgroup_limit(root: Path) -> float | None:
    """The CPU limit of a container, which sees its own group at the root; None where there is none."""
    try:
        if (root / "cpu.max").exists():
            quota, period = (root / "cpu.max").read_text().split()
        else:
            quota, period = ((root / "cpu" / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
