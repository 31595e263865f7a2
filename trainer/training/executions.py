"""The executions of a replica in one session: each takes several steps, and returns where it has led."""

import time
from collections.abc import Callable

from trainer.graph.replica import Replica
from trainer.tensorflow_types import Session
from trainer.training.outcome import Outcome


class Executions:
    """Runs the executions of a replica."""

    def __init__(self, replica: Replica, session: Session) -> None:
        """Prepare the session."""
        self._batches = replica.batches
        self._claim: Callable[[int], int] | None = None
        if claim := replica.replication.claim:
            self._claim = session.make_callable(claim.first, [claim.steps])
        self._callables = {}
        for steps, execution in replica.replication.executions.items():
            fetches = [execution.step, execution.loss, execution.metrics]
            self._callables[steps] = session.make_callable(fetches, replica.batches.feeds(steps))

    def run(self, steps: int, step: int) -> Outcome:
        """Take this number of steps, which must be one of the replication's executions, at this global step."""
        began = time.monotonic()
        first = int(self._claim(steps)) if self._claim else step
        step, loss, metrics = self._callables[steps](*self._batches.take(steps, first))
        ended = time.monotonic()
        return Outcome(
            steps, int(step), float(loss), {name: float(value) for name, value in metrics.items()}, ended - began, ended
        )
