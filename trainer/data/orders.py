"""The order of the examples of each epoch, and which of them a learner takes in a step.

The seed and the epoch determine the order, whoever takes the examples. A global step takes the next ones, and deals
them to its learners: the devices of all replicas that compute it.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.data.epochs import START, Epochs, Position

Indices = npt.NDArray[np.integer[Any]]


@functools.lru_cache(maxsize=2)
def order(examples: int, seed: int, epoch: int) -> Indices:
    """The order of an epoch: int32 [examples], each index once."""
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
    seed: int
    is_full: bool = False
    """Whether each batch has `size` examples: the last one of an epoch takes the first examples once more."""
    begun: Position = START
    """Where such steps have begun."""
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
            step: Global steps before this one.
            learner: The number of the learner. Those from `batches` on are backups, or have joined the run. They take
                full batches of examples that follow, which the next steps take too.

        Returns:
            The indices, [n] with n from 1 to `size`; and how many of the examples count.
        """
        epoch, taken = self.epochs.find(step)
        start = taken + learner * self.size
        is_full = self.is_even or learner >= self.batches
        count = self.size if is_full else max(0, min(self.size, self.examples - start))
        places = np.arange(start, start + max(1, count))
        if self.has_order:
            return epoch * self.examples + places % self.examples, count
        return order(self.examples, self.seed, epoch).take(places, mode="wrap"), count
