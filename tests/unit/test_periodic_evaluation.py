"""Periodic evaluation during training: one candidate at a time, and a small share of the time."""

import threading
import time
from typing import Any

import pytest

from trainer.checkpoint.score import Score
from trainer.errors import ModelError
from trainer.training import periodic_evaluation
from trainer.training.periodic_evaluation import PeriodicEvaluation


class Slow:
    """Takes `seconds` to score."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.may_end = seconds, threading.Event()

    def score(self, checkpoint: str) -> Score:
        self.may_end.wait(self.seconds)
        if checkpoint == "gone":
            raise ValueError("it is gone")
        return Score(1, 1.0, {"accuracy": 0.5})

    def __exit__(self, *error: object) -> None:
        self.may_end.set()


def evaluation(evaluator: Any, found: list[str], seconds: float = 1e-9, train_steps: int = 100) -> PeriodicEvaluation:
    return PeriodicEvaluation(seconds, train_steps, lambda: evaluator, lambda candidate, score: found.append(candidate))


def test_nothing_is_due_before_the_first_interval() -> None:
    assert not evaluation(Slow(0), [], seconds=60).is_due(1)
    assert evaluation(Slow(0), []).is_due(1)


def test_one_candidate_is_evaluated_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic_evaluation, "SHARE", 1.0)
    found: list[str] = []
    evaluator = Slow(60)
    with evaluation(evaluator, found) as running:
        running.start("first", saving=0.0)
        assert not running.is_due(1)
        evaluator.may_end.set()
        running.wait()
        assert running.is_due(1)
        running.start("second", saving=0.0)
    assert found == ["first", "second"]


def test_slow_evaluations_are_rare() -> None:
    running = evaluation(Slow(0.2), [])
    running.start("candidate", saving=1.0)
    running.wait()
    assert not running.is_due(1)
    assert running._next - time.monotonic() > 1.2 * 10


def test_none_is_due_while_a_candidate_is_being_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic_evaluation, "SHARE", 1.0)
    running = evaluation(Slow(0), [])
    running.await_candidate(1)
    assert not running.is_due(1)
    running.skip()
    assert running.is_due(1)


def test_a_missing_candidate_is_not_an_error(log_lines: list[str]) -> None:
    found: list[str] = []
    running = evaluation(Slow(0.01), found)
    running.start("gone", saving=0.0)
    running.wait()
    assert found == []
    assert log_lines == ["gone could not be evaluated: it is gone"]
    assert not running.is_due(1)


def test_a_model_that_fails_on_the_held_out_data_ends_the_run() -> None:
    class Failing(Slow):
        def score(self, checkpoint: str) -> Score:
            raise ModelError("the model fails on the held-out data: it is odd.")

    running = evaluation(Failing(0), [])
    running.start("candidate", saving=0.0)
    running.wait()
    with pytest.raises(ModelError, match="it is odd"):
        running.is_due(1)


def evaluated_parts(running: PeriodicEvaluation, train_steps: int) -> list[int]:
    """The steps at which a run of single steps saves candidates, each of which is evaluated at once."""
    found = []
    for step in range(1, train_steps + 1):
        if running.is_due(step):
            found.append(step)
            running.await_candidate(step)
            running.start(str(step), saving=0.0)
            running.wait()
    return found


def test_a_short_run_is_evaluated_at_each_tenth_of_it() -> None:
    found: list[str] = []
    steps = evaluated_parts(evaluation(Slow(0), found, seconds=60), 100)
    assert steps == [10, 20, 30, 40, 50, 60, 70, 80, 90], "the last step is evaluated at the end"
    assert found == list(map(str, steps))


def test_evaluations_that_are_not_cheap_keep_to_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic_evaluation, "CHEAP_SECONDS", 0.005)
    assert evaluated_parts(evaluation(Slow(0.01), [], seconds=60), 100) == [10]


def test_the_next_tenth_waits_for_the_evaluation_in_progress() -> None:
    evaluator, found = Slow(60), list[str]()
    with evaluation(evaluator, found, seconds=60) as running:
        running.await_candidate(10)
        assert not running.is_late(19)
        assert running.is_late(20)
        running.start("first", saving=0.0)
        assert running.is_late(20)
        assert not running.is_due(20)
        running.wait(0.001)
        evaluator.may_end.set()
        running.wait(60)
        assert running.is_due(20)
        assert not running.is_late(20)
    assert found == ["first"]
