"""The state and the scores of a run: result.json, during the run and at its end, and the summaries in `test/`.

The chief writes them: in its main thread with each checkpoint, and in the thread that evaluates candidates.
"""

import logging
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from trainer.checkpoint import best
from trainer.checkpoint.best import Evaluated
from trainer.checkpoint.score import BestMetric, Score
from trainer.checkpoint.volume import WriteFailures
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.telemetry.goodput import Account
from trainer.telemetry.metrics import Metrics
from trainer.telemetry.progress import Clock
from trainer.telemetry.summaries import SummaryWriter

logger = logging.getLogger(__name__)


class RunRecord:
    """Writes the record of one run, in one process."""

    def __init__(
        self,
        directory: TrainingDirectory,
        facts: Mapping[str, Any],
        metric: BestMetric,
        clock: Clock,
        earlier: Mapping[str, Any],
        metrics: Metrics,
        account: Account,
    ) -> None:
        """Continue the record of a run.

        Args:
            directory: The run's training directory.
            facts: The keys of result.json that do not change while this process trains.
            metric: That by which the best checkpoint is chosen.
            clock: The clock of the training.
            earlier: What an earlier process has written to result.json.
            metrics: The metrics of this task.
            account: What the time of this task goes into. It goes on from that of the earlier process.
        """
        self._directory, self._facts, self._clock = directory, facts, clock
        self._metric, self._metrics, self._account = metric, metrics, account
        self._writing = threading.Lock()
        self._last = earlier.get("last")
        self._earlier_rate = float(earlier.get("steps_per_second", 0.0))
        self._updated = _time_of(earlier)
        account.resume(earlier, self._updated)
        self._failures = WriteFailures("result.json")
        self.is_done = False
        """Whether the run was done before this process."""
        self._summaries: SummaryWriter | None = None
        self._step = 0
        self._told: Score | None = None

    def count_absence(self) -> None:
        """Count the time since the last record: the run went on while there was no chief."""
        if self._updated and self._clock.own_seconds == 0:
            self._clock.earlier += max(0.0, time.time() - self._updated)
            self._updated = None

    def add_evaluation(self, checkpoint: str, score: Score, is_candidate: bool) -> None:
        """Record the score of a checkpoint. The files of a candidate are temporary.

        Raises:
            SupersededError: another chief has claimed the directory.
        """
        self._directory.check_writer()
        kept = self.offer(checkpoint, score)
        best_now = best.read(self._directory.best)
        self._last = Evaluated(checkpoint, score).to_json()
        if is_candidate:
            self._last["checkpoint"] = best_now.checkpoint if kept and best_now else None
        self._metrics.test_metrics = {"loss": score.loss, **score.metrics}
        if score != self._told:  # the last checkpoint is scored again at the end of the run
            self._told = score
            write_score(self.summaries, score)
            logger.info(f"{score}{' (the best so far)' if kept else ''}")
        if is_candidate:
            self.write_running(score.global_step)

    def offer(self, checkpoint: str, score: Score) -> bool:
        """Store a checkpoint as the best one if it is; return whether it was stored."""
        return best.offer(self._directory.best, checkpoint, score, self._metric)

    @property
    def summaries(self) -> SummaryWriter:
        """The summaries of the held-out split."""
        self._summaries = self._summaries or SummaryWriter(self._directory.test_summaries)
        return self._summaries

    def write_running(self, step: int) -> None:
        """Write the progress of the run, if the volume has room.

        Raises:
            SupersededError: another chief has claimed the directory.
        """
        with self._writing:
            self._step = max(step, self._step)
            try:
                self._write("running", self._step)
            except OSError as error:
                self._failures.failed(error)
            else:
                self._failures.succeeded()

    def write_done(self, checkpoint: str, score: Score, export: str, more: Mapping[str, Any]) -> dict[str, Any]:
        """Write and return the result of a finished run, with these keys too.

        Raises:
            SupersededError: another chief has claimed the directory.
            OSError: it cannot be written.
        """
        self._last = Evaluated(checkpoint, score).to_json()
        with self._writing:
            return self._write("done", score.global_step, **self._last, export=export, **more)

    def write_failed(self, step: int, reason: str, export: str) -> None:
        """Write that the run has taken all of its steps, but cannot be evaluated.

        Raises:
            SupersededError: another chief has claimed the directory.
            OSError: it cannot be written.
        """
        with self._writing:
            self._write("failed", step, reason=reason, export=export)

    def _write(self, state: str, step: int, **more: Any) -> dict[str, Any]:
        best_now = best.read(self._directory.best)
        seconds = self._clock.seconds
        mean_rate = step / seconds if state == "done" and seconds else 0.0  # this process has taken no steps
        result = {
            "state": state,
            "updated": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "global_step": step,
            "seconds": round(seconds, 3),
            "steps_per_second": round(self._clock.steps_per_second or self._earlier_rate or mean_rate, 2),
            **self._account.to_json(),
            **more,
            **self._facts,
            "best_metric": self._metric.name,
            "best_metric_mode": self._metric.mode,
            "last": self._last,
            "best": best_now.to_json() if best_now else None,
        }
        return self._directory.write_result(result)


def _time_of(earlier: Mapping[str, Any]) -> float | None:
    """When a process wrote the progress of a run that is not done, in seconds since 1970."""
    try:
        return datetime.fromisoformat(earlier["updated"]).timestamp() if earlier.get("state") == "running" else None
    except (KeyError, TypeError, ValueError):
        return None


def write_score(summaries: SummaryWriter, score: Score) -> None:
    """Write the summaries of the held-out split."""
    summaries.write(score.global_step, {**score.metrics, "loss": score.loss})
    summaries.flush()
