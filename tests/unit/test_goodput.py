"""The account of a run's time: its parts add up, whatever happens."""

import json
import math
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.telemetry import goodput
from trainer.telemetry.goodput import LAUNCHED, Account, Seconds, describe, read

START = 1_000_000.0


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still until a test sets `now`, in seconds since `START`."""
    return stop_clock(monkeypatch)


def stop_clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    at = SimpleNamespace(now=0.0)
    clock = SimpleNamespace(time=lambda: START + at.now, monotonic=lambda: at.now)
    monkeypatch.setattr(goodput, "time", clock)
    return at


def stored(account: Account) -> Any:
    """What the account looks like after a round trip through result.json."""
    return json.loads(json.dumps(account.to_json()))


def trained(at: SimpleNamespace) -> Account:
    """An account of 10 seconds of start and 100 seconds of 1,000 steps."""
    account = Account(START)
    for at.now, step in zip(range(10, 111), range(0, 1001, 10), strict=True):
        account.step(step)
    return account


def test_the_time_to_the_first_step_is_the_start(at: SimpleNamespace) -> None:
    account = trained(at)
    assert account.seconds == Seconds(starting=10, training=100)
    assert math.isclose(account.seconds.goodput, 100 / 110)
    at.now += 1
    assert account.seconds.training == 101


def test_steps_below_the_highest_one_are_taken_again(at: SimpleNamespace) -> None:
    account = trained(at)
    account.lost()
    at.now += 5
    account.step(910)
    for _ in range(10):
        at.now += 1
        account.step(account._step + 10)
    assert account.seconds == Seconds(starting=10, training=101, again=9, waiting=5)


def test_a_long_pause_within_a_step_is_a_wait(at: SimpleNamespace) -> None:
    account = trained(at)
    at.now += 31
    account.step(1010)
    assert account.seconds == Seconds(starting=10, training=101, waiting=30)


def test_a_run_that_becomes_slower_waits_for_a_while_only(at: SimpleNamespace) -> None:
    account = trained(at)
    for step in range(1001, 1101):  # of 0.1 s before
        at.now += 10
        account.step(step)
    assert account.seconds.waiting < 300
    assert account.seconds.training > 800


def test_a_process_that_executes_itself_again_begins_then(at: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    at.now = 50
    monkeypatch.setenv(goodput.BEGAN, str(START + 40))
    assert Account().seconds == Seconds(starting=10)


def test_saving_is_no_training(at: SimpleNamespace) -> None:
    account = trained(at)
    with account.saving():
        at.now += 3
        assert account.seconds == Seconds(starting=10, training=100, saving=3), "as a record within it has"
    at.now += 1
    account.step(1010)
    assert account.seconds == Seconds(starting=10, training=101, saving=3)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (1000, Seconds(scheduling=20, starting=15, training=100)),
        (1100, Seconds(scheduling=10, starting=15, training=110)),
        (1200, Seconds(scheduling=0, starting=15, training=120)),
        (1220, Seconds(starting=13, training=122)),
        (5000, Seconds(starting=10, training=125)),
        (900, Seconds(scheduling=20, starting=15, training=100)),
    ],
)
def test_the_steps_of_others_count_while_the_chief_is_away(at: SimpleNamespace, step: int, expected: Seconds) -> None:
    before = stored(trained(at))
    at.now = 130
    after = Account(START + at.now)
    after.resume(before, START + 110)
    assert after.seconds == Seconds(scheduling=20, starting=10, training=100)
    at.now += 5
    after.step(step)
    assert asdict(after.seconds) == pytest.approx(asdict(expected))
    at.now += 1
    after.step(step + 10)
    assert after.seconds.total == pytest.approx(136)


def test_a_run_that_was_done_has_waited_for_nobody(at: SimpleNamespace) -> None:
    before = stored(trained(at))
    at.now = 10_000
    after = Account(START + at.now)
    after.resume(before, None)
    assert after.seconds == Seconds(starting=10, training=100)


def test_nobody_has_waited_between_two_launches(at: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored(trained(at))
    at.now = 10_000
    monkeypatch.setenv(LAUNCHED, str(START + at.now - 3))
    after = Account(START + at.now)
    after.resume(before, START + 110)
    assert after.seconds == Seconds(scheduling=3, starting=10, training=100)


@pytest.mark.parametrize(
    "result", [{}, {"goodput_seconds": 3}, {"goodput_seconds": {"training": "x"}, "furthest_step": 1}]
)
def test_a_result_without_an_account_begins_one(at: SimpleNamespace, result: dict[str, Any]) -> None:
    account = Account(START)
    account.resume(result, START - 100)
    at.now = 1
    assert account.seconds == Seconds(starting=1)
    assert describe(read(result)) == ""


def test_the_largest_part_is_named_first() -> None:
    shown = describe(Seconds(starting=3.14, training=42, saving=0.01))
    assert shown == "goodput 93.0 %: training 42.0 s, starting 3.1 s"


EVENTS = st.one_of(
    st.tuples(st.just("step"), st.integers(0, 1000)),
    st.tuples(st.sampled_from(["lost", "save", "restart"]), st.just(0)),
)


@given(st.lists(st.tuples(st.floats(0, 100), EVENTS), max_size=30))
def test_the_parts_are_the_whole_time_whatever_happens(events: list[tuple[float, tuple[str, int]]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        at = stop_clock(monkeypatch)
        account = Account(START)
        for seconds, (kind, step) in events:
            at.now += seconds
            if kind == "step":
                account.step(step)
            elif kind == "lost":
                account.lost()
            elif kind == "save":
                with account.saving():
                    at.now += seconds
            else:
                before, written = account.to_json(), START + at.now
                at.now += seconds
                account = Account(START + at.now)
                account.resume(before, written)
        found = asdict(account.seconds)
        assert min(found.values()) >= 0
        assert sum(found.values()) == pytest.approx(at.now, abs=0.1)
