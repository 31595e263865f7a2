"""How batches get into a replica's graph without being fed to every step.

Examples that fit in memory are put on the replica's device once; a call is then given nothing but which ones it takes.
Larger ones come by a `tf.data` pipeline, which prepares batches meanwhile. Either way the order is drawn from the seed.
"""

import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trainer.data.datasets import Examples
from trainer.tensorflow import tf, tf1

IN_MEMORY_BYTES = 1 << 30
"""Images that are larger in all are not put on the device."""
PREFETCHED = 16
"""Batches that are prepared ahead."""


def orders(examples: int, size: int, seed: Sequence[int]) -> Iterator[npt.NDArray[np.int32]]:
    """Endless batches of indices [size] below `examples`: each epoch in a new order, drawn from the seed.

    A batch may reach over the end of an epoch, so all have the same size and every example is seen equally often.
    """
    random = np.random.default_rng(list(seed))
    order = np.empty(0, np.int32)
    while True:
        while len(order) < size:
            order = np.concatenate([order, random.permutation(examples).astype(np.int32)])
        pick, order = order[:size], order[size:]
        yield pick


class Feeding(Protocol):
    """What it takes to have batches in a session."""

    @property
    def feeds(self) -> Sequence[Any]:
        """Placeholders that a call must be fed."""
        ...

    def begin(self, session: Any) -> None:
        """To be done once in each session before the first call."""
        ...

    def take(self, steps: int) -> list[Any]:
        """The values to feed to a call of so many steps."""
        ...


class Batches(Feeding, Protocol):
    """The batches of one learner, as tensors of its replica's graph."""

    def tensors(self, number: int) -> tuple[Any, Any]:
        """Add the batch of a call's step of this number, from 0.

        Returns:
            Images, float32 [size, *image_shape], and labels, int32 [size].
        """
        ...


class MultiDeviceBatches:
    """The batches of several learners, for one session."""

    def __init__(self, batches: Sequence[Batches]) -> None:
        self._batches = batches
        self.feeds: Sequence[Any] = [feed for each in batches for feed in each.feeds]

    def begin(self, session: Any) -> None:
        for each in self._batches:
            each.begin(session)

    def take(self, steps: int) -> list[Any]:
        return [value for each in self._batches for value in each.take(steps)]


class InMemoryBatches:
    """Batches of examples that lie on the replica's own device."""

    def __init__(self, examples: Examples, size: int, seed: Sequence[int]) -> None:
        """Add them to the default graph, on the device in force."""
        self._order = orders(len(examples), size, seed)
        picks = tf1.placeholder(tf.int32, [None, size], "picks")
        self.feeds: Sequence[Any] = [picks]
        self._arrays: dict[Any, npt.NDArray[Any]] = {}
        self._images = self._hold("images", examples.images)
        self._labels = self._hold("labels", examples.labels)

    def _hold(self, name: str, array: npt.NDArray[Any]) -> Any:
        given = tf1.placeholder(array.dtype, array.shape)
        self._arrays[given] = array
        return tf1.get_variable(name, initializer=given, trainable=False, use_resource=True)

    def tensors(self, number: int) -> tuple[Any, Any]:
        pick = self.feeds[0][number]
        return tf.gather(self._images, pick), tf.gather(self._labels, pick)

    def begin(self, session: Any) -> None:
        session.run([self._images.initializer, self._labels.initializer], self._arrays)

    def take(self, steps: int) -> list[Any]:
        return [np.stack(list(itertools.islice(self._order, steps)))]


class PipelineBatches:
    """Batches that a `tf.data` pipeline brings from this process's memory, prepared while others are learnt."""

    feeds: Sequence[Any] = ()

    def __init__(self, examples: Examples, size: int, seed: Sequence[int], host: str) -> None:
        """Add the pipeline to the default graph, on the host's device."""
        order = orders(len(examples), size, seed)
        dataset = tf.data.Dataset.from_generator(
            lambda: ((examples.images[pick], examples.labels[pick]) for pick in order),
            output_signature=(
                tf.TensorSpec((size, *examples.images.shape[1:]), tf.float32),
                tf.TensorSpec((size,), tf.int32),
            ),
        )
        self._host = host
        with tf1.device(host):
            self._iterator = tf1.data.make_initializable_iterator(dataset.prefetch(PREFETCHED))
        self._before: list[Any] = []

    def tensors(self, number: int) -> tuple[Any, Any]:
        with tf1.device(self._host), tf.control_dependencies(self._before), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # many of these ops in one graph are meant
            images, labels = self._iterator.get_next()
        self._before = [labels]  # so that batches come in the order of the seed
        return images, labels

    def begin(self, session: Any) -> None:
        session.run(self._iterator.initializer)

    def take(self, steps: int) -> list[Any]:
        return []


def make_batches(examples: Examples, size: int, seed: Sequence[int], host: str) -> Batches:
    """Add batches to the default graph, in the way that suits how large the examples are.

    Args:
        examples: To draw them from.
        size: How many examples are in each.
        seed: Of their order.
        host: The CPU of the process that holds the examples.
    """
    if examples.images.nbytes <= IN_MEMORY_BYTES:
        return InMemoryBatches(examples, size, seed)
    return PipelineBatches(examples, size, seed, host)
