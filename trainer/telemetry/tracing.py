"""Has TensorFlow trace a few of a replica's calls, for `trainer.telemetry.step_time`.

A traced call takes half as long again, as every op is noted and all notes come over the wire, and is then examined in
Python. So a call is traced only while the time spent on that is below a small share of the whole.
"""

import time
from collections.abc import Callable
from typing import Any

from trainer.telemetry.step_time import StepTime, mean, measure
from trainer.tensorflow import tf1

SHARE = 0.05
"""Of the time since the first call, the most that traced calls and their examination may have taken."""


class Tracer:
    """Traces some of the calls that it is given to watch."""

    def __init__(self, is_profiling: Callable[[], bool]) -> None:
        """While a profile is recorded nothing is traced: TensorFlow records one thing at a time."""
        self._is_profiling = is_profiling
        self._options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        self._began: float | None = None
        self._spent = 0.0
        self._splits: list[StepTime] = []

    def watch(self, steps: int, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same callable of a session, of so many steps, some of whose calls are traced; never the first one.

        In the first one TensorFlow prepares the graph, which is nothing that a step takes.
        """
        is_prepared = False

        def run(*arguments: Any) -> Any:
            nonlocal is_prepared
            if not is_prepared or self._is_profiling() or not self._is_due():
                is_prepared = True
                return call(*arguments)
            metadata = tf1.RunMetadata()
            began = time.time()
            results = call(*arguments, options=self._options, run_metadata=metadata)
            ended = time.time()
            self._splits.append(measure(metadata.step_stats, began, ended, steps))
            self._spent += time.time() - began
            return results

        return run

    def _is_due(self) -> bool:
        now = time.time()
        if self._began is None:
            self._began = now
        return self._spent <= SHARE * (now - self._began)

    @property
    def split(self) -> StepTime | None:
        """The mean step of all calls that were traced; None where none was."""
        return mean(self._splits) if self._splits else None
