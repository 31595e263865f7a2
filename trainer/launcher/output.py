"""What the launcher prints. A run does not end because the volume of its output is full: these lines are lost."""

import os
import sys
from typing import TextIO


def say(text: str, file: TextIO | None = None) -> None:
    """Print a line to the output, or to another file, at once.

    Raises:
        BrokenPipeError: nobody reads the output any more.
    """
    try:
        print(text, file=file or sys.stdout, flush=True)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and file is None:
            raise


def end() -> None:
    """Give up what could not be written, so that the interpreter does not fail to write it at its end."""
    for file in (sys.stdout, sys.stderr):
        try:
            file.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
