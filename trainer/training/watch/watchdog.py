"""Ends a task after a signal or a stall, even while TensorFlow blocks the main thread.

A session run may wait for other tasks forever, and Python handles signals only between bytecodes of the main thread.
Therefore a separate thread receives SIGTERM and SIGINT. It sets `stopping`; the main thread checks `stopping` between
steps, and saves. If the main thread has not finished after `grace_seconds`, the watchdog saves with a callback and
exits.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from trainer.errors import EXIT_LOST_PEERS, StoreError, SupersededError

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Watchdog:
    """The watchdog thread and the state that it shares with the main thread."""

    def __init__(self, stall_seconds: float, grace_seconds: float, save_seconds: float) -> None:
        """Configure the timeouts.

        Args:
            stall_seconds: Exit after this time without `progress`, counted from the first progress.
            grace_seconds: Save and exit this long after a signal if the main thread has not finished.
            save_seconds: The maximum time for `save_before_exit` and `push_before_exit`.
        """
        self.stall_seconds = stall_seconds
        self._grace_seconds = grace_seconds
        self._save_seconds = save_seconds
        self._stopping = threading.Event()
        self._finished = threading.Event()
        self._is_released = False
        self._last_progress: float | None = None
        self.last_interval = 0.0
        """The seconds between the last two reports of progress."""
        self.operation = "starting"
        """What the main thread does, such as "taking steps"."""
        self.waits_for = ""
        """The operation that takes long, and the tasks that it waits for; empty if it does not take long."""
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self.exit_code = 0
        self.save_before_exit: Callable[[], None] | None = None
        """Saves a checkpoint from the watchdog's thread. A chief with a session sets it."""
        self.push_before_exit: Callable[[], None] | None = None
        """Copies what was saved to an object store, after that. A chief sets it."""

    def start(self) -> None:
        """Start to receive the signals. Call this before other threads start: they inherit the blocked signals."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self._thread.start()

    @property
    def stopping(self) -> bool:
        """Whether this task has received SIGTERM or SIGINT."""
        return self._stopping.is_set()

    def progress(self) -> None:
        """Report progress: reset the stall timeout."""
        now = time.monotonic()
        self.last_interval = 0.0 if self._last_progress is None else now - self._last_progress
        self._last_progress = now

    def stalled_for(self) -> float:
        """Return the seconds since the last progress; 0 in a phase with its own timeout, such as `stopping`."""
        since = self._last_progress
        return 0.0 if since is None or self.stopping else time.monotonic() - since

    def pause(self) -> None:
        """Enter a phase with its own timeout: suspend the stall timeout until the next progress."""
        self._last_progress = None

    def finished(self) -> None:
        """Report that the main thread now ends the process itself."""
        self._finished.set()

    def release_signals(self) -> None:
        """Stop the thread. Later signals stay pending for the program that this process executes next."""
        self._is_released = True
        if self._thread.is_alive() and self._thread.ident:
            signal.pthread_kill(self._thread.ident, signal.SIGTERM)  # it may wait for one
        self._finished.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._finished.is_set():
            received = signal.sigtimedwait(SIGNALS, 1.0)
            if received and self._is_released and received.si_pid == os.getpid():
                return
            if received and received.si_signo in SIGNALS:  # after SIGSTOP and SIGCONT it returns garbage
                self.exit_code = 128 + received.si_signo
                logger.info(f"{signal.Signals(received.si_signo).name}: ending")
                self._stopping.set()
                if not self._finished.wait(self._grace_seconds):
                    self._save_and_exit()
                return
            if self.stalled_for() > self.stall_seconds:
                reason = self.waits_for or "another task is lost or far too slow"
                print(
                    f"trainer: no global step within {self.stall_seconds:g} s: {reason}; "
                    f"exiting with code {EXIT_LOST_PEERS}, so that this task can be retried.",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(EXIT_LOST_PEERS)

    def _save_and_exit(self) -> None:
        saving = threading.Thread(target=self._save, daemon=True)
        saving.start()
        saving.join(self._save_seconds)
        sys.stdout.flush()
        os._exit(self.exit_code)

    def _save(self) -> None:
        try:
            if self.save_before_exit is not None:
                self.save_before_exit()
        finally:
            try:
                if self.push_before_exit is not None:
                    self.push_before_exit()
            except (StoreError, SupersededError) as error:
                logger.error(str(error))
