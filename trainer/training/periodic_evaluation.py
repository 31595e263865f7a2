"""Evaluation by the chief during training, in a run without an evaluator.

The chief writes a candidate, a checkpoint outside of the checkpoint list, beside training. A thread evaluates it.
"""

import logging
import math
import threading
import time
from collections.abc import Callable

from trainer.checkpoint.score import Score
from trainer.errors import ModelError
from trainer.evaluate.evaluation import CheckpointEvaluator
from trainer.tensorflow.errors import brief

logger = logging.getLogger(__name__)

SHARE = 0.05
"""The maximum share of the chief's time for saving and evaluating candidates, but for a few cheap ones."""
CHEAP_SECONDS = 1.0
"""Up to this time for saving and evaluating a candidate, there are at least EVALUATIONS, so that also a short run knows
its best checkpoint."""
EVALUATIONS = 10
WAIT_SECONDS = 10.0
"""The longest time for which a run waits for an evaluation in progress when the next of these is due."""


class PeriodicEvaluation:
    """Evaluates one candidate at a time, each in a thread. A context manager that waits for the last one."""

    def __init__(
        self,
        seconds: float,
        train_steps: int,
        make_evaluator: Callable[[], CheckpointEvaluator],
        report: Callable[[str, Score], None],
    ) -> None:
        """Evaluate at most every `seconds`, and cheap candidates EVALUATIONS times in `train_steps`.

        `report` receives each candidate and its score, in the thread.
        """
        self._seconds, self._make_evaluator, self._report = seconds, make_evaluator, report
        self._train_steps = train_steps
        self._evaluator: CheckpointEvaluator | None = None
        self._thread: threading.Thread | None = None
        self._next = time.monotonic() + seconds
        self._part = 0
        """The part of the run, of EVALUATIONS, in which a candidate was saved last."""
        self._cost = 0.0
        """How long saving and evaluating the last candidate took."""
        self._failure: ModelError | None = None
        self._idle = threading.Event()
        """Whether no candidate is saved or evaluated."""
        self._idle.set()

    def __enter__(self) -> "PeriodicEvaluation":
        return self

    def __exit__(self, *error: object) -> None:
        self.wait()
        if self._evaluator:
            self._evaluator.__exit__(*error)

    def is_due(self, step: int) -> bool:
        """Whether it is time for the next candidate at this global step.

        Raises:
            ModelError: the model has failed on the held-out data, as it would again at the end of the run.
        """
        if self._failure:
            raise self._failure
        return self._idle.is_set() and (time.monotonic() >= self._next or self._is_due_by_steps(step))

    def is_late(self, step: int) -> bool:
        """Whether the next candidate is due, but for one that is still saved or evaluated."""
        return not self._idle.is_set() and self._is_due_by_steps(step)

    def _is_due_by_steps(self, step: int) -> bool:
        return self._cost <= CHEAP_SECONDS and self._part < self._part_of(step) < EVALUATIONS

    def _part_of(self, step: int) -> int:
        return EVALUATIONS * step // self._train_steps

    def await_candidate(self, step: int) -> None:
        """Expect `start` or `skip` for a candidate of this global step; none is due before that."""
        self._part = self._part_of(step)
        self._idle.clear()

    def start(self, candidate: str, saving: float) -> None:
        """Evaluate a candidate, which took `saving` seconds to save, in a thread."""
        self._idle.clear()
        self._thread = threading.Thread(target=self._evaluate, args=(candidate, saving), name="evaluation", daemon=True)
        self._thread.start()

    def skip(self) -> None:
        """Wait for the next candidate: none could be saved."""
        self._next = time.monotonic() + self._seconds
        self._idle.set()

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the evaluation in progress, at most for this time."""
        if seconds is not None:
            if not self._idle.wait(seconds):
                self._cost = math.inf  # until it has ended
        elif self._thread:
            self._thread.join()

    def _evaluate(self, candidate: str, saving: float) -> None:
        began = time.monotonic()
        try:
            if self._evaluator is None:
                self._evaluator = self._make_evaluator()
                began = time.monotonic()  # building the graph happens once and does not count toward SHARE
            self._report(candidate, self._evaluator.score(candidate))
        except ModelError as error:
            self._failure = error
        except Exception as error:  # training continues without this evaluation
            logger.warning(f"{candidate} could not be evaluated: {brief(error)}")
        finally:
            now = time.monotonic()
            self._cost = saving + now - began
            self._next = now + max(self._seconds, self._cost * (1 / SHARE - 1))
            self._idle.set()
