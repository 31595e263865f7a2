"""A thread that does one job at a time beside training, such as writing a checkpoint."""

import threading
from collections.abc import Callable


class Background:
    """Runs one job at a time in a thread. It outlives a session."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether a job runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, job: Callable[[], None]) -> None:
        """Wait for the job in progress, and run this one."""
        with self._starting:
            self.wait()
            thread = threading.Thread(target=job, name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    def wait(self) -> None:
        """Wait for the job in progress."""
        if self._thread:
            self._thread.join()
