"""Processes that take all CPU time they get, for tests and benchmarks of a busy machine."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_PROGRAM = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""
"""It ends by itself soon after its parent, also where that was killed."""


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run so many until the end of the context."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            started.append(subprocess.Popen([sys.executable, "-c", _PROGRAM, str(os.getpid())]))
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
