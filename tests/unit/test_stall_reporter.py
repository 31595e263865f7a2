"""What a replica reports while it takes no step, with real sockets."""

import time

import pytest

from trainer.training import stall_reporter
from trainer.training.watchdog import Watchdog


@pytest.fixture
def watchdog() -> Watchdog:
    return Watchdog(stall_seconds=600, grace_seconds=1, save_seconds=1)


def wait_for_lines(lines: list[str], count: int) -> None:
    deadline = time.monotonic() + 60
    while len(lines) < count:
        assert time.monotonic() < deadline, lines
        time.sleep(0.05)


def test_a_task_that_refuses_connections_is_named(refusing: str, answering: str) -> None:
    sentence = stall_reporter.describe({"ps 0": answering, "ps 1": refusing})
    assert sentence.startswith(f"waiting for ps 1 at {refusing}: the connection is refused")


def test_one_of_several_silent_tasks_is_named(silent: str, refusing: str) -> None:
    sentence = stall_reporter.describe({"ps 0": silent, "ps 1": refusing, "ps 2": refusing})
    assert sentence.startswith(f"waiting for ps 0 at {silent}: no answer within")
    assert sentence.endswith("(and 2 more tasks)")


def test_tasks_that_accept_connections_are_named(answering: str) -> None:
    assert stall_reporter.describe({"ps 0": answering}).startswith("waiting for ps 0: connections are accepted")
    many = {f"worker {index}": answering for index in range(9)}
    assert stall_reporter.describe(many).startswith("waiting for all 9 tasks that it needs: connections are accepted")


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
