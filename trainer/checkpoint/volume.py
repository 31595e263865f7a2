"""A volume that is full or read-only: the errors that say so, their report, and the wait for room."""

import logging
import time
from collections.abc import Callable

from trainer.errors import StoreError
from trainer.tensorflow.errors import NOT_WRITTEN, brief

logger = logging.getLogger(__name__)

REMINDER_SECONDS = 60.0
RETRY_SECONDS = 2.0


class WriteFailures:
    """Logs that something cannot be written: once a minute, and when it can be written again."""

    def __init__(self, what: str) -> None:
        """`what` is the subject of the sentences, such as "the checkpoint"."""
        self._what = what
        self._warned: float | None = None

    def failed(self, error: Exception) -> None:
        """Report that it could not be written."""
        now = time.monotonic()
        if self._warned is None or now - self._warned >= REMINDER_SECONDS:
            self._warned = now
            logger.warning(f"{self._what} cannot be written ({reason(error)}); training goes on, and it is tried again")

    def succeeded(self) -> None:
        """Report that it was written."""
        if self._warned is not None:
            self._warned = None
            logger.info(f"{self._what} is written again")


def reason(error: Exception) -> str:
    """What the system says about a failed write, such as "No space left on device"."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return brief(error)


def retry_writing(what: str, attempt: Callable[[], None], seconds: float, pause_watchdog: Callable[[], None]) -> None:
    """Repeat an attempt to write until it succeeds.

    Args:
        what: What is written, for the sentences.
        attempt: Raises one of NOT_WRITTEN if it fails.
        seconds: How long it is repeated.
        pause_watchdog: Called before each wait.

    Raises:
        StoreError: it failed for so long.
    """
    deadline = time.monotonic() + seconds
    warned = -REMINDER_SECONDS
    while True:
        try:
            return attempt()
        except NOT_WRITTEN as error:
            if "OOM when allocating" in str(error):  # memory, not a volume
                raise
            now = time.monotonic()
            if now > deadline:
                raise StoreError(
                    f"train_dir: {what} cannot be written ({reason(error)}): make room in the volume, and start again."
                ) from error
            if now - warned >= REMINDER_SECONDS:
                warned = now
                logger.warning(
                    f"{what} cannot be written ({reason(error)}); trying again until there is room, for at most "
                    f"{deadline - now:.0f} s"
                )
        pause_watchdog()
        time.sleep(RETRY_SECONDS)
