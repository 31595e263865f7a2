"""Batches as tensors of a replica's graph, without feeding examples to every step.

Examples that fit on the replica's device are copied there once; an execution is fed only their indices. Otherwise an
execution is fed the batches of all its steps at once.

The last batch of an epoch may have fewer examples. If other learners share its step, it has the share of its examples
in a full batch, by which its gradient counts; 0 if another learner has its examples.
"""

import collections
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from trainer.data.epochs import START, Position
from trainer.data.examples import Array, Examples, Signature
from trainer.data.orders import Deal
from trainer.data.stream import PREFETCHED_BATCHES, prefetch
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Session, Tensor, Variable


class Feeding(Protocol):
    """Feeds batches to a session."""

    def feeds(self, steps: int) -> Sequence[Tensor]:
        """The placeholders that an execution of this number of steps feeds."""
        ...

    def begin(self, session: Session, begun: Position = START) -> None:
        """Initialize a session, before its first execution. The run's steps have begun at this position."""
        ...

    def take(self, steps: int, step: int) -> list[Any]:
        """The values of `feeds` for an execution of this number of steps, which begins after `step` global steps."""
        ...


class Batches(Feeding, Protocol):
    """The batches of one device, as tensors of its replica's graph."""

    def tensors(self, number: int) -> Sequence[Tensor]:
        """Add the batch of the step with this index in an execution, from 0, and return its leaves."""
        ...

    def share(self, number: int) -> Tensor:
        """The share of the examples of that batch in a full one, float32; call it after `tensors`."""
        ...


class MultiDeviceBatches:
    """The batches of several devices, for one session."""

    def __init__(self, batches: Sequence[Batches]) -> None:
        self._batches = batches

    def feeds(self, steps: int) -> Sequence[Tensor]:
        return [feed for each in self._batches for feed in each.feeds(steps)]

    def begin(self, session: Session, begun: Position = START) -> None:
        for each in self._batches:
            each.begin(session, begun)

    def take(self, steps: int, step: int) -> list[Any]:
        return [value for each in self._batches for value in each.take(steps, step)]


class InMemoryBatches:
    """Batches of examples that are stored on the replica's device."""

    def __init__(self, examples: Examples, deal: Deal, learner: int) -> None:
        """Add the examples to the default graph, on the current device."""
        self._deal, self._learner = deal, learner
        self._arrays: dict[Tensor, Array] = {}
        self._variables = [self._add_variable(f"array_{n}", array) for n, array in enumerate(examples.arrays)]
        self._indices = tf1.placeholder(tf.int32, [None, deal.size] if deal.is_even else [None], "indices")
        self._starts: Tensor | None = None
        self._shares: Tensor | None = None
        if not deal.is_even:
            self._starts = tf1.placeholder(tf.int32, [None], "starts")
            self._shares = tf1.placeholder(tf.float32, [None], "shares")

    def _add_variable(self, name: str, array: Array) -> Variable:
        initial = tf1.placeholder(array.dtype, array.shape)
        self._arrays[initial] = array
        return tf1.get_variable(name, initializer=initial, trainable=False, use_resource=True)

    def feeds(self, steps: int) -> Sequence[Tensor]:
        return [each for each in (self._indices, self._starts, self._shares) if each is not None]

    def tensors(self, number: int) -> Sequence[Tensor]:
        if self._starts is None:
            indices = self._indices[number]
        else:
            indices = self._indices[self._starts[number] : self._starts[number + 1]]
        return [tf.gather(each, indices) for each in self._variables]

    def share(self, number: int) -> Tensor:
        return tf.constant(1.0) if self._shares is None else self._shares[number]

    def begin(self, session: Session, begun: Position = START) -> None:
        self._deal = replace(self._deal, begun=begun)
        session.run([each.initializer for each in self._variables], self._arrays)

    def take(self, steps: int, step: int) -> list[Any]:
        found = [self._deal.take(each, self._learner) for each in range(step, step + steps)]
        if self._starts is None:
            return [np.stack([indices for indices, _ in found])]
        starts = np.cumsum([0, *(len(indices) for indices, _ in found)], dtype=np.int32)
        shares = np.array([count / self._deal.size for _, count in found], np.float32)
        return [np.concatenate([indices for indices, _ in found]), starts, shares]


Shared = tuple[Sequence[Array], float]
"""The leaves of a batch, and the share of its examples in a full one."""


class FedBatches:
    """Batches that are fed to each execution."""

    def __init__(
        self,
        signature: Signature,
        size: int | None,
        batches: Callable[[Position, int], Iterator[Shared]],
        is_independent: bool = False,
    ) -> None:
        """Feed batches.

        Args:
            signature: That of an example.
            size: The examples of each batch; None if it varies.
            batches: The batches of steps that have begun at this position, from the one after this number of global
                steps on.
            is_independent: Whether one batch follows on the other whatever the global step is.
        """
        self._signature, self._size, self._make, self._is_independent = signature, size, batches, is_independent
        self._batches: Iterator[Shared] | None = None
        self._begun, self._next = START, 0
        self._placeholders: list[Sequence[Tensor]] = []

    def feeds(self, steps: int) -> Sequence[Tensor]:
        return [each for of_step in self._placeholders[:steps] for each in of_step]

    def tensors(self, number: int) -> Sequence[Tensor]:
        assert number == len(self._placeholders)  # noqa: S101 - steps are added in their order
        leaves = [
            tf1.placeholder(spec.dtype, [self._size, *spec.shape], f"array_{number}_{index}")
            for index, spec in enumerate(self._signature.specs)
        ]
        self._placeholders.append([*leaves, tf1.placeholder(tf.float32, [], f"share_{number}")])
        return leaves

    def share(self, number: int) -> Tensor:
        return self._placeholders[number][-1]

    def begin(self, session: Session, begun: Position = START) -> None:
        if begun != self._begun:
            self._begun, self._batches = begun, None

    def take(self, steps: int, step: int) -> list[Any]:
        ahead = step - self._next
        if self._batches is None or (not self._is_independent and not 0 <= ahead <= PREFETCHED_BATCHES):
            self._batches = self._make(self._begun, step)
        elif not self._is_independent:  # a backup may have missed some steps
            collections.deque(itertools.islice(self._batches, ahead), maxlen=0)
        self._next = step + steps
        found = [next(self._batches) for _ in range(steps)]
        return [value for leaves, share in found for value in (*leaves, share)]


def stream_batches(signature: Signature, size: int | None, full: int, batches: Iterator[Sequence[Array]]) -> Batches:
    """The batches of a stream, in its own order, each of `size` examples; None if they have up to `full`."""
    shared = ((leaves, len(leaves[0]) / full) for leaves in batches)
    return FedBatches(signature, size, lambda *_: shared)


def dealt_batches(
    signature: Signature, read: Callable[[Any], Sequence[Array]], deal: Deal, learner: int, independent: int = 1
) -> Batches:
    """Batches of examples that are read by their indices, ahead in a thread.

    Args:
        signature: That of an example.
        read: Returns the leaves of the examples with these indices.
        deal: Deals the examples.
        learner: The number of this learner.
        independent: The replicas that advance the global step without waiting for each other. All have a part of what
            `deal` calls a step.
    """

    def batches(begun: Position, step: int) -> Iterator[Shared]:
        own, first = replace(deal, begun=begun), begun.step + (step - begun.step) // independent
        taken = (own.take(number, learner) for number in itertools.count(first))
        # A replica that others wait for takes each step, also without a share.
        kept = ((indices, count) for indices, count in taken if count or independent == 1)
        return prefetch((read(indices), count / deal.size) for indices, count in kept)

    return FedBatches(signature, deal.size if deal.is_even else None, batches, independent > 1)
