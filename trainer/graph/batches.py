"""Batches as tensors of a replica's graph, without feeding examples to every step.

Examples that fit on the replica's device are copied there once; an execution is fed only their indices. Otherwise an
execution is fed the batches of all its steps at once.

The last batch of an epoch may have fewer examples. If other learners share its step, it has the share of its examples
in a full batch, by which its gradient counts; 0 if another learner has its examples.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from trainer.data.epochs import START, Position
from trainer.data.examples import Array, Examples, Signature
from trainer.data.file_leases import FileLeases
from trainer.data.leases import ASK_SECONDS, OwnLeases, Part
from trainer.data.orders import Deal, Indices
from trainer.data.stream import prefetch
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Session, Tensor, Variable


class Feeding(Protocol):
    """Feeds batches to a session."""

    def feeds(self, steps: int) -> Sequence[Tensor]:
        """The placeholders that an execution of this number of steps feeds."""
        ...

    def begin(self, session: Session, begun: Position = START, leases: OwnLeases | None = None) -> None:
        """Initialize a session, before its first execution.

        Args:
            session: The session.
            begun: The position at which the run's steps have begun.
            leases: The parts of steps that this replica takes; None if it takes its part of each global step.
        """
        ...

    def take(self, steps: int, place: int) -> list[Any]:
        """The values of `feeds` for an execution of this number of steps, which begins at this place.

        That is the number of global steps before it or, with leases, of the steps of this replica.
        """
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

    def begin(self, session: Session, begun: Position = START, leases: OwnLeases | None = None) -> None:
        for each in self._batches:
            each.begin(session, begun, leases)

    def take(self, steps: int, place: int) -> list[Any]:
        return [value for each in self._batches for value in each.take(steps, place)]


@dataclass(frozen=True)
class Share:
    """What one device takes of the examples."""

    deal: Deal
    replica: int
    """The slot of its replica in each global step, without leases."""
    device: int = 0
    """The number of the device in its replica."""
    devices: int = 1
    """Those of its replica."""
    leases: OwnLeases | None = None

    def begun(self, at: Position, leases: OwnLeases | None) -> "Share":
        """The same for steps that have begun at a position, with leases."""
        return replace(self, deal=replace(self.deal, begun=at), leases=leases)

    def take(self, place: int) -> tuple[Indices, int] | None:
        """What `Deal.take` returns for the step at a place; None if there is no part now."""
        part = self.leases.at(place) if self.leases else Part(place, self.replica)
        return part and self.deal.take(part.step, part.slot * self.devices + self.device)

    def wait(self, place: int) -> tuple[Indices, int]:
        """The same, when there is a part."""
        while (taken := self.take(place)) is None:
            time.sleep(ASK_SECONDS)
        return taken


class InMemoryBatches:
    """Batches of examples that are stored on the replica's device."""

    def __init__(self, examples: Examples, share: Share) -> None:
        """Add the examples to the default graph, on the current device."""
        self._share, deal = share, share.deal
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

    def begin(self, session: Session, begun: Position = START, leases: OwnLeases | None = None) -> None:
        self._share = self._share.begun(begun, leases)
        session.run([each.initializer for each in self._variables], self._arrays)

    def take(self, steps: int, place: int) -> list[Any]:
        found = [self._share.wait(each) for each in range(place, place + steps)]
        if self._starts is None:
            return [np.stack([indices for indices, _ in found])]
        starts = np.cumsum([0, *(len(indices) for indices, _ in found)], dtype=np.int32)
        shares = np.array([count / self._share.deal.size for _, count in found], np.float32)
        return [np.concatenate([indices for indices, _ in found]), starts, shares]


Weighed = tuple[Sequence[Array], float]
"""The leaves of a batch, and the share of its examples in a full one."""
Read = Callable[[Position, OwnLeases | None, int], Iterator[Weighed]]
"""The batches of steps that have begun at a position, with leases, from the step at a place on."""


class FedBatches:
    """Batches that are fed to each execution."""

    def __init__(
        self,
        signature: Signature,
        size: int | None,
        batches: Read,
    ) -> None:
        """Feed batches.

        Args:
            signature: That of an example.
            size: The examples of each batch; None if it varies.
            batches: Returns them.
        """
        self._signature, self._size, self._make = signature, size, batches
        self._batches: Iterator[Weighed] | None = None
        self._begun, self._next = START, 0
        self._leases: OwnLeases | None = None
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

    def begin(self, session: Session, begun: Position = START, leases: OwnLeases | None = None) -> None:
        if leases or begun != self._begun:
            self._begun, self._leases, self._batches = begun, leases, None

    def take(self, steps: int, place: int) -> list[Any]:
        if self._batches is None or place != self._next:  # the run was rolled back
            self._batches = self._make(self._begun, self._leases, place)
        self._next = place + steps
        found = [next(self._batches) for _ in range(steps)]
        return [value for leaves, share in found for value in (*leaves, share)]


def stream_batches(signature: Signature, size: int | None, full: int, batches: Iterator[Sequence[Array]]) -> Batches:
    """The batches of a stream, in its own order, each of `size` examples; None if they have up to `full`."""
    shared = ((leaves, len(leaves[0]) / full) for leaves in batches)
    return FedBatches(signature, size, lambda *_: shared)


def file_batches(signature: Signature, full: int, files: FileLeases) -> Batches:
    """The batches of files, each of up to `full` examples."""

    def batches(*_: object) -> Iterator[Weighed]:
        return ((leaves, count / full) for leaves, count in files.batches())

    return FedBatches(signature, None, batches)


def dealt_batches(signature: Signature, read: Callable[[Any], Sequence[Array]], share: Share) -> Batches:
    """Batches of examples that are read by their indices, ahead in a thread.

    Args:
        signature: That of an example.
        read: Returns the leaves of the examples with these indices.
        share: What this device takes of the examples.
    """

    def batches(begun: Position, leases: OwnLeases | None, place: int) -> Iterator[Weighed]:
        own = share.begun(begun, leases)
        taken = (own.wait(number) for number in itertools.count(place))
        return prefetch((read(indices), count / share.deal.size) for indices, count in taken)

    return FedBatches(signature, share.deal.size if share.deal.is_even else None, batches)
