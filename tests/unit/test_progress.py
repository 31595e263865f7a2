"""Progress and the clock."""

from types import SimpleNamespace

import pytest

from trainer.telemetry import progress
from trainer.telemetry.progress import Clock, Progress


def test_the_time_left_follows_from_the_rate() -> None:
    assert Progress(50, 200, 0, {"accuracy": 0}, 10.0).seconds_left == 15.0
    assert Progress(201, 200, 0, {"accuracy": 0}, 10.0).seconds_left == 0.0
    assert Progress(50, 200, 0, {"accuracy": 0}, 0.0).seconds_left is None


def test_a_step_is_never_above_the_last_one() -> None:
    """Of two asynchronous replicas, one may take a step more."""
    assert str(Progress(201, 200, 0.5, {}, 10.0)).startswith("step 200/200: ")


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that clocks read: its attribute `now`."""
    time = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: time.now))
    return time


def test_the_rate_excludes_the_first_tenth_and_the_time_does_not(at: SimpleNamespace) -> None:
    clock = Clock(train_steps=100)
    for at.now, step in ((100.0, 0), (105.0, 5), (110.0, 10), (119.0, 100)):
        clock.tick(step)
    assert clock.seconds == 19.0
    assert clock.steps_per_second == 10.0


def test_a_resumed_run_counts_only_its_own_steps(at: SimpleNamespace) -> None:
    clock = Clock(train_steps=200)
    for at.now, step in ((100.0, 100), (101.0, 105), (102.0, 110), (105.0, 200)):
        clock.tick(step)
    assert clock.seconds == 5.0
    assert clock.steps_per_second == 30.0


def test_without_steps_time_and_rate_are_zero(at: SimpleNamespace) -> None:
    clock = Clock(train_steps=200)
    assert (clock.seconds, clock.steps_per_second) == (0.0, 0.0)
    clock.tick(200)
    at.now += 1
    assert (clock.seconds, clock.steps_per_second) == (0.0, 0.0)


def test_a_rate_of_nearly_0_has_no_end() -> None:
    assert Progress(50, 200, 0, {}, 5e-324).seconds_left is None
    assert Progress(50, 200, 0, {}, 1e-9).seconds_left is None
    rest = '"loss": 1, "metrics": {}, "steps_per_second": 1'
    line = f'a task: step #trainer {{"progress": {{"step": 1, "train_steps": 1%s, {rest}}}}}'
    assert progress.parse(line % "0") is not None
    assert progress.parse(line % ("0" * 400)) is None
