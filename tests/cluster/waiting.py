"""Waiting for a thing to become true, for a bounded time."""

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true within these seconds; asked again at short intervals."""
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return met
