"""The chief's update loop, in a thread beside the chief's own steps. Only some replication modes have updates."""

import threading
from collections.abc import Callable, Mapping

from trainer.tensorflow_types import Session


class UpdateLoop:
    """Runs updates until the last global step of the run. A context manager that stops the loop at exit."""

    def __init__(
        self, session: Session, updates: Mapping[int, Callable[[], int]], step: int, stop: Callable[[int], int]
    ) -> None:
        """Prepare the loop.

        Args:
            session: The chief's session.
            updates: Callables by the number of global steps that each makes. Each returns the new global step.
            step: The current global step. The smallest key of `updates` divides the number of steps from here on.
            stop: Returns the last global step, given the current one. It may be later than before.
        """
        self._session, self._updates, self._step, self._stop = session, updates, step, stop
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="updates", daemon=True)
        self.error: Exception | None = None
        """The error that ended the loop early."""

    def __enter__(self) -> "UpdateLoop":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping = True
        self._thread.join(0.2)  # it may wait for replicas; closing the session then ends it
        if self.error:
            raise self.error from None  # the cause of any error of the main thread in the closed session

    def _run(self) -> None:
        try:
            while self._step < (stop := self._stop(self._step)) and not self._stopping:
                steps = max(steps for steps in self._updates if self._step + steps <= stop)
                self._step = int(self._updates[steps]())
        except Exception as error:
            if not self._stopping:
                self.error = error
                self._session.close()  # unblock the main thread: no update will release its token
