"""The chief's loop of updates, where replication has one: beside the chief's own steps, in a thread."""

import threading
from collections.abc import Callable, Mapping
from typing import Any


class UpdateLoop:
    """Runs updates until the run's last global step; a context manager that waits for their end."""

    def __init__(self, session: Any, updates: Mapping[int, Callable[[], int]], step: int, train_steps: int) -> None:
        """Each of `updates` makes so many global steps and gives the last.

        `step` is the one now, from which the fewest steps at a time lead to exactly `train_steps`.
        """
        self._session, self._updates, self._step, self._train_steps = session, updates, step, train_steps
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="updates", daemon=True)
        self.error: Exception | None = None
        """Why the loop ended before its time."""

    def __enter__(self) -> "UpdateLoop":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping = True
        self._thread.join(0.2)  # it may wait for replicas; the session's close ends it then
        if self.error:
            raise self.error from None  # whatever the main thread met in the closed session, this is why

    def _run(self) -> None:
        try:
            while self._step < self._train_steps and not self._stopping:
                steps = max(steps for steps in self._updates if self._step + steps <= self._train_steps)
                self._step = int(self._updates[steps]())
        except Exception as error:
            if not self._stopping:
                self.error = error
                self._session.close()  # the main thread waits for a token that nobody would give
