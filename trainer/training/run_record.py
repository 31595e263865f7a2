"""The state and the scores of a run: result.json, during the run and at its end, and the summaries in `test/`.

The chief writes them: in its main thread with each checkpoint, and in the thread that evaluates candidates.
"""

import logging
import threading
from collections.abc import Mapping
from typing import Any

from trainer.telemetry.metrics import Metrics
from trainer.telemetry.progress import Clock
from trainer.telemetry.summaries import SummaryWriter
from trainer.training import best
from trainer.training.best import Evaluated
from trainer.training.evaluation import Score
from trainer.training.training_directory import TrainingDirectory

logger = logging.getLogger(__name__)


class RunRecord:
    """Writes the record of one run, in one process."""

    def __init__(
        self,
        directory: TrainingDirectory,
        facts: Mapping[str, Any],
        clock: Clock,
        last: dict[str, Any] | None,
        metrics: Metrics,
    ) -> None:
        """Continue the record of a run.

        Args:
            directory: The run's training directory.
            facts: The keys of result.json that do not change while this process trains.
            clock: The clock of the training.
            last: The last evaluation of an earlier process.
            metrics: The metrics of this task.
        """
        self._directory, self._facts, self._clock = directory, facts, clock
        self._metrics = metrics
        self._writing = threading.Lock()
        self._last = last
        self._summaries: SummaryWriter | None = None
        self._step = 0

    def add_evaluation(self, checkpoint: str, score: Score, is_candidate: bool) -> None:
        """Record the score of a checkpoint. The files of a candidate are temporary."""
        kept = best.offer(self._directory.best, checkpoint, score)
        best_now = best.read(self._directory.best)
        self._last = Evaluated(checkpoint, score).to_json()
        if is_candidate:
            self._last["checkpoint"] = best_now.checkpoint if kept and best_now else None
        write_score(self.summaries, score)
        self._metrics.test_metrics = {"loss": score.loss, **score.metrics}
        logger.info(f"{score}{' (the best so far)' if kept else ''}")
        if is_candidate:
            self.write_running(score.global_step)

    @property
    def summaries(self) -> SummaryWriter:
        """The summaries of the held-out split."""
        self._summaries = self._summaries or SummaryWriter(self._directory.test_summaries)
        return self._summaries

    def write_running(self, step: int) -> None:
        """Write the progress of the run."""
        with self._writing:
            self._step = max(step, self._step)
            self._write("running", self._step)

    def write_done(self, checkpoint: str, score: Score, export: str) -> dict[str, Any]:
        """Write and return the result of a finished run."""
        self._last = Evaluated(checkpoint, score).to_json()
        with self._writing:
            return self._write("done", score.global_step, **self._last, export=export)

    def _write(self, state: str, step: int, **more: Any) -> dict[str, Any]:
        best_now = best.read(self._directory.best)
        result = {
            "state": state,
            "global_step": step,
            "seconds": round(self._clock.seconds, 3),
            "steps_per_second": round(self._clock.steps_per_second, 2),
            **more,
            **self._facts,
            "last": self._last,
            "best": best_now.to_json() if best_now else None,
        }
        return self._directory.write_result(result)


def write_score(summaries: SummaryWriter, score: Score) -> None:
    """Write the summaries of the held-out split."""
    summaries.write(score.global_step, loss=score.loss, **score.metrics)
    summaries.flush()
