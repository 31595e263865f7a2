"""What the tasks of a run hold over time: memory, open files, threads, and what the run has written."""

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.faults.cluster import SUPERVISOR, Cluster

SETTLED_SECONDS = 20.0
"""A process is looked at when it is older than this."""


@dataclass(frozen=True)
class Held:
    """What a process holds at a time."""

    time: float
    """Seconds since 1970."""
    task: str
    process: int
    memory: float
    """Resident, in MiB."""
    files: int
    threads: int


def look(cluster: Cluster) -> list[Held]:
    """What each settled process of the run holds now."""
    found, now = [], time.time()
    processes = [(task, number) for task in (*cluster.workload.tasks, SUPERVISOR) for number in cluster.processes(task)]
    for number in cluster.processes(SUPERVISOR):
        with contextlib.suppress(psutil.Error):  # the process of which tasks are forks
            processes += [(f"child of {SUPERVISOR}", child.pid) for child in psutil.Process(number).children()]
    for task, number in processes:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(number)
            if now - process.create_time() > SETTLED_SECONDS:
                memory = process.memory_info().rss / 2**20
                found.append(Held(now, task, number, memory, process.num_fds(), process.num_threads()))
    return found


def written(folder: Path) -> dict[str, float]:
    """The MiB in each folder of a training directory, by name; the files in itself are those of `checkpoints`."""
    sizes: dict[str, float] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file():
                parts = path.relative_to(folder).parts
                name = parts[0] if len(parts) > 1 else "checkpoints"
                sizes[name] = sizes.get(name, 0.0) + path.stat().st_size / 2**20
    return sizes


def growth(points: Iterable[tuple[float, float]]) -> float:
    """By how much a value grows in an hour: the median slope between two points (Theil-Sen).

    Args:
        points: Times in seconds, and values.
    """
    times, values = np.array(sorted(points)).T
    first, second = np.triu_indices(len(times), 1)
    apart = times[second] - times[first]
    return float(3600 * np.median((values[second] - values[first])[apart > 0] / apart[apart > 0]))


def survivors(samples: Sequence[Held], since: float) -> dict[str, list[Held]]:
    """The samples from a time on of each task whose process has been the same since then."""
    later: dict[str, list[Held]] = {}
    for each in samples:
        if each.time >= since:
            later.setdefault(each.task, []).append(each)
    return {task: mine for task, mine in later.items() if len({each.process for each in mine}) == 1 and len(mine) > 1}
