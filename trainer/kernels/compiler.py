"""The compiler of row_ops.cc, and where its library goes. It does not import TensorFlow, which takes seconds."""

import os
import shutil
import sys
from pathlib import Path

from trainer.errors import ConfigurationError

SOURCE = Path(__file__).with_name("row_ops.cc")
HEADERS = tuple(map(SOURCE.with_name, ("dynamic_table.h", "row_rules.h")))
"""What it includes."""
FOLDER = Path(sys.prefix, "lib", "distributed-tensorflow-trainer")
COMPILERS = ("g++", "c++", "clang++")
"""Of C++17, in this order, if the variable CXX names none."""


def find() -> str:
    """The path of the compiler.

    Raises:
        ConfigurationError: there is none.
    """
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    if found := next(filter(None, map(shutil.which, names)), None):
        return found
    raise ConfigurationError(f"{SOURCE.name}: no compiler of C++ ({', '.join(names)}) is on PATH; install g++.")
