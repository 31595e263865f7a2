"""`tf.data` pipelines as examples. They run in eager mode; the trainer itself uses graphs."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import optree
from tensorflow.python.data.experimental.ops import distribute  # not public API; tf.distribute's own sharding
from tensorflow.python.eager import context  # not public API

from trainer.data.context import DataContext
from trainer.data.examples import Array, ArraySpec, Signature
from trainer.data.stream import Stream
from trainer.errors import ConfigurationError, ModelError, StoreError
from trainer.tensorflow import tf
from trainer.text import truncate

logger = logging.getLogger(__name__)

KEEP_BATCHES = {
    f"_{name}Dataset"
    for name in (
        *("Map", "ParallelMap", "Prefetch", "Cache", "Options", "Shuffle", "Repeat", "Take", "Skip", "Filter", "Shard"),
        "Snapshot",
    )
}
"""Classes of datasets whose elements are batches if those of their input are."""
UNAVAILABLE = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError)
"""Errors of a file system or a service that may pass."""


def stream(dataset: Any, data: DataContext | None, origin: str) -> Stream:
    """The elements of a dataset.

    Args:
        dataset: A `tf.data.Dataset` of examples (inputs, targets) or (inputs, targets, weight).
        data: The replica that trains on a part of them; None reads all of them.
        origin: The dataset's name in errors.

    Raises:
        ConfigurationError: the elements are no examples, or there are none.
        StoreError: what the dataset reads does not respond.
    """
    if not isinstance(dataset.element_spec, tuple) or len(dataset.element_spec) not in (2, 3):
        raise ConfigurationError(f"{origin}: elements (inputs, targets) were expected, not {dataset.element_spec}.")
    with context.eager_mode():
        if data is None and dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ConfigurationError(
                f"{origin} repeats without end, so an evaluation would never end; remove repeat()."
            )
        if _is_batched(dataset):
            logger.info(f"{origin} gives batches, which are taken apart: batch_size says how many examples a step has")
            dataset = dataset.unbatch()
    element = complete(dataset.element_spec)
    specs: list[Any] = optree.tree_leaves(element)
    if not all(isinstance(each, tf.TensorSpec) and each.shape.rank is not None for each in specs):
        raise ConfigurationError(f"{origin}: tensors of known rank were expected, not {element}.")

    def read(size: int, is_endless: bool) -> Iterator[Sequence[Array]]:
        try:
            with context.eager_mode():
                batches = _batches(dataset, data, size, is_endless)
            while True:
                with context.eager_mode():
                    batch = next(batches, None)
                    if batch is None:
                        return
                    leaves = [convert(each.numpy()) for each in optree.tree_leaves(batch)]
                yield leaves
        except UNAVAILABLE as error:
            raise StoreError(f"{origin} cannot be read: {truncate(str(error), 300)}.") from error
        except (tf.errors.OpError, ValueError) as error:
            raise ModelError(f"{origin} failed: {truncate(str(error), 300)}.") from error

    try:
        first = next(read(1, is_endless=False), None)
    except ModelError as error:
        raise ConfigurationError(str(error)) from error
    if first is None:
        raise ConfigurationError(f"{origin} gives no examples.")
    leaves = tuple(ArraySpec.of(array, tuple(spec.shape)) for spec, array in zip(specs, first, strict=True))
    structure = optree.tree_structure(element)
    with context.eager_mode():
        count = int(dataset.cardinality())
    signature = Signature(structure, leaves)
    return Stream(
        signature, lambda size: read(size, True), lambda size: read(size, False), count if count >= 0 else None
    )


def _is_batched(dataset: Any) -> bool:
    """Whether the elements are batches, as those for `fit` are: the dataset ends in batch(), or in what keeps them."""
    while dataset is not None:
        kind = type(dataset).__name__
        if "BatchDataset" in kind and "Unbatch" not in kind:
            return True
        if kind not in KEEP_BATCHES:
            return False
        dataset = getattr(dataset, "_input_dataset", None)
    return False


def _batches(dataset: Any, data: DataContext | None, size: int, is_endless: bool) -> Iterator[Any]:
    if data and data.replicas > 1:  # as tf.distribute does: by files, or if that is impossible by elements
        dataset = distribute._AutoShardDataset(dataset, data.replicas, data.replica, data.replicas)
    repeated = dataset.repeat() if is_endless else dataset
    return iter(repeated.batch(size, drop_remainder=is_endless).prefetch(tf.data.AUTOTUNE))


def complete(example: tuple[Any, ...]) -> Any:
    """(inputs, targets, weight), where the weight may be None."""
    return example if len(example) == 3 else (*example, None)


def convert(array: Array) -> Array:
    """The array in a type in which the trainer computes: 32 bits for numbers of 64.

    Raises:
        ValueError: an integer does not fit.
    """
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype != np.int64:
        return array
    found = array.astype(np.int32)
    if not np.array_equal(found, array):
        raise ValueError(f"integers of 32 bits were expected, not {array.min()} to {array.max()}")
    return found
