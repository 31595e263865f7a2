"""The epochs of a run: which global steps take which part of the data."""

import functools
from dataclasses import dataclass, replace

Range = tuple[int, int, int]
"""An epoch, and the first and the end of a range of its order."""


@dataclass(frozen=True)
class Position:
    """How much of its data a run has taken at a global step."""

    step: int = 0
    epoch: int = 0
    taken: int = 0
    """The examples of that epoch."""
    missed: tuple[Range, ...] = ()
    """Examples before these that were not taken. The steps that follow take them first."""

    @functools.cached_property
    def missing(self) -> int:
        """The number of the examples that were missed."""
        return sum(end - first for _, first, end in self.missed)

    def after(self, examples: int) -> tuple[Range, ...]:
        """What is missed after this number of examples of them were taken."""
        left = []
        for epoch, first, end in self.missed:
            own = min(examples, end - first)
            examples -= own
            if first + own < end:
                left.append((epoch, first + own, end))
        return tuple(left)


START = Position()


@dataclass(frozen=True)
class Epochs:
    """The epochs of steps that take the same number of examples, but for the last one of each.

    What was missed before these steps have begun belongs to their first epoch, in front of the examples that follow.
    """

    examples: int
    """Those of an epoch."""
    per_step: int
    """Those of a global step."""
    begun: Position = START
    """Where steps of this size have begun."""

    @functools.cached_property
    def steps(self) -> int:
        """The global steps of an epoch."""
        return -(-self.examples // self.per_step)

    @functools.cached_property
    def _rest(self) -> int:
        """The global steps of the epoch in which these steps have begun."""
        return -(-(self.examples - self._first) // self.per_step)

    @property
    def _first(self) -> int:
        """What counts as taken of the epoch in which these steps have begun: examples that were missed are not."""
        return self.begun.taken - self.begun.missing

    def find(self, step: int) -> tuple[int, int]:
        """The epoch and what is taken of it at a global step."""
        number = step - self.begun.step
        if number < self._rest:
            return self.begun.epoch, self._first + number * self.per_step
        epochs, number = divmod(number - self._rest, self.steps)
        return self.begun.epoch + 1 + epochs, number * self.per_step

    def at(self, step: int) -> Position:
        """The position at a global step."""
        epoch, taken = self.find(step)
        if epoch == self.begun.epoch and taken < self.begun.taken:
            return replace(self.begun, step=step, missed=self.begun.after(taken - self._first))
        return Position(step, epoch, taken)

    def end(self, step: int) -> int:
        """The global step that ends the epoch of the step after `step`."""
        _, taken = self.find(step)
        return step + -(-(self.examples - taken) // self.per_step)

    def last_step(self, epochs: int, multiple: int = 1) -> int:
        """The global step after this number of epochs, and after a multiple of so many steps."""
        steps = max(0, self._rest + (epochs - self.begun.epoch - 1) * self.steps)
        return self.begun.step + -(-steps // multiple) * multiple

    def continued(self, before: "Epochs", step: int) -> "Epochs":
        """These epochs for a run that had other ones before, from a global step on.

        Steps of another size take what is left of the epoch. If an epoch has another number of examples, or is counted
        in another unit, the same share of it is taken.
        """
        if (before.examples, before.per_step) == (self.examples, self.per_step):
            return before
        at = before.at(step)
        if before.examples != self.examples:
            taken = max(0, at.taken - at.missing) * self.examples // before.examples
            at = Position(step, at.epoch, taken)
        return replace(self, begun=at)
