"""The executions of a replica in one session: each takes several steps, and returns where it has led."""

import time

from trainer.data.leases import UNKNOWN, Leases
from trainer.graph.replica import Replica
from trainer.tensorflow_types import Session
from trainer.training.outcome import Outcome


class Executions:
    """Runs the executions of a replica."""

    def __init__(self, replica: Replica, session: Session, leases: Leases | None) -> None:
        """Prepare the session. With `leases`, the replica takes the parts of steps that these give."""
        self._batches, self._leases, self._place = replica.batches, leases, 0
        shared = replica.leases
        self._is_counted = False
        """Whether the last execution was counted."""
        reported = [shared.done, shared.step] if shared else []
        self._callables = {}
        for steps, execution in replica.replication.executions.items():
            fetches = [execution.step, execution.loss, execution.metrics]
            fetches += [] if execution.is_counted is None else [execution.is_counted]
            self._callables[steps] = session.make_callable(fetches, [*replica.batches.feeds(steps), *reported])

    def can_take(self, steps: int) -> bool:
        """Whether this replica has parts of so many steps now."""
        return self._leases is None or self._leases.has(range(self._place, self._place + steps))

    def run(self, steps: int, step: int) -> Outcome:
        """Take this number of steps, which must be one of the replication's executions, at this global step."""
        began = time.monotonic()
        leases, places = self._leases, range(self._place, self._place + steps)
        feeds = self._batches.take(steps, places.start if leases else step)
        if leases:
            feeds += [leases.done, step if self._is_counted and leases.follows_steps else UNKNOWN]
        after, loss, metrics, *is_counted = self._callables[steps](*feeds)
        self._is_counted = any(is_counted)
        ended = time.monotonic()
        if leases:
            leases.took(places, is_done=all(is_counted))
            self._place = places.stop
        measured = {name: float(value) for name, value in metrics.items()}
        return Outcome(steps, int(after), float(loss), measured, ended - began, ended)
