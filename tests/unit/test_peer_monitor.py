"""The peer monitor, with real sockets."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from trainer.cluster import connections
from trainer.training.watch.peer_monitor import STALLED_SECONDS, PeerMonitor

from .conftest import GrpcServer

pytestmark = pytest.mark.slow


@dataclass
class Still:
    """A replica that has always been stalled for so long."""

    stalled: float
    last_interval: float = 0.0

    def stalled_for(self) -> float:
        return self.stalled


class Blocked:
    """A replica that takes no step from now on."""

    def __init__(self, last_interval: float = 0.0) -> None:
        self.last_interval, self._since = last_interval, time.monotonic()

    def stalled_for(self) -> float:
        return time.monotonic() - self._since


@pytest.fixture
def called() -> threading.Event:
    return threading.Event()


def test_a_lost_peer_is_reported_while_a_replica_is_stalled(
    called: threading.Event, answering: str, refusing: str
) -> None:
    others = {"worker 0": answering, "worker 1": refusing}
    with PeerMonitor(others, {}, progress=Still(5.0), on_lost=called.set) as monitor:
        assert called.wait(60)
    assert monitor.lost == f"worker 1 at {refusing} is gone"


@pytest.mark.parametrize("count", [8, 30])
def test_one_lost_peer_of_many_is_found(called: threading.Event, answering: str, refusing: str, count: int) -> None:
    others = {**{f"worker {index}": answering for index in range(count)}, "the last": refusing}
    with PeerMonitor(others, {}, progress=Still(5.0), on_lost=called.set) as monitor:
        assert called.wait(60)
    assert monitor.lost.startswith("the last")


def test_a_replica_with_progress_does_not_probe(called: threading.Event, refusing: str) -> None:
    with PeerMonitor({"worker 1": refusing}, {}, progress=Still(0.0), on_lost=called.set) as monitor:
        assert not called.wait(2)
    assert not monitor.lost


def test_peers_that_listen_are_not_lost(called: threading.Event, answering: str) -> None:
    with PeerMonitor({"worker 0": answering}, {}, progress=Still(5.0), on_lost=called.set):
        assert not called.wait(2)


def test_a_name_that_does_not_resolve_is_not_a_lost_peer(called: threading.Event) -> None:
    with PeerMonitor({"worker 0": "no-such-host.invalid:2222"}, {}, progress=Still(5.0), on_lost=called.set):
        assert not called.wait(2)


def test_a_peer_that_is_silent_for_long_is_lost(
    called: threading.Event, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "TIMEOUT_SECONDS", 2)
    with PeerMonitor({"worker 0": silent}, {}, progress=Still(5.0), on_lost=called.set) as monitor:
        assert not called.wait(1)
        assert called.wait(60)
    assert monitor.lost.startswith(f"worker 0 at {silent} has not answered for ")


def test_exit_waits_for_the_callback(refusing: str) -> None:
    begun, done = threading.Event(), threading.Event()

    def on_lost() -> None:
        begun.set()
        time.sleep(1)
        done.set()

    with PeerMonitor({"worker 1": refusing}, {}, progress=Still(5.0), on_lost=on_lost):
        assert begun.wait(60)
    assert done.is_set()


SETTINGS_FRAME = b"\0\0\0\4\0\0\0\0\0"


def test_a_watched_peer_is_lost_when_its_process_ends(called: threading.Event, grpc_server: GrpcServer) -> None:
    others = {"worker 1": grpc_server.address}
    with PeerMonitor(others, others, progress=Still(STALLED_SECONDS / 2), on_lost=called.set) as monitor:
        assert not called.wait(1)
        grpc_server.process.kill()
        assert called.wait(60)
    assert monitor.lost == f"worker 1 at {others['worker 1']} is gone"


def test_a_watched_peer_that_ends_is_not_lost_while_a_replica_has_progress(
    called: threading.Event, grpc_server: GrpcServer
) -> None:
    others = {"worker 1": grpc_server.address}
    with PeerMonitor(others, others, progress=Still(0.0), on_lost=called.set):
        assert not called.wait(1)
        grpc_server.process.kill()
        assert not called.wait(2)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """What is between two tasks, or a program that has taken the place of another."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(60)
        yield made


def close_a_connection(listener: socket.socket) -> None:
    """Wait for a connection that a gRPC client begins, which a probe does not, and close it after the handshake."""
    is_client = False
    while not is_client:
        with listener.accept()[0] as connection:
            connection.settimeout(60)
            if is_client := bool(connection.recv(4096)):
                connection.sendall(SETTINGS_FRAME)
                connection.recv(4096)


def test_a_connection_that_is_closed_between_two_steps_is_opened_again(
    called: threading.Event, listener: socket.socket
) -> None:
    others = {"worker 1": f"127.0.0.1:{listener.getsockname()[1]}"}
    with PeerMonitor(others, others, progress=Still(STALLED_SECONDS / 2), on_lost=called.set):
        close_a_connection(listener)
        close_a_connection(listener)
        assert not called.is_set()


def test_a_peer_whose_connection_is_closed_is_lost_if_no_step_ends_although_its_address_answers(
    called: threading.Event, listener: socket.socket
) -> None:
    others = {"worker 1": f"127.0.0.1:{listener.getsockname()[1]}"}
    with PeerMonitor(others, others, progress=Blocked(), on_lost=called.set) as monitor:
        close_a_connection(listener)
        assert called.wait(60)
    assert monitor.lost.endswith("is gone")


def test_a_connection_that_is_closed_within_a_long_step_is_no_loss(
    called: threading.Event, listener: socket.socket
) -> None:
    others = {"worker 1": f"127.0.0.1:{listener.getsockname()[1]}"}
    with PeerMonitor(others, others, Blocked(last_interval=60.0), on_lost=called.set):
        close_a_connection(listener)
        assert not called.wait(2 * STALLED_SECONDS)


def test_peers_that_do_not_answer_do_not_block_the_exit(silent: str, called: threading.Event) -> None:
    others = {f"worker {index}": silent for index in range(100)}
    began = time.monotonic()
    with PeerMonitor(others, others, Still(0.0), on_lost=called.set):
        time.sleep(1)
    assert time.monotonic() - began < 30, "100 waits of half a second"
