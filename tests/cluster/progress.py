"""Telling a waiting person what is being done and how long it took; writes to standard output only."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def step(name: str) -> Iterator[None]:
    """Show one line for the work inside: its name at once, its seconds when it is done."""
    begun = time.monotonic()
    print(f"  {name:<32}", end="", flush=True)
    try:
        yield
    except BaseException:
        print(" failed", flush=True)
        raise
    print(f" {time.monotonic() - begun:6.1f} s", flush=True)
