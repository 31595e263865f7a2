"""Periodic evaluation during training: one candidate at a time, and a small share of the time."""

import threading
import time
from typing import Any

import pytest

from trainer.run_directory.evaluation import Score
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


def evaluation(evaluator: Any, found: list[str], seconds: float = 1e-9) -> PeriodicEvaluation:
    return PeriodicEvaluation(seconds, lambda: evaluator, lambda candidate, score: found.append(candidate))


def test_nothing_is_due_before_the_first_interval() -> None:
    assert not evaluation(Slow(0), [], seconds=60).is_due
    assert evaluation(Slow(0), []).is_due


def test_one_candidate_is_evaluated_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic_evaluation, "SHARE", 1.0)
    found: list[str] = []
    evaluator = Slow(60)
    with evaluation(evaluator, found) as running:
        running.start("first", saving=0.0)
        assert not running.is_due
        evaluator.may_end.set()
        running.wait()
        assert running.is_due
        running.start("second", saving=0.0)
    assert found == ["first", "second"]


def test_slow_evaluations_are_rare() -> None:
    running = evaluation(Slow(0.2), [])
    running.start("candidate", saving=1.0)
    running.wait()
    assert not running.is_due
    assert running._next - time.monotonic() > 1.2 * 10


def test_none_is_due_while_a_candidate_is_being_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic_evaluation, "SHARE", 1.0)
    running = evaluation(Slow(0), [])
    running.await_candidate()
    assert not running.is_due
    running.skip()
    assert running.is_due


def test_a_missing_candidate_is_not_an_error(log_lines: list[str]) -> None:
    found: list[str] = []
    running = evaluation(Slow(0.01), found)
    running.start("gone", saving=0.0)
    running.wait()
    assert found == []
    assert log_lines == ["gone could not be evaluated: it is gone"]
    assert not running.is_due
