"""Lets replicas wait where the chief calls hooks of callbacks. See `trainer.graph.replication.gate`."""

import time
from collections.abc import Callable

from trainer.data.leases import Leases
from trainer.graph.replica import Replica
from trainer.graph.replication.gate import Gate
from trainer.tensorflow_types import Session
from trainer.training.watch.watchdog import Watchdog

POLL_SECONDS = 0.002, 0.05
"""Between two questions whether the hooks have been called: the first time, and the longest."""
ARRIVAL_SECONDS = 5.0
"""How long the chief waits for replicas that took the step, as one of them may be lost."""


class HookGate:
    """The gate of one session. It does nothing if no replica waits for hooks."""

    def __init__(
        self, replica: Replica, session: Session, next_hooks: Callable[[int], int], leases: Leases | None = None
    ) -> None:
        """Let the first step wait for the begin of the callbacks.

        Args:
            replica: The graph.
            session: The session.
            next_hooks: Returns the next step after which hooks follow.
            leases: What this replica takes.
        """
        self._replica, self._session, self._next_hooks, self._leases = replica, session, next_hooks, leases
        self._due, self._noted, self._is_chief = 0, 0, replica.mode.index == 0

    def pass_through(self, step: int, watchdog: Watchdog) -> bool:
        """Before an execution at this global step: the chief lets the others go on, who wait for that.

        Returns:
            Whether there is such an execution: the chief may end the run instead.
        """
        gate = self._replica.gate
        if gate and step >= self._due:
            self.arrive(step)
            if self._is_chief:
                self._session.run(gate.note, {gate.step: step})
            elif not self._is_opened(gate, watchdog):
                return False
            watchdog.operation = "taking steps"
            self._due = self._next_hooks(step)
        return True

    def arrive(self, step: int) -> None:
        """After an execution that has led to this global step: report what is done, and note that, unless as chief."""
        gate, shared = self._replica.gate, self._replica.leases
        if not gate or not self._noted < self._due <= step:
            return
        self._noted = self._due
        if shared and self._leases:  # or a replica that is lost during the hooks takes it again
            self._session.run(shared.report, {shared.done: self._leases.done})
        if not self._is_chief:
            self._session.run(gate.note, {gate.step: self._due})

    def _is_opened(self, gate: Gate, watchdog: Watchdog) -> bool:
        watchdog.operation = "waiting for the callbacks of the chief"
        seconds, longest = POLL_SECONDS
        while not watchdog.stopping:
            reached, is_over = self._session.run([gate.reached, self._replica.is_over_now])
            if reached[0] >= self._due or is_over:
                return not is_over
            time.sleep(seconds)
            seconds = min(2 * seconds, longest)
        return False


def wait_for_others(replica: Replica, session: Session, step: int, since: int) -> None:
    """On the chief, before the hooks that follow this global step: wait until the others have added to the sums.

    Those are awaited that have taken the last step, or, of replicas that do not wait for each other, any step since
    the last hooks, which followed the global step `since`.
    """
    gate, membership = replica.gate, replica.replication.membership
    if not gate or not membership:
        return
    deadline, mode = time.monotonic() + ARRIVAL_SECONDS, replica.mode
    begun = since if mode.is_independent else step - mode.local_steps
    while time.monotonic() < deadline:
        reached, last_steps = session.run([gate.reached, membership.last_steps])
        if all(at > since for at, last in zip(reached[1:], last_steps[1:], strict=True) if last >= begun):
            return
        time.sleep(0.01)
