"""The traceback of an error that ends a command, below which its sentence follows.

`--debug` shows it. A task whose output is a log file, as `trainer launch` and the chart's `task.sh` keep it, always
writes that of an error with a cause, such as one of the user's code. Each line has a prefix then, by which a display
leaves it out.
"""

import os
import traceback

PREFIX = "  | "
DEBUG = "TASK_DEBUG"
"""The environment variable by which the tasks of a launch know of `--debug`."""


def is_wanted() -> bool:
    """Whether the user has asked for tracebacks."""
    return bool(os.environ.get(DEBUG))


def of(error: BaseException) -> list[str]:
    """The lines of the traceback of an error, with all of its causes."""
    pending: list[BaseException | None] = [error]
    while pending:
        if each := pending.pop():
            each.__suppress_context__ = False  # a sentence hides its cause
            pending += [each.__context__] if each.__cause__ is None else [each.__cause__]
    return "".join(traceback.format_exception(error)).splitlines()


def is_line(line: str) -> bool:
    """Whether a line of a log is one of a traceback."""
    return line.startswith(PREFIX)
