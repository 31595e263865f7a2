"""The epochs of a run: which global steps take which part of the data."""

import functools
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Position:
    """How much of its data a run has taken at a global step."""

    step: int = 0
    epoch: int = 0
    taken: int = 0
    """The examples of that epoch."""


START = Position()


@dataclass(frozen=True)
class Epochs:
    """The epochs of steps that take the same number of examples, but for the last one of each."""

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
        return -(-(self.examples - self.begun.taken) // self.per_step)

    def find(self, step: int) -> tuple[int, int]:
        """The epoch and what is taken of it at a global step."""
        number = step - self.begun.step
        if number < self._rest:
            return self.begun.epoch, self.begun.taken + number * self.per_step
        epochs, number = divmod(number - self._rest, self.steps)
        return self.begun.epoch + 1 + epochs, number * self.per_step

    def at(self, step: int) -> Position:
        """The position at a global step."""
        return Position(step, *self.find(step))

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
        return replace(self, begun=replace(at, taken=at.taken * self.examples // before.examples))
