"""Examining the held-out split while the run goes on, by the chief where there is no evaluator.

The chief saves a candidate, a checkpoint that no list names, and goes on training; a thread examines it.
"""

import threading
import time
from collections.abc import Callable

from trainer.training.evaluation import CheckpointEvaluator, Score
from trainer.training.server import brief

SHARE = 0.05
"""The most of the chief's time that saving and examining candidates may take."""


class PeriodicEvaluation:
    """Examines one candidate after another, each in a thread; a context manager that waits for the last."""

    def __init__(
        self,
        seconds: float,
        make_examiner: Callable[[], CheckpointEvaluator],
        report: Callable[[str, Score], None],
        say: Callable[[str], None],
    ) -> None:
        """Examine every so many seconds at most, and call `report` with each candidate and its score, in the thread."""
        self._seconds, self._make_examiner, self._report, self._say = seconds, make_examiner, report, say
        self._examiner: CheckpointEvaluator | None = None
        self._thread: threading.Thread | None = None
        self._next = time.monotonic() + seconds

    def __enter__(self) -> "PeriodicEvaluation":
        return self

    def __exit__(self, *error: object) -> None:
        self.wait()
        if self._examiner:
            self._examiner.__exit__(*error)

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next candidate."""
        return time.monotonic() >= self._next and (self._thread is None or not self._thread.is_alive())

    def examine(self, save: Callable[[], str | None]) -> None:
        """Save a candidate, and examine it in a thread; None where there was nothing to save."""
        began = time.monotonic()
        candidate = save()
        if candidate is None:
            self._next = time.monotonic() + self._seconds
            return
        saved = time.monotonic()
        self._thread = threading.Thread(
            target=self._examine, args=(candidate, saved - began), name="evaluation", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the candidate under way has been examined."""
        if self._thread:
            self._thread.join()

    def _examine(self, candidate: str, saving: float) -> None:
        began = time.monotonic()
        try:
            if self._examiner is None:
                self._examiner = self._make_examiner()
                began = time.monotonic()  # that is done once, so its time is no part of the share
            self._report(candidate, self._examiner.score(candidate))
        except Exception as error:  # training goes on without it
            self._say(f"{candidate} could not be evaluated: {brief(error)}")
        finally:
            now = time.monotonic()
            self._next = now + max(self._seconds, (saving + now - began) * (1 / SHARE - 1))
