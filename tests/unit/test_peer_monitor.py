"""The peer monitor, with real sockets."""

import threading
import time

import pytest

from trainer.cluster import connections
from trainer.training.watch.peer_monitor import PeerMonitor

pytestmark = pytest.mark.slow


@pytest.fixture
def called() -> threading.Event:
    return threading.Event()


def test_a_lost_peer_is_reported_while_a_replica_is_stalled(
    called: threading.Event, answering: str, refusing: str
) -> None:
    others = {"worker 0": answering, "worker 1": refusing}
    with PeerMonitor(others, stalled_for=lambda: 5.0, on_lost=called.set) as monitor:
        assert called.wait(60)
    assert monitor.lost == f"worker 1 at {refusing} is gone"


@pytest.mark.parametrize("count", [8, 30])
def test_one_lost_peer_of_many_is_found(called: threading.Event, answering: str, refusing: str, count: int) -> None:
    others = {**{f"worker {index}": answering for index in range(count)}, "the last": refusing}
    with PeerMonitor(others, stalled_for=lambda: 5.0, on_lost=called.set) as monitor:
        assert called.wait(60)
    assert monitor.lost.startswith("the last")


def test_a_replica_with_progress_does_not_probe(called: threading.Event, refusing: str) -> None:
    with PeerMonitor({"worker 1": refusing}, stalled_for=lambda: 0.0, on_lost=called.set) as monitor:
        assert not called.wait(2)
    assert not monitor.lost


def test_peers_that_listen_are_not_lost(called: threading.Event, answering: str) -> None:
    with PeerMonitor({"worker 0": answering}, stalled_for=lambda: 5.0, on_lost=called.set):
        assert not called.wait(2)


def test_a_name_that_does_not_resolve_is_not_a_lost_peer(called: threading.Event) -> None:
    with PeerMonitor({"worker 0": "no-such-host.invalid:2222"}, stalled_for=lambda: 5.0, on_lost=called.set):
        assert not called.wait(2)


def test_a_peer_that_is_silent_for_long_is_lost(
    called: threading.Event, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "TIMEOUT_SECONDS", 2)
    with PeerMonitor({"worker 0": silent}, stalled_for=lambda: 5.0, on_lost=called.set) as monitor:
        assert not called.wait(1)
        assert called.wait(60)
    assert monitor.lost.startswith(f"worker 0 at {silent} has not answered for ")


def test_exit_waits_for_the_callback(refusing: str) -> None:
    begun, done = threading.Event(), threading.Event()

    def on_lost() -> None:
        begun.set()
        time.sleep(1)
        done.set()

    with PeerMonitor({"worker 1": refusing}, stalled_for=lambda: 5.0, on_lost=on_lost):
        assert begun.wait(60)
    assert done.is_set()
