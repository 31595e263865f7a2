"""Numbers of requests between tasks that do not occur twice, in place of TensorFlow's (request_ids.cc)."""

import contextlib
import ctypes
from pathlib import Path

from trainer import compiler

SOURCE = Path(__file__).with_name("request_ids.cc")


def build() -> Path:
    """Compile the library, unless that was done; return its path.

    Raises:
        ConfigurationError: there is no compiler, it fails, or the library cannot be written.
    """
    return compiler.build(SOURCE, compiler.place(SOURCE), ["-std=c++17"])


def load() -> None:
    """Load the library, if it was compiled. What is loaded later, as TensorFlow must be, uses its function."""
    with contextlib.suppress(OSError):  # not compiled, or for another machine
        ctypes.CDLL(str(compiler.place(SOURCE)), mode=ctypes.RTLD_GLOBAL)
