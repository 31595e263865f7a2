"""What is known of a run's success: result.json, while the run goes on and at its end, and the curve in `test/`.

The chief writes it: in its main thread with each checkpoint, and in the thread that examines candidates.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from trainer.telemetry.metrics import Metrics
from trainer.telemetry.progress import Clock
from trainer.telemetry.summaries import SummaryWriter
from trainer.training import best
from trainer.training.best import Evaluated
from trainer.training.evaluation import Score
from trainer.training.training_directory import TrainingDirectory


class RunRecord:
    """The record of one run, by one process."""

    def __init__(
        self,
        directory: TrainingDirectory,
        facts: Mapping[str, Any],
        clock: Clock,
        last: dict[str, Any] | None,
        say: Callable[[str], None],
        metrics: Metrics,
    ) -> None:
        """`facts` are the keys of result.json that do not change while this process trains.

        `last` is the last evaluation of an earlier process.
        """
        self._directory, self._facts, self._clock = directory, facts, clock
        self._say, self._metrics = say, metrics
        self._writing = threading.Lock()
        self._last = last
        self._summaries: SummaryWriter | None = None
        self._step = 0

    def examined(self, checkpoint: str, score: Score, is_candidate: bool) -> None:
        """Note the score of a checkpoint; a candidate's files are gone soon."""
        kept = best.offer(self._directory.best, checkpoint, score)
        best_now = best.read(self._directory.best)
        self._last = Evaluated(checkpoint, score).to_json()
        if is_candidate:
            self._last["checkpoint"] = best_now.checkpoint if kept and best_now else None
        self._summaries = self._summaries or SummaryWriter(self._directory.test_summaries)
        write_score(self._summaries, score)
        self._metrics.test_loss, self._metrics.test_accuracy = score.loss, score.accuracy
        self._say(f"{describe(score)}{' (the best so far)' if kept else ''}")
        if is_candidate:
            self.write_running(score.global_step)

    def write_running(self, step: int) -> None:
        """Write how far the run is."""
        with self._writing:
            self._step = max(step, self._step)
            self._write("running", self._step)

    def write_done(self, checkpoint: str, score: Score, export: str) -> dict[str, Any]:
        """Write the result of a run that is done; it is returned."""
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
        self._directory.write_result(result)
        return result


def write_score(summaries: SummaryWriter, score: Score) -> None:
    """Add a point to the curves of the held-out split."""
    summaries.write(score.global_step, loss=score.loss, accuracy=score.accuracy)
    summaries.flush()


def describe(score: Score) -> str:
    """A score in a line."""
    return f"step {score.global_step}: test accuracy {score.accuracy:.4f}, test loss {score.loss:.4f}"
