"""A run's result in a task's log: a marked JSON line for the supervisor, and a short text for people."""

import json
import re
from typing import Any

_LINE = re.compile(r"(?:^|: )result (\{.*\})$")


def to_line(result: dict[str, Any]) -> str:
    """Return the content of result.json as a log line."""
    return f"result {json.dumps(result)}"


def parse(line: str) -> dict[str, Any] | None:
    """Return the result in a log line; None for any other line, also for one of another program with this mark."""
    found = _LINE.search(line.rstrip())
    if not found:
        return None
    try:
        content = json.loads(found[1])
    except ValueError:
        return None
    is_result = _is_evaluation(content) and (not content.get("best") or _is_evaluation(content["best"]))
    return content if is_result else None


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
