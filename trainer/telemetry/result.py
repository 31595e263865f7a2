"""A run's result, which the chief reports to the supervisor, and a short text about it for people."""

import contextlib
import math
from datetime import datetime
from typing import Any

from trainer.telemetry import report

LABELS = {"auc": "AUC", "r2": "R²", "mae": "mean absolute error"}
"""What metrics are called in a text."""
ROUNDING = 1e-4
"""Of what a result has."""
MEASURES = ("accuracy", "loss")
"""What a result is about that does not name its metric, the first one that it has."""


def parse(line: str) -> dict[str, Any] | None:
    """Return the content of result.json in the report of a log line; None for any other line."""
    _, content = report.split(line)
    found: Any = content.get("result")
    if not isinstance(found, dict) or not _is_evaluation(found, found):
        return None
    if found.get("best") and not _is_evaluation(found["best"], found):
        return None
    return dict(found)


def _is_evaluation(value: Any, result: dict[str, Any]) -> bool:
    if not isinstance(value, dict) or not _measures(value, result):
        return False
    step = value.get("global_step")
    return isinstance(step, int) and _is_number(step)


def _measures(evaluation: dict[str, Any], result: dict[str, Any]) -> dict[str, float]:
    """The measures that an evaluation has, by name: first the metric by which the best is chosen.

    JSON has null for a value that is not finite, that of a run that has diverged: it is NaN here.
    """
    names = dict.fromkeys([str(result.get("best_metric")), *MEASURES])
    found: dict[str, Any] = {name: evaluation.get(f"test_{name}", "") for name in names}
    numbers = {name: math.nan if value is None else value for name, value in found.items()}
    return {name: float(value) for name, value in numbers.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def written(result: dict[str, Any]) -> float | None:
    """When the result was written, in seconds since 1970; None if it does not say so."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return datetime.fromisoformat(result["updated"]).timestamp()
    return None


def describe(result: dict[str, Any]) -> str:
    """Return the last value of the metric, and the best if it differs: test accuracy 0.9861 (best 0.9889 at step 1500).

    The metric is that by which the best checkpoint is chosen, or otherwise the accuracy or the loss.
    """
    best = result.get("best") or result
    name, last = next(iter(_measures(result, result).items()))
    better = _measures(best, result).get(name)
    more = "" if better in (None, last) else f" (best {better:.4f} at step {best['global_step']})"
    return f"test {name.replace('_', ' ')} {last:.4f}{more}"


def against_baseline(result: dict[str, Any]) -> str:
    """Return how good the exported model is beside the best constant prediction; empty if that is not known."""
    baseline = result.get("baseline")
    if not isinstance(baseline, dict):
        return ""
    best = result.get("best") or {}
    is_best = str(result.get("export", "")).endswith(f"/{best.get('global_step')}")
    exported = best if is_best else result
    measured = {name: exported.get(f"test_{name}") for name in ("accuracy", "auc", "r2", "mae")}
    found = {name: value for name, value in measured.items() if isinstance(value, float)}
    shown, constant = (
        ", ".join(f"{LABELS.get(name, name)} {each[name]:.4g}" for name in found if isinstance(each.get(name), float))
        for each in (found, baseline)
    )
    if not constant:
        return ""
    worse = ""
    if found.get("r2", 1.0) <= 0 or (not found.get("r2") and found.get("mae", 0.0) > baseline.get("mae", math.inf)):
        worse = ": the model is no better; other inputs or more rows may help"
    elif "accuracy" in found and found["accuracy"] < baseline.get("accuracy", 0.0) - ROUNDING:
        rank = "; rank by the probability, or predict with another --threshold" if found.get("auc", 0) > 0.5 else ""
        worse = f": the model is less often right{rank}"
    elif found.get("auc", 1.0) <= 0.5:
        worse = ": the model ranks no better than chance; other inputs or more rows may help"
    return f"the model of step {exported.get('global_step')}: {shown}; {baseline.get('what')}: {constant}{worse}"


def early_end(result: dict[str, Any]) -> str:
    """Return that a callback has ended the run before its last step, and at which; empty if none has."""
    step, last = result["global_step"], result.get("stopped_before")
    return f"a callback ended the run at step {step} of {last}" if _is_number(last) and step < last else ""
