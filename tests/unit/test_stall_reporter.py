"""What a replica reports while it takes no step, with real sockets."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from trainer.cluster import peers
from trainer.training.watch import stall_reporter
from trainer.training.watch.watchdog import Watchdog


@pytest.fixture
def watchdog() -> Watchdog:
    return Watchdog(stall_seconds=600, grace_seconds=1, save_seconds=1)


def wait_for_lines(lines: list[str], count: int) -> None:
    deadline = time.monotonic() + 60
    while len(lines) < count:
        assert time.monotonic() < deadline, lines
        time.sleep(0.05)


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a gRPC server, as every task of TensorFlow has."""
    started = grpc.server(ThreadPoolExecutor(1))
    port = started.add_insecure_port("127.0.0.1:0")
    started.start()
    yield f"127.0.0.1:{port}"
    started.stop(None)


def test_a_task_that_refuses_connections_is_named(refusing: str, server: str) -> None:
    sentence = stall_reporter.describe({"ps 0": server, "ps 1": refusing})
    assert sentence.startswith(f"waiting for ps 1 at {refusing}: the connection is refused")


def test_one_of_several_silent_tasks_is_named(silent: str, refusing: str) -> None:
    sentence = stall_reporter.describe({"ps 0": silent, "ps 1": refusing, "ps 2": refusing})
    assert sentence.startswith(f"waiting for ps 0 at {silent}: no answer within")
    assert sentence.endswith("(and 2 more tasks)")


def test_a_stopped_task_whose_connections_the_kernel_accepts_is_named(
    server: str, answering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PROBE_SECONDS", 0.5)
    sentence = stall_reporter.describe({"worker 0": server, "worker 1": answering, "worker 2": server})
    assert sentence.startswith(f"waiting for worker 1 at {answering}: it accepts connections, but does not answer")


def test_tasks_that_answer_are_named(server: str) -> None:
    assert stall_reporter.describe({"ps 0": server}).startswith("waiting for ps 0: each answers")
    many = {f"worker {index}": server for index in range(9)}
    assert stall_reporter.describe(many).startswith("waiting for all 9 tasks that it needs: each answers")


@pytest.mark.slow
def test_a_stall_is_reported_at_growing_intervals(
    watchdog: Watchdog, refusing: str, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    monkeypatch.setattr(stall_reporter, "FIRST_SECONDS", 1.0)
    watchdog.progress()
    watchdog.operation = "taking steps"
    stall_reporter.start(watchdog, {"ps 0": refusing})
    time.sleep(0.3)
    watchdog.progress()
    wait_for_lines(log_lines, 2)
    first, second = (line.partition(" s: ") for line in log_lines[:2])
    assert first[2] == second[2] == watchdog.waits_for
    assert watchdog.waits_for.startswith(f"taking steps, waiting for ps 0 at {refusing}: the connection is refused")
    watchdog.pause()


@pytest.mark.slow
def test_a_slow_step_is_no_stall_while_the_last_one_was_as_slow(
    watchdog: Watchdog, refusing: str, monkeypatch: pytest.MonkeyPatch, log_lines: list[str]
) -> None:
    monkeypatch.setattr(stall_reporter, "FIRST_SECONDS", 0.5)
    watchdog.progress()
    time.sleep(1)
    watchdog.progress()
    stall_reporter.start(watchdog, {"ps 0": refusing})
    time.sleep(1.5)
    watchdog.pause()
    assert not log_lines
