"""Batches as tensors of a replica's graph, without feeding examples to every step.

Examples that fit in memory are copied to the replica's device once; an execution is fed only their indices. Larger
data sets use a `tf.data` pipeline, which prefetches batches. In both cases the seed determines the order.
"""

import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trainer.data.datasets import Examples
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Session, Tensor, Variable

IN_MEMORY_BYTES = 1 << 30
"""Largest total size of the images that are copied to the device, in bytes."""
PREFETCHED_BATCHES = 16
"""Batches that the pipeline prefetches."""


def orders(examples: int, size: int, seed: Sequence[int]) -> Iterator[npt.NDArray[np.int32]]:
    """Endless batches of indices, int32 [size], below `examples`. The seed determines a new order for each epoch.

    A batch may span two epochs, so all batches have the same size and all examples occur equally often.
    """
    random = np.random.default_rng(list(seed))
    order = np.empty(0, np.int32)
    while True:
        while len(order) < size:
            order = np.concatenate([order, random.permutation(examples).astype(np.int32)])
        indices, order = order[:size], order[size:]
        yield indices


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

    def tensors(self, number: int) -> tuple[Tensor, Tensor]:
        """Add the batch of the step with this index in an execution, from 0.

        Returns:
            Images, float32 [size, *image_shape], and labels, int32 [size].
        """
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
        self._arrays: dict[Tensor, npt.NDArray[Any]] = {}
        self._images = self._add_variable("images", examples.images)
        self._labels = self._add_variable("labels", examples.labels)

    def _add_variable(self, name: str, array: npt.NDArray[Any]) -> Variable:
        initial = tf1.placeholder(array.dtype, array.shape)
        self._arrays[initial] = array
        return tf1.get_variable(name, initializer=initial, trainable=False, use_resource=True)

    def tensors(self, number: int) -> tuple[Tensor, Tensor]:
        indices = self.feeds[0][number]
        return tf.gather(self._images, indices), tf.gather(self._labels, indices)

    def begin(self, session: Session) -> None:
        session.run([self._images.initializer, self._labels.initializer], self._arrays)

    def take(self, steps: int) -> list[Any]:
        return [np.stack(list(itertools.islice(self._order, steps)))]


class PipelineBatches:
    """Batches that a `tf.data` pipeline prefetches from the memory of this process while a step runs."""

    feeds: Sequence[Tensor] = ()

    def __init__(self, examples: Examples, size: int, seed: Sequence[int], host: str) -> None:
        """Add the pipeline to the default graph, on the host CPU."""
        order = orders(len(examples), size, seed)
        dataset = tf.data.Dataset.from_generator(
            lambda: ((examples.images[indices], examples.labels[indices]) for indices in order),
            output_signature=(
                tf.TensorSpec((size, *examples.images.shape[1:]), tf.float32),
                tf.TensorSpec((size,), tf.int32),
            ),
        )
        self._host = host
        with tf1.device(host):
            self._iterator = tf1.data.make_initializable_iterator(dataset.prefetch(PREFETCHED_BATCHES))
        self._before: list[Tensor] = []

    def tensors(self, number: int) -> tuple[Tensor, Tensor]:
        with tf1.device(self._host), tf.control_dependencies(self._before), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TensorFlow warns of many get_next ops; they are intended
            images, labels = self._iterator.get_next()
        self._before = [labels]  # keeps the batches in the order of the seed
        return images, labels

    def begin(self, session: Session) -> None:
        session.run(self._iterator.initializer)

    def take(self, steps: int) -> list[Any]:
        return []


def make_batches(examples: Examples, size: int, seed: Sequence[int], host: str) -> Batches:
    """Add batches to the default graph: in memory if the examples are small enough, else from a pipeline.

    Args:
        examples: The training split.
        size: Examples per batch.
        seed: Determines the order of the examples.
        host: CPU device of the process that holds the examples.
    """
    if examples.images.nbytes <= IN_MEMORY_BYTES:
        return InMemoryBatches(examples, size, seed)
    return PipelineBatches(examples, size, seed, host)
