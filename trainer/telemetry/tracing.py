"""Traces a few of a replica's executions with TensorFlow, for `trainer.telemetry.step_time`.

A traced execution takes half as long again: TensorFlow records every op, transfers the records, and Python then
analyses them. Therefore an execution is traced only while the time for tracing is below a small share of the total.
"""

import time
from collections.abc import Callable
from typing import Any

from trainer.telemetry.step_time import StepTime, mean, measure
from trainer.tensorflow import tf1

SHARE = 0.05
"""The maximum share of traced executions and their analysis in the time since the first execution."""


class Tracer:
    """Traces some of the executions that it watches."""

    def __init__(self, is_profiling: Callable[[], bool]) -> None:
        """Trace nothing while `is_profiling` returns True: TensorFlow supports one recording at a time."""
        self._is_profiling = is_profiling
        self._options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        self._began: float | None = None
        self._spent = 0.0
        self._step_times: list[StepTime] = []

    def watch(self, steps: int, execution: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a session callable of `steps` steps, so that some of its executions are traced; never the first one.

        In the first execution TensorFlow prepares the graph, which is not part of a step.
        """
        is_prepared = False

        def run(*arguments: Any) -> Any:
            nonlocal is_prepared
            if not is_prepared or self._is_profiling() or not self._is_due():
                is_prepared = True
                return execution(*arguments)
            metadata = tf1.RunMetadata()
            began = time.time()
            results = execution(*arguments, options=self._options, run_metadata=metadata)
            ended = time.time()
            self._step_times.append(measure(metadata.step_stats, began, ended, steps))
            self._spent += time.time() - began
            return results

        return run

    def _is_due(self) -> bool:
        now = time.time()
        if self._began is None:
            self._began = now
        return self._spent <= SHARE * (now - self._began)

    @property
    def step_time(self) -> StepTime | None:
        """The mean step time of all traced executions; None if there are none."""
        return mean(self._step_times) if self._step_times else None
