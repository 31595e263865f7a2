"""Reports: what a task tells the launcher and the supervisor, in JSON at the end of a log line.

The line begins with a sentence for people. Programs read only the JSON after the mark, so the sentence may change:

    12:00:00 worker 0: step 100/200: loss 0.3456, accuracy 0.910, 48.5 steps/s #trainer {"progress": {…}, "time": …}

`time` is in seconds since the epoch. What a task reports beside its progress:

    started     {"version": …}                  a process of the task has started
    restored    a path                          the chief has restored this checkpoint
    saved       seconds since the epoch         beside the progress: when the chief saved its last checkpoint
    lost        {"reason": …}                   the task has lost another one, and reconnects or restarts
    ended       {"code": …, "reason": …}        the process ends, but the run is not done
    result      the content of result.json; the run is done
"""

import json
import logging
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

MARK = " #trainer "
VARIABLE = "TASK_REPORTS"
"""The environment variable that the launcher and the chart's `task.sh` set: without it, lines have no reports."""

Value = TypeVar("Value")


def log(logger: logging.Logger, sentence: str, **report: Any) -> None:
    """Log a sentence with a report. Only `Formatter` writes the report."""
    logger.info(sentence, extra={"report": report})


class Formatter(logging.Formatter):
    """Adds the report of a record to its line."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        report = getattr(record, "report", None)
        return f"{line}{MARK}{json.dumps({**report, 'time': round(record.created, 3)})}" if report else line


def split(line: str) -> tuple[str, dict[str, Any]]:
    """Return a log line without its report, and the report; empty if there is none."""
    sentence, _, text = line.rstrip().rpartition(MARK)
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        return line.rstrip(), {}
    return (sentence, report) if sentence and isinstance(report, dict) else (line.rstrip(), {})


def read(line: str, name: str, of: type[Value]) -> Value | None:
    """Return the value with this name in the report of a log line; None if it is absent or not of this type."""
    _, report = split(line)
    try:
        return TypeAdapter(of).validate_python(report[name])
    except (KeyError, ValidationError):
        return None
