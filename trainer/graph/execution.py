"""How many steps each call of the session takes: as many as pay, without anybody having to wait for its end."""

import math

from trainer.config import Settings

MOST_STEPS = 50
"""More in one call bring next to nothing."""
MOST_OPS = 4000
"""Ops of a call in the graph: they are made before the first step, a thousand in a sixth of a second."""
LEAST_CALLS = 20
"""Of a run: each step of a call costs some 20 ms of CPU time before it is taken, and saves at most 3 ms each time."""
LONGEST_CALL = 0.5
"""Seconds: a task that is told to end hears it between two calls."""


def steps_per_execution(settings: Settings, ops_per_step: int) -> int:
    """The steps of a full call: as set, or few enough for the graph, for the run, and for reports and saves in between.

    With local steps they are whole rounds, one at least.
    """
    steps = settings.steps_per_execution
    if steps is None:
        most = max(1, min(MOST_STEPS, MOST_OPS // ops_per_step, settings.train_steps // LEAST_CALLS))
        interval = min(settings.report_steps, settings.save_steps or settings.report_steps)
        steps = interval // math.ceil(interval / most)
    return max(1, steps // settings.local_steps) * settings.local_steps


def next_multiple(of: int, after: int) -> int:
    """The least multiple that is larger than `after`."""
    return (after // of + 1) * of


class ExecutionPlanner:
    """Chooses between a full call and a single step (with local steps: a single round), for one replica."""

    def __init__(self, settings: Settings, full: int, replicas: int) -> None:
        """`full` is a full call's steps; so many replicas, each by calls of its own, move the global step on."""
        self._settings = settings
        self._replicas = replicas
        self._full = full
        self._seconds_per_step: float | None = None

    def choose(self, step: int) -> int:
        """How many steps to take next, from this global step: full calls as long as all replicas' fit."""
        settings = self._settings
        slow = self._seconds_per_step is None or self._full * self._seconds_per_step > LONGEST_CALL
        if slow and settings.steps_per_execution is None:
            return settings.local_steps
        return self._full if step + self._full * self._replicas <= self._stop(step) else settings.local_steps

    def _stop(self, step: int) -> int:
        """The next global step at which something is to be done.

        With several replicas none but the last is met, and with local steps those alone at which a round ends.
        """
        settings = self._settings
        intervals = (settings.report_steps, settings.save_steps) if self._replicas == 1 else ()
        met = [each for each in intervals if each and each % settings.local_steps == 0]
        return min([settings.train_steps, *(next_multiple(each, step) for each in met)])

    def took(self, steps: int, seconds: float) -> None:
        """A call of so many steps took so long."""
        self._seconds_per_step = seconds / steps
