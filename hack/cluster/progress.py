"""Progress lines on standard output: what the tool does and how long it takes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print one line for a step: its name at the start, its seconds at the end."""
    started = time.monotonic()
    print(f"  {name:<32}", end="", flush=True)
    try:
        yield
    except BaseException:
        print(" failed", flush=True)
        raise
    print(f" {time.monotonic() - started:6.1f} s", flush=True)
