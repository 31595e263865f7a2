"""What the launcher prints. A run does not end because the volume of its output is full: these lines are lost.

Only the result as JSON must be written: a program reads it.
"""

import contextlib
import os
import sys


class OutputClosedError(Exception):
    """Nobody reads the output any more."""


def write(text: str) -> None:
    """Print a line to the output, at once.

    Raises:
        OutputClosedError: nobody reads it.
        OSError: it cannot be written.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise OutputClosedError from None


def say(text: str) -> None:
    """Print a line to the output, if that is possible.

    Raises:
        OutputClosedError: nobody reads it.
    """
    with contextlib.suppress(OSError):
        write(text)


def warn(text: str) -> None:
    """Print a line to the error output, if that is possible."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def discard_unwritten() -> None:
    """Give up what could not be written, so that the interpreter does not fail to write it at its end."""
    for file in filter(None, (sys.stdout, sys.stderr)):
        try:
            file.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
