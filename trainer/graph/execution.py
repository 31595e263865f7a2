"""Chooses the steps per execution: many to amortize the session run, but few enough for reports, saves and signals."""

import itertools
import math
from collections.abc import Callable, Sequence

from trainer.config import Settings
from trainer.errors import ConfigurationError

MAX_STEPS = 50
"""Upper limit of steps per execution; more save almost no time."""
MAX_OPS = 4000
"""Upper limit of ops per execution; the graph is built before the first step, at 1,000 ops in 1/6 second."""
MIN_EXECUTIONS = 20
"""Lower limit of executions per run: unrolling a step costs about 20 ms of CPU time once and saves at most 3 ms per
execution."""
MAX_SECONDS = 1.0
"""Upper limit of an execution of several steps, in seconds; a task handles signals between two executions."""


def steps_per_execution(settings: Settings, local_steps: int, ops_per_step: int, intervals: Sequence[int] = ()) -> int:
    """The steps of a full execution: the setting, or a number that fits the graph, the run, the reports and the saves.

    The result is a multiple of `local_steps`. Callbacks run after each of the `intervals`, in steps.
    """
    steps = settings.steps_per_execution
    if steps is None:
        largest = max(1, min(MAX_STEPS, MAX_OPS // ops_per_step, settings.train_steps // MIN_EXECUTIONS))
        interval = min(each for each in (settings.report_steps, settings.save_steps, *intervals) if each)
        steps = interval // math.ceil(interval / largest)
    return max(1, steps // local_steps) * local_steps


def sizes(full: int, least: int = 1) -> tuple[int, ...]:
    """The numbers of steps for which there are executions: a full one, and `least` times the powers of 2 below."""
    return (*itertools.takewhile(lambda size: size < full, (least << power for power in itertools.count())), full)


def next_multiple(of: int, after: int) -> int:
    """The smallest multiple of `of` that is larger than `after`."""
    return (after // of + 1) * of


def check_rounds(local_steps: int, step: int, last_step: int) -> None:
    """Check that rounds of local_steps steps from this global step on end at the last one.

    Raises:
        ConfigurationError: they do not.
    """
    if step < last_step and (last_step - step) % local_steps:
        raise ConfigurationError(
            f"local_steps: the run is at step {step}, from which rounds of {local_steps} steps do not end at "
            f"the last step, {last_step}; choose local_steps that divide {last_step - step}."
        )


class ExecutionPlanner:
    """Chooses the size of each execution of one replica: the largest that is short enough, or a single step.

    The single step, with local SGD a single round, leads to the next stop. Other sizes would do so in fewer executions,
    but TensorFlow prepares each at its first use.
    """

    def __init__(
        self,
        settings: Settings,
        local_steps: int,
        full: int,
        replicas: int,
        last_step: int,
        hook_steps: int | None = None,
        end_of_epoch: Callable[[int], int] | None = None,
    ) -> None:
        """Plan the executions of a run.

        Args:
            settings: The settings of the run.
            local_steps: The steps of a round.
            full: The number of steps of a full execution.
            replicas: How many advance the global step independently.
            last_step: The last global step of the run.
            hook_steps: The steps after each of which an execution must end; None if there are none.
            end_of_epoch: Returns where the epoch of the step after this one ends; None if executions may pass it.
        """
        self._settings, self._local_steps = settings, local_steps
        self.last_step = last_step
        """The last global step of the run. The caller may change it."""
        self._hook_steps, self._end_of_epoch = hook_steps, end_of_epoch
        self.replicas = replicas
        """Replicas that advance the global step independently. The caller may change it."""
        self._full = full
        self._seconds_per_step: float | None = None

    def choose(self, step: int) -> int:
        """The steps of the next execution at this global step: the largest size of which one of each replica fits."""
        least, seconds = self._local_steps, self._seconds_per_step
        if self._settings.steps_per_execution is not None:
            chosen = self._full
        elif seconds is None:
            return least
        else:
            chosen = max(size for size in sizes(self._full, least) if size == least or size * seconds <= MAX_SECONDS)
        return chosen if step + chosen * self.replicas <= self._stop(step) else least

    def _stop(self, step: int) -> int:
        """The next global step at which an execution must end: a report, a save, an epoch or the end of the run.

        With several replicas only the last two count. With local SGD, only steps at the end of a round do.
        """
        if self.replicas > 1:
            return min(self.last_step, self.next_hooks(step))
        settings = self._settings
        intervals = (settings.report_steps, settings.save_steps)
        stops = [self.last_step, *(next_multiple(each, step) for each in intervals if each), self.next_hooks(step)]
        return min(each for each in stops if each == self.last_step or (each - step) % self._local_steps == 0)

    def next_hooks(self, step: int) -> int:
        """The next global step after which all replicas wait for hooks of callbacks; the last one if they do not."""
        found = [self._end_of_epoch(step)] if self._end_of_epoch else []
        found += [next_multiple(self._hook_steps, step)] if self._hook_steps else []
        return min(found, default=self.last_step)

    def took(self, steps: int, seconds: float) -> None:
        """Record the duration of an execution."""
        self._seconds_per_step = seconds / steps
