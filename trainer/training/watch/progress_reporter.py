"""Reports the progress of a replica: its clock, its metrics and its log lines."""

import logging
import math
import time
from dataclasses import asdict

from trainer.graph.execution import next_multiple
from trainer.telemetry import report
from trainer.telemetry.progress import Progress
from trainer.training.context import TaskContext
from trainer.training.outcome import Outcome

logger = logging.getLogger(__name__)

LINE_INTERVAL_SECONDS = 1.0
"""Minimum seconds between two progress lines: in Kubernetes each line passes five programs on its way to a log."""


class ProgressReporter:
    """Reports the executions of one session."""

    def __init__(self, context: TaskContext, learners: int, step: int, last_step: int) -> None:
        """Start at this global step of a run to the last one, with this number of batches per step."""
        self._context, self._last_step = context, last_step
        self._examples_per_step = context.settings.batch_size * learners
        self._reported_step, self._reported_time, self._logged_time = step, time.monotonic(), -math.inf
        context.clock.tick(step)
        context.metrics.global_step = step

    def report(self, outcome: Outcome) -> Progress | None:
        """Count an execution. Return the progress if `report_steps` have passed since the last one."""
        settings, metrics = self._context.settings, self._context.metrics
        self._context.clock.tick(outcome.step)
        self._context.account.step(outcome.step)
        metrics.global_step = outcome.step
        metrics.examples += outcome.steps * self._examples_per_step
        is_last = outcome.step >= self._last_step > self._reported_step
        if not is_last and outcome.step < next_multiple(settings.report_steps, self._reported_step):
            return None
        rate = (outcome.step - self._reported_step) / (outcome.ended - self._reported_time)
        progress = Progress(outcome.step, self._last_step, outcome.loss, outcome.metrics, rate)
        self._reported_step, self._reported_time = outcome.step, outcome.ended
        if is_last or outcome.ended - self._logged_time >= LINE_INTERVAL_SECONDS:
            self._logged_time = outcome.ended
            saved = {} if metrics.saved is None else {"saved": round(metrics.saved)}
            report.log(logger, str(progress), progress=asdict(progress), **saved)
        metrics.report(progress)
        return progress
