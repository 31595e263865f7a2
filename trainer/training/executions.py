"""The executions of a replica in one session: each takes several steps, and returns where it has led."""

import time
from collections.abc import Callable

from trainer.graph.replica import Replica
from trainer.telemetry.step_time import StepTime
from trainer.telemetry.tracing import Tracer
from trainer.tensorflow_types import Session
from trainer.training.callback import Callback
from trainer.training.outcome import Outcome


class Executions:
    """Runs the executions of a replica."""

    def __init__(self, replica: Replica, session: Session, callback: Callback, is_traced: bool) -> None:
        """Prepare the session. With `is_traced`, trace some of the executions while `callback` does not profile."""
        self._batches = replica.batches
        self._claim: Callable[[int], int] | None = None
        if claim := replica.replication.claim:
            self._claim = session.make_callable(claim.first, [claim.steps])
        self._tracer = Tracer(lambda: callback.is_profiling)
        self._callables = {}
        for steps, execution in replica.replication.executions.items():
            fetches = [execution.step, execution.loss, execution.metrics]
            run = session.make_callable(fetches, replica.batches.feeds(steps), accept_options=True)
            self._callables[steps] = self._tracer.watch(steps, run) if is_traced else run

    def run(self, steps: int, step: int) -> Outcome:
        """Take this number of steps, which must be one of the replication's executions, at this global step."""
        began = time.monotonic()
        first = int(self._claim(steps)) if self._claim else step
        step, loss, metrics = self._callables[steps](*self._batches.take(steps, first))
        ended = time.monotonic()
        return Outcome(
            steps, int(step), float(loss), {name: float(value) for name, value in metrics.items()}, ended - began, ended
        )

    @property
    def step_time(self) -> StepTime | None:
        """The mean step time of all traced executions; None if there are none."""
        return self._tracer.step_time
