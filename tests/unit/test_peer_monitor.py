"""The lookout, with real sockets."""

import threading
import time

import pytest

from trainer.training.peer_monitor import PeerMonitor


@pytest.fixture
def acted() -> threading.Event:
    return threading.Event()


def test_who_is_gone_is_told_once_a_replica_is_held_up(acted: threading.Event, answering: str, refusing: str) -> None:
    others = {"worker 0": answering, "worker 1": refusing}
    with PeerMonitor(others, stalled_for=lambda: 5.0, act=acted.set) as monitor:
        assert acted.wait(60)
    assert monitor.found == f"worker 1 at {refusing} is gone"


@pytest.mark.parametrize("count", [8, 30])
def test_one_of_many_is_found_in_its_turn(acted: threading.Event, answering: str, refusing: str, count: int) -> None:
    others = {**{f"worker {index}": answering for index in range(count)}, "the last": refusing}
    with PeerMonitor(others, stalled_for=lambda: 5.0, act=acted.set) as monitor:
        assert acted.wait(60)
    assert monitor.found.startswith("the last")


def test_who_gets_on_looks_at_nobody(acted: threading.Event, refusing: str) -> None:
    with PeerMonitor({"worker 1": refusing}, stalled_for=lambda: 0.0, act=acted.set) as monitor:
        assert not acted.wait(2)
    assert not monitor.found


def test_others_that_are_there_are_left_alone(acted: threading.Event, answering: str) -> None:
    with PeerMonitor({"worker 0": answering}, stalled_for=lambda: 5.0, act=acted.set):
        assert not acted.wait(2)


def test_a_name_that_does_not_resolve_for_a_while_is_no_reason(acted: threading.Event) -> None:
    with PeerMonitor({"worker 0": "no-such-host.invalid:2222"}, stalled_for=lambda: 5.0, act=acted.set):
        assert not acted.wait(2)


def test_the_end_waits_for_what_was_begun(refusing: str) -> None:
    begun, done = threading.Event(), threading.Event()

    def act() -> None:
        begun.set()
        time.sleep(1)
        done.set()

    with PeerMonitor({"worker 1": refusing}, stalled_for=lambda: 5.0, act=act):
        assert begun.wait(60)
    assert done.is_set()
