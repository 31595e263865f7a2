"""The order of the examples of each epoch, and which of them a learner takes in a step.

The seed and the epoch determine the order, whoever takes the examples. A step takes the next ones, and deals them to
its learners: the devices of all replicas that compute it. Which replica takes which part of which step is that of the
global step, or dealt by leases (`trainer.data.leases`).
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.data.epochs import START, Epochs, Position, Range

Indices = npt.NDArray[np.integer[Any]]


@functools.lru_cache(maxsize=2)
def order(examples: int, seed: int | None, epoch: int) -> Indices:
    """The order of an epoch: int32 [examples], each index once; that of the data if there is no seed."""
    if seed is None:
        found = np.arange(examples, dtype=np.int32)
    else:
        found = np.random.default_rng([seed, epoch]).permutation(examples).astype(np.int32)
    found.flags.writeable = False  # all callers share it
    return found


@dataclass(frozen=True)
class Deal:
    """How the global steps of a run deal each epoch's examples."""

    examples: int
    size: int
    """Most examples of a batch."""
    batches: int
    """The batches of a global step that count."""
    seed: int | None
    """Determines the order of each epoch; None keeps that of the data."""
    is_full: bool = False
    """Whether each batch has `size` examples: the last one of an epoch takes the first examples once more."""
    begun: Position = START
    """Where such steps have begun, and what they take first."""
    has_order: bool = False
    """Whether the data has an order of its own for each epoch: an index is then a place in that order, after those of
    all earlier epochs."""

    @functools.cached_property
    def is_even(self) -> bool:
        """Whether each batch has `size` examples."""
        return self.is_full or self.examples % (self.size * self.batches) == 0

    @functools.cached_property
    def epochs(self) -> Epochs:
        """The epochs of these steps."""
        return Epochs(self.examples, self.size * self.batches, self.begun)

    def take(self, step: int, learner: int) -> tuple[Indices, int]:
        """What a learner takes in the step after `step` global steps.

        A learner for whom no examples are left in the epoch computes with one that another learner has. If all batches
        have the same size, and these steps have begun within an epoch, the end of that one takes its first examples
        once more.

        Args:
            step: Steps before this one.
            learner: The number of the learner, below `batches`.

        Returns:
            The indices, [n] with n from 1 to `size`; and how many of the examples count.
        """
        epoch, taken = self.epochs.find(step)
        start = taken + learner * self.size
        count = self.size if self.is_even else max(0, min(self.size, self.examples - start))
        end = start + max(1, count)
        parts = [self._indices(*each) for each in self._missed(epoch, start, end)]
        if (first := max(start, self.begun.taken) if parts else start) < end:
            parts.append(self._indices(epoch, first, end))
        return (parts[0] if len(parts) == 1 else np.concatenate(parts)), count

    def ranges(self, step: int, learner: int, learners: int) -> list[Range]:
        """The examples that some learners of a step take, from this one on, as ranges of the orders of epochs."""
        epoch, taken = self.epochs.find(step)
        start = taken + learner * self.size
        end = min(start + learners * self.size, self.examples)
        found = self._missed(epoch, start, end)
        first = max(start, self.begun.taken) if found else start
        return [*found, (epoch, first, end)] if first < end else found

    def _missed(self, epoch: int, start: int, end: int) -> list[Range]:
        """What the places from `start` to `end` of an epoch have of the examples that were missed."""
        begun = self.begun
        if epoch != begun.epoch or start >= begun.taken or not begun.missed:
            return []
        first = begun.taken - begun.missing
        left = replace(begun, missed=begun.after(start - first))
        rest, found = min(end, begun.taken) - start, []
        for of, at, until in left.missed:
            if own := min(rest, until - at):
                found.append((of, at, at + own))
            rest -= own
        return found

    def _indices(self, epoch: int, first: int, end: int) -> Indices:
        places = np.arange(first, end)
        if self.has_order:
            return epoch * self.examples + places % self.examples
        return order(self.examples, self.seed, epoch).take(places, mode="wrap")
