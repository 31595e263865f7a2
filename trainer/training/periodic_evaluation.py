"""Evaluation by the chief during training, in a run without an evaluator.

The chief writes a candidate, a checkpoint outside of the checkpoint list, beside training. A thread evaluates it.
"""

import logging
import threading
import time
from collections.abc import Callable

from trainer.run_directory.evaluation import CheckpointEvaluator, Score
from trainer.tensorflow.errors import brief

logger = logging.getLogger(__name__)

SHARE = 0.05
"""The maximum share of the chief's time for saving and evaluating candidates."""


class PeriodicEvaluation:
    """Evaluates one candidate at a time, each in a thread. A context manager that waits for the last one."""

    def __init__(
        self,
        seconds: float,
        make_evaluator: Callable[[], CheckpointEvaluator],
        report: Callable[[str, Score], None],
    ) -> None:
        """Evaluate at most every `seconds`. `report` receives each candidate and its score, in the thread."""
        self._seconds, self._make_evaluator, self._report = seconds, make_evaluator, report
        self._evaluator: CheckpointEvaluator | None = None
        self._thread: threading.Thread | None = None
        self._next = time.monotonic() + seconds
        self._is_awaited = False

    def __enter__(self) -> "PeriodicEvaluation":
        return self

    def __exit__(self, *error: object) -> None:
        self.wait()
        if self._evaluator:
            self._evaluator.__exit__(*error)

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next candidate."""
        is_evaluating = self._thread is not None and self._thread.is_alive()
        return time.monotonic() >= self._next and not self._is_awaited and not is_evaluating

    def await_candidate(self) -> None:
        """Expect `start` or `skip`; none is due before that."""
        self._is_awaited = True

    def start(self, candidate: str, saving: float) -> None:
        """Evaluate a candidate, which took `saving` seconds to save, in a thread."""
        self._thread = threading.Thread(target=self._evaluate, args=(candidate, saving), name="evaluation", daemon=True)
        self._thread.start()
        self._is_awaited = False

    def skip(self) -> None:
        """Wait for the next candidate: none could be saved."""
        self._next = time.monotonic() + self._seconds
        self._is_awaited = False

    def wait(self) -> None:
        """Wait for the evaluation in progress."""
        if self._thread:
            self._thread.join()

    def _evaluate(self, candidate: str, saving: float) -> None:
        began = time.monotonic()
        try:
            if self._evaluator is None:
                self._evaluator = self._make_evaluator()
                began = time.monotonic()  # building the graph happens once and does not count toward SHARE
            self._report(candidate, self._evaluator.score(candidate))
        except Exception as error:  # training continues without this evaluation
            logger.warning(f"{candidate} could not be evaluated: {brief(error)}")
        finally:
            now = time.monotonic()
            self._next = now + max(self._seconds, (saving + now - began) * (1 / SHARE - 1))
