"""Whether the tasks can write their logs. They cannot say it themselves while the volume is full or read-only."""

import tempfile
import time
from pathlib import Path

from trainer.launcher.output import warn

INTERVAL_SECONDS = 5.0
PROBE = bytes(4096)
GOOD_PROBES = 4
"""So many in a row say that there is room: an attempt to save a checkpoint on a full volume takes some and frees it."""


class LogVolume:
    """Reports on the launcher's error output when the logs cannot be written, and when they can be again."""

    def __init__(self, logs: Path) -> None:
        """`logs` is the folder of the logs."""
        self._logs = logs
        self._failed = False
        self._good = 0
        self._next = 0.0

    def check(self) -> None:
        """Try to write a temporary file beside the logs, unless it was tried in the last seconds."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + INTERVAL_SECONDS
        problem = _problem(self._logs)
        self._good = 0 if problem else self._good + 1
        if problem and not self._failed:
            self._failed = True
            warn(
                f"{self._logs} cannot be written ({problem}): training goes on, but what the tasks log may be lost "
                "until it can be written again"
            )
        elif self._failed and self._good == GOOD_PROBES:
            self._failed = False
            warn(f"{self._logs} can be written again")


def _problem(folder: Path) -> str:
    """Why a file cannot be written in a folder; empty if it can."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(PROBE)
    except OSError as error:
        return error.strerror or str(error)
    return ""
