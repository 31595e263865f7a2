"""Commands that a message names, so that a user can paste them into a shell."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def command_line(program: str, *words: object) -> str:
    """A command of this Python environment, quoted for a shell.

    The program is its name if PATH has it, and otherwise its path, relative to the working directory if it is below it.
    """
    path = Path(sys.executable).parent / program
    if shutil.which(program) == str(path):
        name = program
    else:
        name = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
    return shlex.join([name, *map(str, words)])
