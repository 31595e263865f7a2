"""Polling with a timeout and with log lines that name the reason of the wait."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from trainer.errors import LostPeersError

Reason = TypeVar("Reason")

MESSAGE_INTERVAL_SECONDS = 5.0

FIRST_INTERVAL_SECONDS = 0.05

logger = logging.getLogger(__name__)


def poll_until(
    check: Callable[[], Reason],
    seconds: float,
    *,
    waiting: Callable[[Reason], list[str]],
    expired: Callable[[Reason], str],
    interrupted: Callable[[], bool],
    interval: float = 0.5,
    first_message: float = 1.0,
) -> None:
    """Wait until `check` returns a false value, such as an empty string, or the wait is interrupted.

    Args:
        check: Returns the reason to wait on.
        seconds: The timeout.
        waiting: Returns the log lines for a reason. They are logged every MESSAGE_INTERVAL_SECONDS.
        expired: Returns the error sentence for the reason that holds at the timeout.
        interrupted: Returns whether to return early, without an error.
        interval: Seconds between two checks. The first ones are closer: a task that restarts is there soon.
        first_message: Seconds before the first log lines.

    Raises:
        LostPeersError: the timeout has passed.
    """
    began = time.monotonic()
    next_message = began + first_message
    while not interrupted():
        reason = check()
        if not reason:
            return
        now = time.monotonic()
        if now - began >= seconds:
            raise LostPeersError(expired(reason))
        if now >= next_message:
            for line in waiting(reason):
                logger.info(line)
            next_message = now + MESSAGE_INTERVAL_SECONDS
        time.sleep(min(interval, FIRST_INTERVAL_SECONDS + (now - began) / 10))
