"""Ends a task that is told to end or makes no progress, even while TensorFlow does not give the main thread back.

A session's run may wait for others for ever, and Python handles signals only between byte codes of the main thread. So
a thread of its own takes SIGTERM and SIGINT. It first asks: the main thread looks at `stopping` between steps, and
saves. If the main thread is still away after a grace, this thread saves by the callback it was given, and exits.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from trainer.errors import EXIT_LOST_PEERS

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Watchdog:
    """The thread, and what it and the main thread tell each other."""

    def __init__(self, stall_seconds: float, grace_seconds: float, save_seconds: float) -> None:
        """After `stall_seconds` without `progress`, once there was some, or `grace_seconds` after a signal, it acts.

        Then `last_save` may take `save_seconds`.
        """
        self._stall_seconds = stall_seconds
        self._grace_seconds = grace_seconds
        self._save_seconds = save_seconds
        self._stopping = threading.Event()
        self._finished = threading.Event()
        self._last_progress: float | None = None
        self._thread = threading.Thread(target=self._watch, name="guard", daemon=True)
        self.exit_code = 0
        self.last_save: Callable[[], None] | None = None
        """Set by a chief with a session: saves a checkpoint, from this thread."""

    def start(self) -> None:
        """Take the signals. To be called before any other thread is made, as those inherit the signals' block."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """Whether this task was told to end."""
        return self._stopping.is_set()

    def progress(self) -> None:
        """The task got on."""
        self._last_progress = time.monotonic()

    def stalled_for(self) -> float:
        """Seconds since the task last got on; 0 in a phase with bounds of its own, of which its end is one."""
        since = self._last_progress
        return 0.0 if since is None or self.stopping else time.monotonic() - since

    def pause(self) -> None:
        """The task is in a phase with bounds of its own; what counts as a stall begins with the next progress."""
        self._last_progress = None

    def finished(self) -> None:
        """The main thread ends the process by itself now."""
        self._finished.set()

    def rest(self) -> None:
        """Take no more signals: from now on they wait for what this process becomes."""
        self._finished.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._finished.is_set():
            received = signal.sigtimedwait(SIGNALS, 1.0)
            if received and received.si_signo in SIGNALS:  # after a stop and SIGCONT it returns garbage
                self.exit_code = 128 + received.si_signo
                print(f"{signal.Signals(received.si_signo).name}: ending", flush=True)
                self._stopping.set()
                if not self._finished.wait(self._grace_seconds):
                    self._save_and_exit()
                return
            if self.stalled_for() > self._stall_seconds:
                print(
                    f"trainer: no global step within {self._stall_seconds:g} s: another task is lost or far too slow; "
                    f"giving up with code {EXIT_LOST_PEERS}, so that this one may be tried again.",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(EXIT_LOST_PEERS)

    def _save_and_exit(self) -> None:
        if self.last_save is not None:
            saving = threading.Thread(target=self.last_save, daemon=True)
            saving.start()
            saving.join(self._save_seconds)
        sys.stdout.flush()
        os._exit(self.exit_code)
