"""Poll a condition for a limited time."""

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll the condition until it is true or `seconds` have passed; returns whether it is true."""
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return met
