"""The chief's loop of updates, where replication has one: beside the chief's own steps, in a thread."""

import threading
from collections.abc import Callable
from typing import Any


class Updates:
    """Runs an update until the run's last global step; a context manager that waits for its end."""

    def __init__(self, session: Any, update: Callable[[], int], step: int, train_steps: int) -> None:
        """`update` applies one step and gives the global step after it; `step` is the global step now."""
        self._session, self._update, self._step, self._train_steps = session, update, step, train_steps
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="updates", daemon=True)
        self.error: Exception | None = None
        """Why the loop ended before its time."""

    def __enter__(self) -> "Updates":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping = True
        self._thread.join(1.0)  # it may wait for replicas; the session's close ends it then
        if self.error:
            raise self.error from None  # whatever the main thread met in the closed session, this is why

    def _run(self) -> None:
        try:
            while self._step < self._train_steps and not self._stopping:
                self._step = int(self._update())
        except Exception as error:
            if not self._stopping:
                self.error = error
                self._session.close()  # the main thread waits for a token that nobody would give
