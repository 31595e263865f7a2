"""One run of the matrix: start it, inject its fault, wait for its end, measure."""

import contextlib
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.cluster import Cluster, FaultError
from benchmarks.faults.faults import Fault
from benchmarks.faults.launch import Launch
from benchmarks.faults.measure import Cost, cost
from benchmarks.faults.observation import Observation
from benchmarks.faults.plan import Case, Place
from benchmarks.faults.release import Release
from benchmarks.faults.workload import START_SECONDS, Workload
from benchmarks.results import FOLDER
from hack.cluster.waiting import until

START_TIMEOUT_SECONDS = 300.0
HUNG_SECONDS = 300.0
"""A run without a step for this long counts as hung. On a busy machine it may take long, and does not hang."""
NAMED_AFTER_SECONDS = 30.0
"""How long after the recovery a log may name the fault: the supervisor has to reach the API server again."""
VOLUME_SIZE = "24m"


@dataclass(frozen=True)
class Row:
    """The outcome of a case, as a line of the results."""

    case: str
    seconds: float
    """From the first steps to the end of the run."""
    restarts: int | None
    accuracy: float | None
    """On the held-out split, at the end."""
    cost: Cost | None
    problems: list[str] = field(default_factory=list)
    """What the run did not do, although it must."""

    def to_json(self) -> dict[str, Any]:
        """The row as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Row":
        """Inverse of `to_json`."""
        return cls(**content | {"cost": Cost(**content["cost"]) if content["cost"] else None})


def run(case: Case, tag: str) -> Row:
    """Run a case.

    Raises:
        FaultError: the run did not start, or the fault cannot be injected here.
    """
    with (
        tempfile.TemporaryDirectory() as name,
        _volume(Path(name, "run"), case.volume),
        contextlib.closing(start(case.place, case.workload, Path(name), tag)) as cluster,
    ):
        with Observation(cluster) as seen:
            first, began, ended = _train_with_fault(case, cluster, seen)
            hung = not wait_for_end(cluster, seen)
            finished = time.time()
            time.sleep(1)  # the last lines
        return _row(case, cluster, seen, hung, (first, began, ended, finished))


def start(place: Place, workload: Workload, folder: Path, tag: str) -> Cluster:
    """Start a run, with its files in `folder` or with images of this tag."""
    return Launch(workload, folder) if place == "processes" else Release(workload, folder, tag)


def _train_with_fault(case: Case, cluster: Cluster, seen: Observation) -> tuple[float, float, float]:
    """Wait for the moment of the fault, and inject it; return the times of the first steps, its begin, its end."""
    workload, fault = case.workload, case.fault
    wait_for_training(cluster, seen)
    first = time.time()
    if fault is None:
        return first, first, first
    if case.at_end:
        due = until(
            lambda: seen.step >= workload.steps - 5 or cluster.exit_code() is not None, 2 * START_TIMEOUT_SECONDS
        )
    else:
        due = until(lambda: bool(seen.saved) and time.time() > first + START_SECONDS, START_TIMEOUT_SECONDS)
    if not due or cluster.exit_code() is not None:
        raise FaultError("the moment of the fault did not come")
    began = time.time()
    with fault.inject(cluster, case.targets):
        began = began if fault.seconds else time.time()
        until(lambda: cluster.exit_code() is not None, fault.seconds)
        ended = time.time()
    return first, began, ended


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


def _row(case: Case, cluster: Cluster, seen: Observation, hung: bool, times: tuple[float, float, float, float]) -> Row:
    first, began, ended, finished = times
    result, code = cluster.result(), cluster.exit_code()
    problems = ["the run hung"] if hung else [] if code == 0 else [f"the run ended with code {code}"]
    if not problems and (result.get("state") != "done" or result.get("global_step", 0) < case.workload.steps):
        problems.append(f"result.json has step {result.get('global_step')} of {case.workload.steps}")
    found = cost(seen, case.workload, case.fault, case.targets, began, ended) if case.fault else None
    problems += found.problems if found else []
    restarts = None
    with contextlib.suppress(FaultError):
        restarts = cluster.restarts()
    if problems:
        keep_logs(case.name, seen)
    accuracy = result.get("test_accuracy") if case.workload.train_steps is None else None
    return Row(case.name, finished - first, restarts, accuracy, found, problems)


@contextlib.contextmanager
def _volume(folder: Path, wanted: bool) -> Iterator[None]:
    """Mount a small volume at a folder while the context lasts."""
    if not wanted:
        yield
        return
    folder.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_SIZE}", "tmpfs", str(folder)], check=True, capture_output=True
        )
    except subprocess.CalledProcessError as error:
        raise FaultError(f"a small volume cannot be mounted: {error.stderr.decode().strip()}") from None
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)
