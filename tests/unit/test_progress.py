"""Progress lines and the clock."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.telemetry import progress
from trainer.telemetry.progress import Clock, Progress, parse

steps = st.integers(0, 10**12)
measures = st.floats(0, 1e6)


@given(st.builds(Progress, steps, steps, measures, st.floats(0, 1), measures), st.text())
def test_a_printed_line_is_parsed_with_any_prefix(written: Progress, before: str) -> None:
    found = parse(before + str(written) + "\n")
    assert found is not None
    assert str(found) == str(written)
    assert (found.step, found.train_steps) == (written.step, written.train_steps)
    assert found.loss == pytest.approx(written.loss, abs=1e-4)
    assert found.accuracy == pytest.approx(written.accuracy, abs=1e-3)
    assert found.steps_per_second == pytest.approx(written.steps_per_second, abs=0.1)


def test_a_log_line_is_parsed() -> None:
    line = "17:03:09 worker 0: step 120/200: loss 0.3456, accuracy 0.910, 48.5 steps/s"
    assert parse(line) == Progress(120, 200, 0.3456, 0.91, 48.5)


@pytest.mark.parametrize("loss", ["nan", "inf"])
def test_a_loss_that_is_not_finite_is_parsed(loss: str) -> None:
    found = parse(str(Progress(1, 2, float(loss), 0.1, 5.0)))
    assert found is not None
    assert str(found.loss) == loss


@given(st.text())
def test_other_lines_are_not_progress(line: str) -> None:
    assert parse(line) is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "step 1/2",
        "step one/2: loss 0.1, accuracy 0.5, 3.0 steps/s",
        "step 1/2: loss much, accuracy 0.5, 3.0 steps/s",
        "step 1/2: loss 0.1, accuracy 0.5, 3.0 steps/s or so",
        "step 1/2: loss 0.1, accuracy 0.5",
        f"step {'1' * 5000}/2: loss 0.1, accuracy 0.5, 3.0 steps/s",
    ],
)
def test_a_malformed_progress_line_is_ignored(line: str) -> None:
    assert parse(line) is None


def test_the_time_left_follows_from_the_rate() -> None:
    assert Progress(50, 200, 0, 0, 10.0).seconds_left == 15.0
    assert Progress(201, 200, 0, 0, 10.0).seconds_left == 0.0
    assert Progress(50, 200, 0, 0, 0.0).seconds_left is None


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
