"""A run's result, which the chief reports to the supervisor, and a short text about it for people."""

from typing import Any

from trainer.telemetry import report


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
        and isinstance(value.get("test_accuracy"), (int, float))
        and isinstance(value.get("global_step"), int)
    )


def describe(result: dict[str, Any]) -> str:
    """Return the last accuracy, and the best if it differs: test accuracy 0.9861 (best 0.9889 at step 1500)."""
    best = result.get("best") or result
    is_same = best["test_accuracy"] == result["test_accuracy"]
    more = "" if is_same else f" (best {best['test_accuracy']:.4f} at step {best['global_step']})"
    return f"test accuracy {result['test_accuracy']:.4f}{more}"
