"""Batches as tensors of a replica's graph, without feeding examples to every step.

Examples that fit on the replica's device are copied there once; an execution is fed only their indices. Otherwise an
execution is fed the batches of all its steps at once.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from trainer.data.examples import Array, Examples, Signature
from trainer.data.orders import orders
from trainer.data.stream import IN_MEMORY_BYTES, prefetch
from trainer.data.structures import stack
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Session, Tensor, Variable


class Feeding(Protocol):
    """Feeds batches to a session."""

    @property
    def feeds(self) -> Sequence[Tensor]:
        """The placeholders that an execution feeds."""
        ...

    def begin(self, session: Session) -> None:
        """Initialize a session, before its first execution."""
        ...

    def take(self, steps: int) -> list[Any]:
        """The values of `feeds` for an execution of this number of steps."""
        ...


class Batches(Feeding, Protocol):
    """The batches of one device, as tensors of its replica's graph."""

    def tensors(self, number: int) -> Sequence[Tensor]:
        """Add the batch of the step with this index in an execution, from 0, and return its leaves."""
        ...


class MultiDeviceBatches:
    """The batches of several devices, for one session."""

    def __init__(self, batches: Sequence[Batches]) -> None:
        self._batches = batches
        self.feeds: Sequence[Tensor] = [feed for each in batches for feed in each.feeds]

    def begin(self, session: Session) -> None:
        for each in self._batches:
            each.begin(session)

    def take(self, steps: int) -> list[Any]:
        return [value for each in self._batches for value in each.take(steps)]


class InMemoryBatches:
    """Batches of examples that are stored on the replica's device."""

    def __init__(self, examples: Examples, size: int, seed: Sequence[int]) -> None:
        """Add the examples to the default graph, on the current device."""
        self._order = orders(len(examples), size, seed)
        indices = tf1.placeholder(tf.int32, [None, size], "indices")
        self.feeds: Sequence[Tensor] = [indices]
        self._arrays: dict[Tensor, Array] = {}
        self._variables = [self._add_variable(f"array_{n}", array) for n, array in enumerate(examples.arrays)]

    def _add_variable(self, name: str, array: Array) -> Variable:
        initial = tf1.placeholder(array.dtype, array.shape)
        self._arrays[initial] = array
        return tf1.get_variable(name, initializer=initial, trainable=False, use_resource=True)

    def tensors(self, number: int) -> Sequence[Tensor]:
        indices = self.feeds[0][number]
        return [tf.gather(each, indices) for each in self._variables]

    def begin(self, session: Session) -> None:
        session.run([each.initializer for each in self._variables], self._arrays)

    def take(self, steps: int) -> list[Any]:
        return [np.stack(list(itertools.islice(self._order, steps)))]


class FedBatches:
    """Batches that are fed to each execution."""

    def __init__(self, signature: Signature, size: int, batches: Iterator[Sequence[Array]]) -> None:
        """Add placeholders to the default graph. `batches` has the leaves of batches of `size` examples."""
        self._batches = batches
        self.feeds: Sequence[Tensor] = [
            tf1.placeholder(spec.dtype, [None, size, *spec.shape], f"array_{number}")
            for number, spec in enumerate(signature.specs)
        ]

    def tensors(self, number: int) -> Sequence[Tensor]:
        return [each[number] for each in self.feeds]

    def begin(self, session: Session) -> None:
        pass

    def take(self, steps: int) -> list[Any]:
        return [stack(arrays) for arrays in zip(*itertools.islice(self._batches, steps), strict=True)]


def make_batches(source: Examples, size: int, seed: Sequence[int]) -> Batches:
    """Add batches of examples in memory to the default graph: from the device if they are small enough, otherwise fed.

    Args:
        source: The training split.
        size: Examples per batch.
        seed: Determines the order.
    """
    if source.nbytes <= IN_MEMORY_BYTES:
        return InMemoryBatches(source, size, seed)
    batches = (source.take(indices).arrays for indices in orders(len(source), size, seed))
    return FedBatches(source.signature, size, prefetch(batches))
