"""A run under faults: start it, inject a fault and measure what it costs, wait for the end."""

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

import trainer
from benchmarks.faults.cluster import Cluster, FaultError, Place
from benchmarks.faults.faults import Fault
from benchmarks.faults.launch import Launch
from benchmarks.faults.measure import Cost, cost
from benchmarks.faults.observation import Observation
from benchmarks.faults.release import Release
from benchmarks.faults.workload import Workload
from benchmarks.results import FOLDER
from hack.cluster.waiting import until

START_TIMEOUT_SECONDS = 300.0
HUNG_SECONDS = 300.0
"""A run without a step for this long counts as hung. On a busy machine it may take long, and does not hang."""
NAMED_AFTER_SECONDS = 30.0
"""How long after the recovery a log may name the fault: the supervisor has to reach the API server again."""
VOLUME_SIZE = "64m"


def start(place: Place, workload: Workload, folder: Path, tag: str = trainer.__version__) -> Cluster:
    """Start a run, with its files in `folder` or with images of this tag."""
    return Launch(workload, folder) if place == "processes" else Release(workload, folder, tag)


def wait_for_training(cluster: Cluster, seen: Observation) -> None:
    """Wait until every replica has taken steps.

    Raises:
        FaultError: one has not in time.
    """
    workload = cluster.workload
    if not until(
        lambda: seen.has_stepped(workload.replicas, 0) or cluster.exit_code() is not None, START_TIMEOUT_SECONDS
    ):
        raise FaultError(f"not every replica trains after {START_TIMEOUT_SECONDS:g} s: {last_lines(seen)}")
    if cluster.exit_code() is not None:
        raise FaultError(f"the run ended before every replica trained: {last_lines(seen)}")


def wait_for_end(cluster: Cluster, seen: Observation) -> bool:
    """Wait until the run has ended; returns False if it takes no step for HUNG_SECONDS."""
    taken, since = len(seen.samples), time.monotonic()
    while not until(lambda: cluster.exit_code() is not None, 1):
        if len(seen.samples) != taken:
            taken, since = len(seen.samples), time.monotonic()
        elif time.monotonic() - since > HUNG_SECONDS:
            return False
    return True


def hurry_to_end(cluster: Cluster, seen: Observation) -> dict[str, Any]:
    """Let the steps no longer last, and wait for the end of the run; return the content of result.json.

    Raises:
        FaultError: it hangs, or fails.
    """
    cluster.send_signal(cluster.workload.replicas, signal.SIGUSR1)
    if not wait_for_end(cluster, seen):
        raise FaultError(f"the run hangs: {last_lines(seen)}")
    if code := cluster.exit_code():
        raise FaultError(f"the run ended with code {code}: {last_lines(seen)}")
    return cluster.result()


def disturb(cluster: Cluster, seen: Observation, fault: Fault, targets: Sequence[str]) -> Cost:
    """Inject a fault in mid-run, and wait until what it hit is back and every replica steps again.

    Raises:
        FaultError: the fault cannot be injected here.
    """
    workload = cluster.workload
    until(lambda: bool(seen.saved), START_TIMEOUT_SECONDS)
    began = time.time()
    with fault.inject(cluster, targets):
        began = began if fault.seconds else time.time()
        time.sleep(fault.seconds)
        ended = time.time()

    def is_back() -> bool:
        known = cost(seen, workload, fault, targets, began, ended)
        return known.back is not None and seen.has_stepped(workload.replicas, began + known.back - 0.01)

    back = until(lambda: is_back() or cluster.exit_code() is not None, HUNG_SECONDS)
    until(lambda: not cost(seen, workload, fault, targets, began, ended).problems, NAMED_AFTER_SECONDS)
    found = cost(seen, workload, fault, targets, began, ended)
    if fault.damages:
        seen.forget_damaged()
    problem = f"{', '.join(targets)}: not back after {HUNG_SECONDS:g} s; {_states(cluster)}"
    return found if back else replace(found, problems=[*found.problems, problem])


def _states(cluster: Cluster) -> str:
    """The state of each task's process: that of a stopped one says why there is a pause."""
    found = []
    for task in cluster.workload.tasks:
        states = []
        for number in cluster.processes(task):
            with contextlib.suppress(psutil.Error):
                states.append(psutil.Process(number).status())
        found.append(f"{task} {', '.join(states) or 'has no process'}")
    return ", ".join(found)


def keep_logs(name: str, seen: Observation) -> None:
    """Write all lines of a run that has a problem to a file beside the results."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"faults-{re.sub('[^a-z0-9]+', '-', name.lower())}.log"
    lines = sorted(seen.lines, key=lambda line: line.time)
    path.write_text("".join(f"{line.time:.3f} {line.task}: {line.text}\n" for line in lines))
    print(f"all logs: {path}", flush=True)


def last_lines(seen: Observation) -> str:
    """The last lines of all logs."""
    return "\n".join(f"{line.task}: {line.text}" for line in seen.lines[-12:])


@contextlib.contextmanager
def small_volume(folder: Path) -> Iterator[None]:
    """Mount a small volume at a new folder while the context lasts.

    Raises:
        FaultError: it cannot be mounted here.
    """
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_SIZE}", "tmpfs", str(folder)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        raise FaultError(f"a small volume cannot be mounted: {error.stderr.decode().strip()}") from None
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)
