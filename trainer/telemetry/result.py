"""A run's result, which the chief reports to the supervisor, and a short text about it for people."""

from typing import Any

from trainer.telemetry import report

MEASURES = ("accuracy", "loss")
"""What a result is about, the first one that it has."""


def parse(line: str) -> dict[str, Any] | None:
    """Return the content of result.json in the report of a log line; None for any other line."""
    _, content = report.split(line)
    found: dict[str, Any] = content.get("result") or {}
    if not _is_evaluation(found) or (found.get("best") and not _is_evaluation(found["best"])):
        return None
    return found


def _is_evaluation(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and any(isinstance(value.get(f"test_{name}"), (int, float)) for name in MEASURES)
        and isinstance(value.get("global_step"), int)
    )


def describe(result: dict[str, Any]) -> str:
    """Return the last accuracy, and the best if it differs: test accuracy 0.9861 (best 0.9889 at step 1500).

    Without an accuracy, it is the loss.
    """
    best = result.get("best") or result
    name = next(name for name in MEASURES if isinstance(result.get(f"test_{name}"), (int, float)))
    last, better = result[f"test_{name}"], best.get(f"test_{name}")
    more = "" if better in (None, last) else f" (best {better:.4f} at step {best['global_step']})"
    return f"test {name} {last:.4f}{more}"
