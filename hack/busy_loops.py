"""Processes that use all the CPU time they get, for tests and benchmarks of a busy machine."""

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
"""It exits soon after its parent, even if the parent is killed."""


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run `count` busy loops until the context ends."""
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
