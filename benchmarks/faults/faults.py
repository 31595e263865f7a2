"""The faults: what each does to tasks, for how long, and how it ends.

A fault is a context manager: entering injects it, leaving undoes what lasts. What it kills, the cluster starts again.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults import node
from benchmarks.faults.cluster import Cluster, FaultError
from benchmarks.faults.observation import step_of
from benchmarks.faults.release import Release
from hack.cluster.node import SECOND
from hack.cluster.waiting import until
from trainer.run_directory.training_directory import TrainingDirectory

Inject = Callable[[Cluster, Sequence[str]], AbstractContextManager[None]]
SAVE_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Fault:
    """A kind of fault."""

    name: str
    inject: Inject
    seconds: float = 0
    """How long it lasts."""
    replaces: bool = False
    """Whether the tasks lose their processes."""
    damages: bool = False
    """Whether the newest checkpoint is lost."""
    says: str = ""
    """What some task must say, as a regular expression, if it is not the name of the task that was hit."""


@contextmanager
def _kill(cluster: Cluster, tasks: Sequence[str]) -> Iterator[None]:
    cluster.send_signal(tasks, signal.SIGKILL)
    yield


@contextmanager
def _terminate(cluster: Cluster, tasks: Sequence[str]) -> Iterator[None]:
    if isinstance(cluster, Release):
        cluster.delete(tasks, by_force=False)
    else:
        cluster.send_signal(tasks, signal.SIGTERM)
    yield


@contextmanager
def _delete_by_force(cluster: Cluster, tasks: Sequence[str]) -> Iterator[None]:
    _release(cluster).delete(tasks, by_force=True)
    yield


@contextmanager
def _stop(cluster: Cluster, tasks: Sequence[str]) -> Iterator[None]:
    cluster.send_signal(tasks, signal.SIGSTOP)
    try:
        yield
    finally:
        for task in tasks:  # one of them may have ended meanwhile
            if cluster.processes(task):
                cluster.send_signal([task], signal.SIGCONT)


@contextmanager
def _cut_off(cluster: Cluster, tasks: Sequence[str]) -> Iterator[None]:
    networks = _release(cluster).networks(tasks)
    for network in networks:
        node.cut_off(network)
    try:
        yield
    finally:
        for network in networks:
            if Path(f"/proc/{network}").exists():
                node.reconnect(network)


@contextmanager
def _cut_checkpoint(cluster: Cluster, tasks: Sequence[str]) -> Iterator[None]:
    """Cut the newest checkpoint to half its size while the leader is stopped, then kill these tasks.

    A chief without any whole checkpoint refuses to train from the start, so there must be two.
    """

    def files() -> list[tuple[int, Path]]:
        found = [(step_of(path.name), path) for path in cluster.directory.glob("model.ckpt-*.index")]
        return sorted((step, path) for step, path in found if step is not None)

    if not until(lambda: len(files()) >= 2, SAVE_TIMEOUT_SECONDS):
        raise FaultError(f"no second checkpoint was saved within {SAVE_TIMEOUT_SECONDS:g} s")
    cluster.send_signal([cluster.workload.leader], signal.SIGSTOP)
    _, newest = files()[-1]
    for path in cluster.directory.glob(f"{newest.stem}.data-*"):
        os.truncate(path, path.stat().st_size // 2)
    cluster.send_signal(tasks, signal.SIGKILL)
    yield


@contextmanager
def _kill_in_save(cluster: Cluster, tasks: Sequence[str]) -> Iterator[None]:
    """Kill these tasks when the files of an incomplete checkpoint exist."""
    cluster.processes(tasks[0])  # the first search takes time
    deadline = time.monotonic() + SAVE_TIMEOUT_SECONDS
    saving = TrainingDirectory(cluster.directory).saving
    while not any(saving.glob("*tempstate*")):
        if time.monotonic() > deadline:
            raise FaultError(f"no checkpoint was saved within {SAVE_TIMEOUT_SECONDS:g} s")
        time.sleep(0.0005)
    cluster.send_signal(tasks, signal.SIGKILL)
    yield


@contextmanager
def _fill_volume(cluster: Cluster, tasks: Sequence[str]) -> Iterator[None]:
    """Fill the volume of the training directory, which must be small, and make room again."""
    filling = cluster.directory / "filling"
    with filling.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    try:
        yield
    finally:
        filling.unlink()


@contextmanager
def _stop_dns(cluster: Cluster, tasks: Sequence[str]) -> Iterator[None]:
    with _without_program(node.DNS):
        yield


@contextmanager
def _stop_api_server(cluster: Cluster, tasks: Sequence[str]) -> Iterator[None]:
    with _without_program(node.API_SERVER):
        yield


@contextmanager
def _without_program(name: str) -> Iterator[None]:
    """Kill a program of the node, and start it again at the end."""
    node.send_signal([name], signal.SIGKILL)
    try:
        yield
    finally:
        node.start_everything()


@contextmanager
def _restart_kubelet(cluster: Cluster, tasks: Sequence[str]) -> Iterator[None]:
    with _without_program(node.KUBELET):
        yield


@contextmanager
def _restart_node(cluster: Cluster, tasks: Sequence[str]) -> Iterator[None]:
    _release(cluster)
    node.stop_everything()
    try:
        yield
    finally:
        node.start_everything()


@contextmanager
def _lose_node(cluster: Cluster, tasks: Sequence[str]) -> Iterator[None]:
    """Stop the kubelet of the second node, on which these tasks run on: to Kubernetes the node has vanished."""
    release = _release(cluster)
    if others := [task for task in tasks if release.node_of(task) != SECOND.name]:
        raise FaultError(f"{', '.join(others)} does not run on {SECOND.name}")
    node.send_signal([SECOND.kubelet], signal.SIGSTOP)
    try:
        yield
    finally:
        node.send_signal([SECOND.kubelet], signal.SIGCONT)


def _with_kill(outage: Inject) -> Inject:
    """Kill the tasks while an outage lasts."""

    @contextmanager
    def inject(cluster: Cluster, tasks: Sequence[str]) -> Iterator[None]:
        for task in tasks:
            cluster.processes(task)  # the API server, which knows their pods, may be away
        with outage(cluster, ()):
            cluster.send_signal(tasks, signal.SIGKILL)
            yield

    return inject


def _release(cluster: Cluster) -> Release:
    if not isinstance(cluster, Release):
        raise FaultError("this fault needs a release in the throw-away cluster")
    return cluster


KILL = Fault("kill -9", _kill, replaces=True)
TERMINATE = Fault("SIGTERM, with its grace period", _terminate, replaces=True)
DELETE = Fault("deleted by force", _delete_by_force, replaces=True)
STOP = Fault("stopped (SIGSTOP) for 30 s", _stop, 30)
CUT_OFF = Fault("cut off from the network for 30 s", _cut_off, 30)
CUT_CHECKPOINT = Fault("newest checkpoint cut short, then kill -9", _cut_checkpoint, replaces=True, damages=True)
KILL_IN_SAVE = Fault("kill -9 within a save", _kill_in_save, replaces=True)
FULL = Fault("volume full for 30 s", _fill_volume, 30, says="space|full|written again")
NO_DNS_KILL = Fault("DNS away for 30 s, and kill -9", _with_kill(_stop_dns), 30, replaces=True)
NO_API_SERVER_KILL = Fault("API server away for 30 s, and kill -9", _with_kill(_stop_api_server), 30, replaces=True)
KUBELET = Fault("kubelet restarted", _restart_kubelet, 2)
NODE = Fault("node stopped and started", _restart_node, 5, replaces=True)
NODE_LOST = Fault(
    "node vanishes for 180 s, and its chief writes on", _lose_node, 180, True, True, says="belongs to another"
)
