"""A run's result in a line of a log."""

import json
from typing import Any

import pytest

from trainer.telemetry import report, result


def line_of(content: Any) -> str:
    return f"20:24:05 worker 0: done{report.MARK}{json.dumps({'result': content})}"


DONE: dict[str, Any] = {"state": "done", "test_accuracy": 0.9861, "global_step": 2000}


def test_a_result_is_read() -> None:
    assert result.parse(f"{line_of(DONE)}\n") == DONE


@pytest.mark.parametrize(
    "line",
    ["", "20:24:05 worker 0: done: 2000 steps", line_of(None), line_of(3), line_of([1]), line_of({"x": 1})],
)
def test_other_lines_are_ignored(line: str) -> None:
    assert result.parse(line) is None


@pytest.mark.parametrize(
    "more",
    [
        {"test_accuracy": []},
        {"test_accuracy": "98%"},
        {"global_step": None},
        {"best": 3},
        {"best": {"test_accuracy": 0.9889}},
        {"best": {"test_accuracy": "98%", "global_step": 1500}},
    ],
)
def test_a_marked_line_of_another_program_is_ignored(more: dict[str, Any]) -> None:
    assert result.parse(line_of(DONE | more)) is None


@pytest.mark.parametrize("best", [None, {"test_accuracy": 0.9889, "global_step": 1500}])
def test_the_best_may_be_absent(best: dict[str, Any] | None) -> None:
    assert result.parse(line_of(DONE | {"best": best})) == DONE | {"best": best}


def test_the_best_is_described_if_it_differs_from_the_last() -> None:
    best = {"test_accuracy": 0.9889, "global_step": 1500}
    assert result.describe(DONE) == "test accuracy 0.9861"
    assert result.describe(DONE | {"best": {**best, "test_accuracy": 0.9861}}) == "test accuracy 0.9861"
    assert result.describe(DONE | {"best": best}) == "test accuracy 0.9861 (best 0.9889 at step 1500)"


def test_a_run_that_has_diverged_has_a_loss_of_nan_and_its_best() -> None:
    diverged = {"global_step": 5, "best_metric": "loss", "test_loss": None}
    best = {"test_loss": 1633.7032, "global_step": 1}
    found = result.parse(line_of({**diverged, "best": best}))
    assert found is not None
    assert result.describe(found) == "test loss nan (best 1633.7032 at step 1)"
    assert result.describe(diverged) == "test loss nan"


def test_measures_that_are_no_numbers_are_not_described() -> None:
    best = {"test_accuracy": "98%", "test_loss": 0.1, "global_step": 1500}
    (found,) = [result.parse(line_of({**DONE, "best": best}))]
    assert found is not None
    assert result.describe(found) == "test accuracy 0.9861"
    assert result.parse(line_of({**DONE, "test_accuracy": 10**400})) is None
    assert result.parse(line_of({**DONE, "global_step": 10**400})) is None


def test_a_run_that_a_callback_ended_before_its_last_step_ended_early() -> None:
    assert result.early_end(DONE | {"stopped_before": 5000}) == "a callback ended the run at step 2000 of 5000"
    for last in (2000, None, "5000", 10**400):
        assert result.early_end(DONE | {"stopped_before": last}) == ""
    assert result.early_end(DONE) == ""


@pytest.mark.parametrize(
    ("measured", "baseline", "said"),
    [
        ({"test_accuracy": 0.9, "test_auc": 0.8}, {"accuracy": 0.9}, "accuracy 0.9, AUC 0.8; always no: accuracy 0.9"),
        ({"test_accuracy": 0.9, "test_auc": 0.4}, {"accuracy": 0.9}, ": the model ranks no better than chance"),
        ({"test_accuracy": 0.8, "test_auc": 0.8}, {"accuracy": 0.9}, ": the model is less often right; rank by"),
        ({"test_r2": -0.1}, {"r2": 0.0}, ": the model is no better"),
        ({"test_r2": 0.1, "test_mae": 2.0}, {"r2": 0.0, "mae": 1.0}, "R² 0, mean absolute error 1"),
        ({"test_mae": 2.0}, {"r2": 0.0, "mae": 1.0}, ": the model is no better"),
    ],
)
def test_a_model_that_is_no_better_than_a_constant_is_said_to_be(measured: Any, baseline: Any, said: str) -> None:
    found = {"global_step": 9, "export": "runs/export/9", "baseline": {"what": "always no", **baseline}, **measured}
    assert said in result.against_baseline(found)


def test_nothing_is_said_without_a_common_measure() -> None:
    found = {"global_step": 9, "test_mae": 0.3, "baseline": {"what": "always no", "accuracy": 0.9}}
    assert result.against_baseline(found) == ""
