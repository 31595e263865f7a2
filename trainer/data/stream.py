"""Examples that are read while the run trains, for data that does not fit into memory, or is made on the way."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from trainer.data.examples import Array, Signature

Batch = TypeVar("Batch")
IN_MEMORY_BYTES = 1 << 30
"""Largest total size of examples that are held in memory, and copied to the device."""
PREFETCHED_BATCHES = 16
FIRST_EXAMPLES = 32
"""The number of examples with which a model is tried, at most."""


@dataclass(frozen=True)
class Stream:
    """Batches of examples."""

    signature: Signature
    once: Callable[[int], Iterator[Sequence[Array]]]
    """The leaves of batches of at most this size, until each example has been read once."""
    size: int | None = None
    """The number of examples, over all replicas; None if it is not known."""
    classes: Sequence[str] | None = None
    """The names of the classes, by label, if they are known."""
    endless: Callable[[int, bool], Iterator[Sequence[Array]]] | None = None
    """The leaves of batches of this size, again and again. The last one of each pass may be smaller, and batches of the
    data's own of this size stay as they are, unless all are to be full. None if `read` reads the examples."""
    read: Callable[[Any], Sequence[Array]] | None = None
    """Returns the leaves of the examples with these indices, below `size`; None if `endless` reads the examples."""
    has_order: bool = False
    """Whether `read` determines the order of each epoch: index `epoch * size + n` is the example n of its order."""
    files: Sequence[Callable[[int], Iterator[Sequence[Array]]]] = ()
    """For each file of the data, the leaves of its batches of at most this size; none if it is not read by files."""
    batch_size: int | None = None
    """The examples of a full batch of the data; None if it has single examples."""
    first: Sequence[Array] = ()
    """The leaves of some of the first examples, with which the model is tried."""


def prefetch(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, read ahead in a thread."""
    thread = ThreadPoolExecutor(1)
    try:
        coming = deque(thread.submit(next, batches, None) for _ in range(PREFETCHED_BATCHES))
        while (batch := coming.popleft().result()) is not None:
            coming.append(thread.submit(next, batches, None))
            yield batch
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
