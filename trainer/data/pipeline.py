"""`tf.data` pipelines as examples. They run in eager mode; the trainer itself uses graphs."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import optree

from trainer.data.context import DataContext
from trainer.data.examples import Array, ArraySpec, Signature
from trainer.data.stream import Stream
from trainer.errors import ConfigurationError, ModelError, StoreError
from trainer.tensorflow import tf
from trainer.tensorflow.private import distribute, eager_mode
from trainer.text import truncate

AutoShardPolicy = tf.data.experimental.AutoShardPolicy
logger = logging.getLogger(__name__)

KEEP_BATCHES = {
    f"_{name}Dataset"
    for name in (
        *("Map", "ParallelMap", "Prefetch", "Cache", "Options", "Shuffle", "Repeat", "Take", "Skip", "Filter", "Shard"),
        "Snapshot",
    )
}
"""Classes of datasets whose elements are batches if those of their input are."""
LABELS = ("label", "labels", "target", "targets", "y")
"""The names under which dictionaries often have the targets."""
TOO_FEW_FILES = "Could not apply FILE based sharding"
"""In TensorFlow's error about a dataset that reads fewer files than there are replicas."""
STRIDE = 1009
"""How many examples apart replicas that read everything begin. More would cost the last ones a long time to skip."""
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
    _check_elements(dataset.element_spec, origin)
    with eager_mode():
        if data is None and dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ConfigurationError(
                f"{origin} repeats without end, so an evaluation would never end; remove repeat()."
            )
        count, of_batches = int(dataset.cardinality()), _batch_size(dataset, origin)
        if of_batches:
            count *= of_batches
            logger.info(f"{origin} gives batches, which are taken apart: batch_size says how many examples a step has")
            try:
                dataset = dataset.unbatch()
            except ValueError as error:
                raise ConfigurationError(
                    f"{origin}: its batches cannot be taken apart: {truncate(str(error), 200)}."
                ) from None
        if not all(isinstance(each, tf.TensorSpec) for each in tf.nest.flatten(dataset.element_spec)):
            dataset = dataset.map(lambda *element: tf.nest.map_structure(_dense, element))
    element = complete(dataset.element_spec)
    specs: list[Any] = optree.tree_leaves(element)
    if not all(isinstance(each, tf.TensorSpec) and each.shape.rank is not None for each in specs):
        raise ConfigurationError(f"{origin}: tensors of known rank were expected, not {element}.")
    varies = any(None in each.shape for each in specs)
    if varies:
        logger.info(f"{origin}: examples of different sizes are padded with zeros, or empty texts, to the largest")

    def read(chosen: Any, size: int, only_full: bool, again: bool = False) -> Iterator[Sequence[Array]]:
        try:
            with eager_mode():
                batched = (chosen.padded_batch if varies else chosen.batch)(size, drop_remainder=only_full)
                batched = batched.repeat() if again else batched
                batches = iter(batched.prefetch(tf.data.AUTOTUNE))
            while True:
                with eager_mode():
                    batch = next(batches, None)
                    if batch is None:
                        return
                    inputs, others = (optree.tree_leaves(each) for each in (batch[0], batch[1:]))
                    found = [convert(each.numpy(), are_ids=True) for each in inputs]
                yield [*found, *(convert(each.numpy()) for each in others)]
        except UNAVAILABLE as error:
            raise StoreError(f"{origin} cannot be read: {truncate(str(error), 300)}.") from error
        except (tf.errors.OpError, ValueError) as error:
            raise ModelError(f"{origin} failed: {truncate(str(error), 300)}.") from error

    def read_first(chosen: Any) -> Sequence[Array] | None:
        try:
            return next(read(chosen, 1, False), None)
        except ModelError as error:
            if TOO_FEW_FILES in str(error) and _policy(dataset) == AutoShardPolicy.AUTO:
                return None
            raise ConfigurationError(str(error)) from error

    part, what = _part(dataset, data)
    first = read_first(part)
    if first is None and data and data.listed > 1 and _policy(dataset) == AutoShardPolicy.AUTO:
        part, what = _every_nth(dataset, data)
        first = read_first(part)
    if first is None:
        raise ConfigurationError(f"{origin} gives {'this replica ' if what else ''}no examples.")
    if what:
        logger.info(f"{origin}: this replica reads {what}")
    leaves = tuple(ArraySpec.of(array, tuple(spec.shape)) for spec, array in zip(specs, first, strict=True))
    signature = Signature(optree.tree_structure(element), leaves)
    classes = _class_names(dataset) if signature.has_labels else None

    def endless(size: int, is_full: bool) -> Iterator[Sequence[Array]]:
        if is_full or (data and data.spare_workers):  # replicas that read everything begin within a pass
            return read(_endless(part, data), size, True)
        return read(part, size, False, again=True)

    return Stream(
        replace(signature, classes=len(classes)) if classes else signature,
        lambda size: read(part, size, False),
        count if count > 0 else None,
        classes,
        endless,
    )


def _class_names(dataset: Any) -> Sequence[str] | None:
    """The names that Keras gives to a dataset of folders of classes; None if it is made otherwise."""
    while dataset is not None:
        if found := getattr(dataset, "class_names", None):
            return [str(each) for each in found]
        dataset = getattr(dataset, "_input_dataset", None)
    return None


def _check_elements(spec: Any, origin: str) -> None:
    """Check that elements are (inputs, targets) or (inputs, targets, weight).

    Raises:
        ConfigurationError: they are not, or the targets are texts.
    """
    if isinstance(spec, dict) and len(spec) > 1:
        names = list(spec)
        target = next((name for name in LABELS if name in names), names[-1])
        inputs = [name for name in names if name != target]
        several = ", ".join(f"{name!r}: each[{name!r}]" for name in inputs)
        given = f"each[{inputs[0]!r}]" if len(inputs) == 1 else f"{{{several}}}"
        raise ConfigurationError(
            f"{origin}: elements (inputs, targets) were expected, not dictionaries of {', '.join(names)}; add "
            f".map(lambda each: ({given}, each[{target!r}]))."
        )
    if not isinstance(spec, tuple) or len(spec) not in (2, 3):
        raise ConfigurationError(f"{origin}: elements (inputs, targets) were expected, not {spec}.")
    if any(each.dtype == tf.string for each in tf.nest.flatten(spec[1])):
        raise ConfigurationError(
            f"{origin}: numbers were expected as targets, not texts; number them in a map(), such as by "
            "tf.argmax(tf.equal(label, names))."
        )


def _dense(tensor: Any) -> Any:
    """A ragged or a sparse tensor as one with zeros."""
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.to_tensor()
    return tf.sparse.to_dense(tensor) if isinstance(tensor, tf.SparseTensor) else tensor


def _batch_size(dataset: Any, origin: str) -> int:
    """The size of the batches, as those for `fit`: the dataset ends in batch(), or in what keeps them; otherwise 0.

    Raises:
        ConfigurationError: a map() follows on a batch() of full batches, as where sequences are cut from a text.
    """
    is_mapped = False
    while dataset is not None:
        kind = type(dataset).__name__
        if "BatchDataset" in kind and "Unbatch" not in kind:
            if is_mapped and bool(dataset._drop_remainder):
                raise ConfigurationError(
                    f"{origin}: after batch(…, drop_remainder=True) and map(), an element may be one example; end the "
                    "dataset with batch(1) if it is, and with unbatch() if it is a batch."
                )
            return int(dataset._batch_size)
        is_mapped = is_mapped or "Map" in kind
        if kind not in KEEP_BATCHES:
            return 0
        dataset = getattr(dataset, "_input_dataset", None)
    return 0


def _part(dataset: Any, data: DataContext | None) -> tuple[Any, str]:
    """What this replica reads of a dataset, and a description of that; empty if there are no others."""
    if data is None or data.listed == 1:
        return dataset, ""
    if data.spare_workers:  # the part of a replica that does not exist would never be read
        return (
            dataset,
            "all examples, starting at a different one than other replicas, because workers may join and leave",
        )
    with eager_mode():
        # As tf.distribute does: by files, or if it reads none by examples.
        part = distribute._AutoShardDataset(dataset, data.replicas, data.replica, data.replicas)
    policy = _policy(dataset)
    if policy == AutoShardPolicy.OFF:
        return part, "all examples, because auto_shard_policy is OFF"
    return part, f"part {data.replica + 1} of {data.replicas}, which auto_shard_policy {policy.name} determines"


def _every_nth(dataset: Any, data: DataContext) -> tuple[Any, str]:
    with eager_mode():
        part = dataset.shard(data.replicas, data.replica)
    return part, f"1 of every {data.replicas} examples, because there are fewer files than replicas"


def _policy(dataset: Any) -> Any:
    with eager_mode():
        return dataset.options().experimental_distribute.auto_shard_policy


def _endless(part: Any, data: DataContext | None) -> Any:
    """The examples again and again. Replicas that read everything begin at different ones."""
    with eager_mode():
        repeated = part.repeat()
        if data is None or not data.spare_workers:
            return repeated
        examples = int(part.cardinality())
        apart = min(STRIDE, max(1, examples // data.listed)) if examples > 0 else STRIDE
        return repeated.skip(data.index * apart)


def complete(example: tuple[Any, ...]) -> Any:
    """(inputs, targets, weight), where the weight may be None."""
    return example if len(example) == 3 else (*example, None)


def convert(array: Array, are_ids: bool = False) -> Array:
    """The array in a type in which the trainer computes: 32 bits for numbers of 64, except for integers `are_ids`.

    Raises:
        ValueError: an integer does not fit.
    """
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype != np.int64 or are_ids:
        return array
    found = array.astype(np.int32)
    if not np.array_equal(found, array):
        raise ValueError(f"integers of 32 bits were expected, not {array.min()} to {array.max()}")
    return found
