"""A task's server, its sessions, and the signal to parameter servers that the run is done."""

import socket
import threading
import time
from collections.abc import Callable

import psutil
import pytest

from hack.ports import free_ports
from trainer.cluster import peers, ports
from trainer.cluster.spec import Cluster, Task
from trainer.config import Settings
from trainer.errors import ConfigurationError
from trainer.shards import shared_event
from trainer.shards.shared_event import SharedEvent
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.errors import brief
from trainer.training import parameter_server, server
from trainer.training.context import TaskContext

from .conftest import THREADS, Servers


def cluster(workers: int, task: Task) -> Cluster:
    """A cluster of one parameter server and some workers on free ports, as seen by a task."""
    ps, *others = (f"localhost:{port}" for port in free_ports(1 + workers))
    return Cluster(task, (), tuple(others), (ps,))


def as_seen_by(whole: Cluster, task: Task) -> Cluster:
    return Cluster(task, whole.chief, whole.worker, whole.ps)


def test_a_port_in_use_is_a_sentence() -> None:
    with socket.create_server(("", 0)) as listener:
        address = f"localhost:{listener.getsockname()[1]}"
        taken = Cluster(Task("worker", 0), (), (address,), ("localhost:1",))
        with pytest.raises(ConfigurationError, match=f"address {address} cannot be listened on"):
            server.start(taken, THREADS)


def test_a_reserved_port_is_in_use_unless_it_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    with ports.reserve(1) as (port,):
        with pytest.raises(ConfigurationError, match="is used by another process"):
            peers.check_port_is_free(f"localhost:{port}")
        for name, value in ports.SHARING_ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        peers.check_port_is_free(f"localhost:{port}")


def test_a_session_does_not_wait_for_other_workers() -> None:
    worker = cluster(workers=2, task=Task("worker", 0))  # worker 1 never starts
    server.start(as_seen_by(worker, Task("ps", 0)), THREADS)
    own_server = server.start(worker, THREADS)
    with tf.Graph().as_default() as graph, tf1.device("/job:ps/task:0"):
        variable = tf1.get_variable("answer", initializer=42, use_resource=True)
    with own_server.session(graph, "/job:ps") as session:
        session.run(variable.initializer)
        assert session.run(variable.read_value()) == 42
        devices = {device.name.rpartition("/device")[0] for device in session.list_devices()}
    assert devices == {"/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0"}


def test_a_parameter_server_ends_after_the_signal_that_the_run_is_done(
    task_context: Callable[..., TaskContext], log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter_server, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(parameter_server, "REPLICA_EXIT_SECONDS", 0.5)  # this worker's server cannot leave
    worker = cluster(workers=1, task=Task("worker", 0))
    ps = as_seen_by(worker, Task("ps", 0))
    context = task_context(Settings(grace_seconds=60), ps)
    serving = threading.Thread(target=parameter_server.serve, args=[context, ps], daemon=True)
    serving.start()
    own_server = server.start(worker, THREADS)
    while not log_lines:  # it logs a line when its server listens
        time.sleep(0.05)
    assert serving.is_alive()
    parameter_server.signal_done(worker, own_server)
    serving.join(60)
    assert not serving.is_alive()
    assert context.metrics.serving is False
    assert log_lines == [f"serving on {worker.ps[0]}", "the run is done; waiting for the replicas to leave"]


@pytest.mark.slow
def test_a_stopping_parameter_server_stays_while_the_chief_saves(
    task_context: Callable[..., TaskContext], log_lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter_server, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(parameter_server, "LAST_SAVE_SECONDS", 0.5)
    worker = cluster(workers=1, task=Task("worker", 0))
    ps = as_seen_by(worker, Task("ps", 0))
    context = task_context(Settings(grace_seconds=60), ps)
    serving = threading.Thread(target=parameter_server.serve, args=[context, ps], daemon=True)
    serving.start()
    while not log_lines:
        time.sleep(0.05)
    with tf.Graph().as_default() as graph:
        saving = SharedEvent(shared_event.SAVING, "/job:ps/task:0")
        begin, end = saving.set(), saving.clear()
    with server.start(worker, THREADS).session(graph, "/job:ps") as session:
        session.run(begin)
        context.watchdog._stopping.set()
        serving.join(2)
        assert serving.is_alive()
        session.run(end)
        serving.join(60)
    assert not serving.is_alive()


def test_waiting_for_replicas_to_leave_ends_in_time_with_slow_dns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "PROBE_SECONDS", 600.0)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:  # a listener with a full queue that accepts no connection delays a probe
            each.setblocking(False)
            each.connect_ex(silent.getsockname())
        parameter_server._wait_until_gone([f"127.0.0.1:{silent.getsockname()[1]}"], 0.5, lambda: False)
        for each in waiting:
            each.close()


def test_an_unreachable_parameter_server_is_logged(log_lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_server, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(parameter_server, "SIGNAL_DONE_SECONDS", 0.3)
    worker = cluster(workers=1, task=Task("worker", 0))
    parameter_server.signal_done(worker, server.start(worker, THREADS))
    assert len(log_lines) == 1
    assert log_lines[0].startswith(
        f"cannot signal ps 0 at {worker.ps[0]} that the run is done: the connection is refused"
    )


def test_an_error_is_shortened_to_its_first_line() -> None:
    assert brief(RuntimeError("what\nwhere\nwhy")) == "what"
    placed = "Graph execution error:\n\nDetected at node 'a':\n    File b\nNode: 'a'\nFrom /job:c:\nwhat\nwhy"
    assert brief(RuntimeError(placed)) == "what"
    assert len(brief(RuntimeError("x" * 1000))) == 200


def test_a_line_without_letters_is_skipped() -> None:
    listed = "\n=====================\nFrom /job:worker/replica:0/task:1:\nwhat\nwhy\n=====================\n"
    assert brief(RuntimeError(listed)) == "what"
    assert brief(RuntimeError("2 root error(s) found.\n  (0) UNKNOWN: what\nwhy\n  (1) UNKNOWN: that")) == "what"
    coded = "=====================\nINVALID_ARGUMENT: From /job:worker/replica:0/task:0:\nwhat\nINVALID_ARGUMENT: why\n"
    assert brief(RuntimeError(coded)) == "what"
    eager = (
        "{{function_node __wrapped__IteratorGetNext_device_/job:localhost}} a; No such file [Op:IteratorGetNext] name: "
    )
    assert brief(RuntimeError(eager)) == "a; No such file"
    assert brief(RuntimeError("=====")) == "RuntimeError"
    assert brief(RuntimeError()) == "RuntimeError"


def test_sessions_that_are_opened_again_and_again_hold_no_more_memory(servers: Servers) -> None:
    with tf.Graph().as_default() as graph, tf.device("/job:worker/task:0"):
        total = tf.random.uniform([10])
        for number in range(3000):
            total += float(number)
    memory = []
    for _ in range(10):
        with servers.running[Task("worker", 0)].session(graph) as session:
            session.run(total)
        memory.append(psutil.Process().memory_info().rss / 2**20)
    assert memory[-1] - memory[2] < 50, "MiB; glibc would keep some 15 of each session"
