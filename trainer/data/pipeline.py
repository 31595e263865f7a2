"""`tf.data` pipelines as examples. They run in eager mode; the trainer itself uses graphs."""

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import optree

from trainer.data import cache_files
from trainer.data.batched import Accepted, RaggedShape, Shape, are_batches, size_of
from trainer.data.context import DataContext
from trainer.data.examples import Array, ArraySpec, Signature
from trainer.data.stream import FIRST_EXAMPLES, Stream
from trainer.data.structures import stack
from trainer.errors import ConfigurationError, ModelError, StoreError
from trainer.tensorflow import tf
from trainer.tensorflow.errors import brief, python_error
from trainer.tensorflow.private import distribute, eager_mode

AutoShardPolicy = tf.data.experimental.AutoShardPolicy
logger = logging.getLogger(__name__)

TOO_FEW_FILES = "Could not apply FILE based sharding"
"""In TensorFlow's error about a dataset that reads fewer files than there are replicas."""
STRIDE = 1009
"""How many examples apart replicas that read everything begin. More would cost the last ones a long time to skip."""
UNAVAILABLE = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError, tf.errors.AbortedError)
"""Errors of a file system or a service that may pass."""
PADDING = {tf.int32: np.int32(-1), tf.int64: np.int64(-1), tf.float32: np.float32(np.nan), tf.float64: np.nan}
"""Of ragged inputs, by type; texts are padded with empty ones. `trainer.models.ragged` removes it."""


def stream(
    dataset: Any,
    data: DataContext | None,
    origin: str,
    accepted: Accepted | None = None,
    most: tuple[int, int] | None = None,
    files: Mapping[str, Callable[[], Any]] | None = None,
) -> Stream:
    """The elements of a dataset.

    Args:
        dataset: A `tf.data.Dataset` of inputs, (inputs, targets) or (inputs, targets, weight): batches or examples.
        data: The replica that trains on a part of them; None reads all of them.
        origin: The dataset's name in errors.
        accepted: Returns the shapes of batches that the model accepts, if it says them.
        most: The batches, or the examples, that are read; None reads all of them.
        files: For each file that the dataset reads, what makes a dataset of it alone.

    Raises:
        ConfigurationError: the elements are no examples, or there are none.
        StoreError: what the dataset reads does not respond.
    """
    _check_elements(dataset.element_spec, origin)
    part = _part(dataset, data, origin)
    is_shared = data is not None and data.listed > 1
    first = part.first or (_begin(dataset, origin)[0] if is_shared else [])
    if not first:
        raise ConfigurationError(f"{origin} gives no examples.")
    with eager_mode():
        has_batches = are_batches(dataset, first, accepted, origin)
        if most:
            dataset = dataset.take(most[0] if has_batches else most[1])
            part = replace(part, dataset=dataset)
        if data is None and dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ConfigurationError(
                f"{origin} repeats without end, so an evaluation would never end; remove repeat(), or let "
                "fit_arguments() give validation_steps."
            )
    padding = _padding(dataset.element_spec, accepted, origin)
    if has_batches:
        return _of_batches(dataset, part, first, data, origin, files or {}, padding)
    if not part.first:
        raise ConfigurationError(f"{origin} gives this replica no examples.")
    return _of_examples(dataset, part, data, origin, files or {}, padding)


def _of_examples(
    dataset: Any,
    part: "_Part",
    data: DataContext | None,
    origin: str,
    files: Mapping[str, Callable[[], Any]],
    padding: Any,
) -> Stream:
    """The stream of a dataset of single examples."""
    found = [*part.first]
    with contextlib.suppress(ModelError):  # the training meets it, too
        found.extend(itertools.islice(part.rest, FIRST_EXAMPLES - len(found)))
    with eager_mode():
        examples = _dense(part.dataset, padding)
        element = complete(examples.element_spec)
        specs = _tensor_specs(element, origin)
        with _errors(origin):
            leaves = [_arrays(tf.nest.map_structure(_to_dense, each, padding, check_types=False)) for each in found]
    shapes: list[Shape] = [each.shape for each in specs]
    varies = any(None in each for each in shapes)
    logger.info(f"{origin}: its elements are single examples, of which the trainer makes batches")
    if varies:
        _say_padded(element, padding, 0, origin)
    if part.what:
        logger.info(f"{origin}: this replica reads {part.what}")
    batches = _Batches(examples, data, varies, origin, padding)

    def read_file(name: str, size: int) -> Iterator[Sequence[Array]]:
        return _Batches(_dense(files[name](), padding), None, varies, f"{origin} of {name}", padding).once(size)

    return _stream(
        dataset,
        element,
        shapes,
        [stack(arrays) for arrays in zip(*leaves, strict=True)],
        once=batches.once,
        endless=batches.endless,
        size=_cardinality(dataset),
        files=[partial(read_file, name) for name in files],
    )


def _of_batches(
    dataset: Any,
    part: "_Part",
    first: Sequence[Any],
    data: DataContext | None,
    origin: str,
    files: Mapping[str, Callable[[], Any]],
    padding: Any,
) -> Stream:
    """The stream of a dataset of batches. They stay as they are, unless batches of another size are wanted."""
    with eager_mode():
        element = complete(_dense(part.dataset, padding).element_spec)
        specs = _tensor_specs(element, origin)
        with _errors(origin):
            leaves = [_arrays(tf.nest.map_structure(_to_dense, each, padding, check_types=False)) for each in first]
        batch_size = size_of(dataset) or max(len(arrays[0]) for arrays in leaves)
    count = _cardinality(dataset)
    shapes: list[Shape] = [each.shape[1:] for each in specs]
    varies = any(None in each for each in shapes)
    logger.info(f"{origin}: its elements are batches of {batch_size} examples")
    if not all(isinstance(each, tf.TensorSpec) for each in tf.nest.flatten(dataset.element_spec)):
        _say_padded(element, padding, 1, origin)
    is_for_all = data is None or count is None or count >= data.listed
    own = _dense(part.dataset, padding) if part.first and is_for_all else None
    if own is not None and part.what:
        logger.info(f"{origin}: this replica reads {part.what.replace('examples', 'batches')}")

    def examples() -> _Batches:
        """The examples of the batches."""
        check_size()
        with eager_mode():
            apart = dataset.unbatch()
        found = _part(apart, data, origin)
        if not found.first:
            raise ConfigurationError(f"{origin} gives this replica no examples.")
        if found.what:
            logger.info(f"{origin}: this replica reads {found.what}")
        return _Batches(_dense(found.dataset, padding), data, False, origin)

    def check_size() -> None:
        if varies:
            raise ConfigurationError(
                f"{origin}: its batches of {batch_size} have examples of different sizes, or padding of their own, so "
                f"that no batches of another size are made of them; set batch_size={batch_size}, or end the dataset "
                "with batches of the size that you want."
            )

    def once(size: int) -> Iterator[Sequence[Array]]:
        if own is None or not varies:
            return examples().once(size)
        return _in_slices(_read(own, origin), size)

    def endless(size: int, is_full: bool) -> Iterator[Sequence[Array]]:
        if own is None or size != batch_size or (is_full and not varies):
            return examples().endless(size, is_full)
        batches = _read(_endless(own, data), origin)
        return _only_full(batches, size, origin) if is_full else batches

    def read_file(name: str, size: int) -> Iterator[Sequence[Array]]:
        batches, what = files[name](), f"{origin} of {name}"
        if size == batch_size:
            return _read(_dense(batches, padding), what)
        check_size()
        with eager_mode():
            return _Batches(_dense(batches.unbatch(), padding), None, False, what).once(size)

    return _stream(
        dataset,
        element,
        shapes,
        [array[:FIRST_EXAMPLES] for array in leaves[0]],
        once=once,
        endless=endless,
        size=count * batch_size if count else None,
        batch_size=batch_size,
        files=[partial(read_file, name) for name in files],
    )


@dataclass(frozen=True)
class _Batches:
    """Batches that are made of a dataset of examples."""

    examples: Any
    data: DataContext | None
    varies: bool
    """Whether examples have different sizes, so that they are padded."""
    origin: str
    padding: Any = None
    """The structure of an example, with the value with which each tensor is padded; None pads with zeros."""

    def once(self, size: int) -> Iterator[Sequence[Array]]:
        """The leaves of batches of at most this size."""
        return _read(self._batch(self.examples, size), self.origin)

    def endless(self, size: int, is_full: bool) -> Iterator[Sequence[Array]]:
        """The same again and again. With `is_full`, each has this size: some span the end of a pass."""
        if is_full or (self.data and self.data.spare_workers):  # those that read everything begin within a pass
            return _read(self._batch(_endless(self.examples, self.data), size, is_full=True), self.origin)
        with eager_mode():
            return _read(self._batch(self.examples, size).repeat(), self.origin)

    def _batch(self, examples: Any, size: int, is_full: bool = False) -> Any:
        with eager_mode():
            if self.varies:
                return examples.padded_batch(size, padding_values=self.padding, drop_remainder=is_full)
            return examples.batch(size, drop_remainder=is_full)


def _stream(dataset: Any, element: Any, shapes: Sequence[Shape], first: Sequence[Array], **of_stream: Any) -> Stream:
    """A stream with the signature of its first examples."""
    specs = tuple(ArraySpec.of(array, tuple(shape)) for shape, array in zip(shapes, first, strict=True))
    signature = Signature(optree.tree_structure(element), specs)
    classes = _class_names(dataset) if signature.has_labels else None
    signature = replace(signature, classes=len(classes)) if classes else signature
    return Stream(signature=signature, classes=classes, first=first, **of_stream)


def _tensor_specs(element: Any, origin: str) -> list[Any]:
    """The specs of the leaves of an element.

    Raises:
        ConfigurationError: one of them has no rank.
    """
    specs: list[Any] = optree.tree_leaves(element)
    if not all(isinstance(each, tf.TensorSpec) and each.shape.rank is not None for each in specs):
        raise ConfigurationError(f"{origin}: tensors of known rank were expected, not {element}.")
    return specs


def _say_padded(element: Any, padding: Any, batch_dimensions: int, origin: str) -> None:
    """Log what becomes of examples of different sizes."""
    if all(each is None for each in tf.nest.flatten(padding)):
        logger.info(f"{origin}: examples of different sizes are padded with zeros, or empty texts, to the largest")
    else:
        logger.info(f"{origin}: the model gets ragged tensors; other examples of different sizes are padded with zeros")
    if any(None in each.shape[batch_dimensions:] for each in optree.tree_leaves(element[1])):
        logger.warning(
            f"{origin}: targets are padded with zeros too, which count in the loss unless the model masks them; end "
            "the dataset with padded_batch(SIZE, padding_values=…) to pad them with a value that the loss ignores"
        )


def _cardinality(dataset: Any) -> int | None:
    """The number of elements; None if it is not known, or infinite."""
    with eager_mode():
        found = int(dataset.cardinality())
    return found if found > 0 else None


@contextlib.contextmanager
def _errors(origin: str) -> Iterator[None]:
    """Convert the errors of what a dataset reads and computes."""
    try:
        yield
    except UNAVAILABLE as error:
        raise StoreError(f"{origin} cannot be read: {brief(error).rstrip('.')}.") from error
    except tf.errors.NotFoundError as error:
        raise ModelError(
            f"{origin} cannot be read: {brief(error).rstrip('.')}; put it there and start the run again, which goes on "
            "from its last checkpoint."
        ) from error
    except (tf.errors.OpError, ValueError) as error:
        what = python_error(str(error)) or brief(error).rstrip(".")
        raise ModelError(f"{origin} failed: {what}.") from error


def _elements(dataset: Any, origin: str) -> Iterator[Any]:
    """The elements of a dataset, as tensors."""
    with _errors(origin):
        with eager_mode():
            elements = iter(dataset)
        while True:
            with eager_mode():
                element = next(elements, None)
            if element is None:
                return
            yield element


def _read(batches: Any, origin: str) -> Iterator[Sequence[Array]]:
    """The leaves of the elements of a dataset of batches."""
    with eager_mode():
        ahead = batches.prefetch(tf.data.AUTOTUNE)
    for element in _elements(ahead, origin):
        with _errors(origin), eager_mode():
            arrays = _arrays(element)
        yield arrays


def _arrays(element: Any) -> list[Array]:
    """The leaves of an element, in types in which the trainer computes.

    Raises:
        ValueError: an integer does not fit.
    """
    inputs, targets, weight = complete(element)
    others: Any = targets, weight
    found = [convert(_numpy(each), are_ids=True) for each in optree.tree_leaves(inputs)]
    return [*found, *(convert(_numpy(each)) for each in optree.tree_leaves(others))]


def _numpy(tensor: Any) -> Array:
    found = tensor.numpy()
    return found if isinstance(found, np.ndarray) else np.asarray(found, object if isinstance(found, bytes) else None)


def _in_slices(batches: Iterator[Sequence[Array]], size: int) -> Iterator[Sequence[Array]]:
    """The same batches, where larger ones are split into batches of this size."""
    for arrays in batches:
        for start in range(0, len(arrays[0]), size):
            yield [array[start : start + size] for array in arrays]


def _only_full(batches: Iterator[Sequence[Array]], size: int, origin: str) -> Iterator[Sequence[Array]]:
    """The same batches.

    Raises:
        ModelError: one has another size.
    """
    for arrays in batches:
        if len(arrays[0]) != size:
            raise ModelError(
                f"{origin} gives a batch of {len(arrays[0])} examples, but each must have {size}; add "
                "drop_remainder=True to what makes the batches."
            )
        yield arrays


def _class_names(dataset: Any) -> Sequence[str] | None:
    """The names that Keras gives to a dataset of folders of classes; None if it is made otherwise."""
    while dataset is not None:
        if found := getattr(dataset, "class_names", None):
            return [str(each) for each in found]
        dataset = getattr(dataset, "_input_dataset", None)
    return None


def _check_elements(spec: Any, origin: str) -> None:
    """Check that elements are inputs, (inputs, targets) or (inputs, targets, weight).

    Raises:
        ConfigurationError: they are not, or the targets are texts.
    """
    if isinstance(spec, tuple) and len(spec) not in (1, 2, 3):
        raise ConfigurationError(f"{origin}: elements (inputs, targets) were expected, not {spec}.")
    if any(each.dtype == tf.string for each in optree.tree_leaves(complete(spec)[1])):
        raise ConfigurationError(
            f"{origin}: numbers were expected as targets, not texts; number them in a map(), such as by "
            "tf.argmax(tf.equal(label, names))."
        )


def _padding(spec: Any, accepted: Accepted | None, origin: str) -> Any:
    """The structure of an element, with the value with which each tensor is padded; None pads with zeros.

    An input that is ragged in the model is padded with a value by which the model finds the lengths.

    Raises:
        ConfigurationError: a type has no such value.
    """
    padding: Any = tf.nest.map_structure(lambda each: None, spec)
    if not accepted or not any(None in each.shape for each in tf.nest.flatten(spec)):
        return padding
    shapes = accepted() or {}

    def value(name: str, each: Any) -> Any:
        if not isinstance(shapes.get(name), RaggedShape) or each.dtype == tf.string:
            return None
        if each.dtype not in PADDING:
            raise ConfigurationError(
                f"{origin}: the input {name} is ragged and {each.dtype.name}; cast it to int32 or float32."
            )
        return PADDING[each.dtype]

    inputs = spec[0] if isinstance(spec, tuple) else spec
    if isinstance(inputs, dict):
        values: Any = {name: tf.nest.map_structure(partial(value, name), each) for name, each in inputs.items()}
    elif len(leaves := tf.nest.flatten(inputs)) == len(shapes):
        values = tf.nest.pack_sequence_as(inputs, list(map(value, shapes, leaves)))
    else:
        return padding
    return (values, *padding[1:]) if isinstance(spec, tuple) else values


def _dense(dataset: Any, padding: Any) -> Any:
    """The dataset with padding in its ragged tensors, and zeros in its sparse ones."""
    if all(isinstance(each, tf.TensorSpec) for each in tf.nest.flatten(dataset.element_spec)):
        return dataset
    with eager_mode():
        if isinstance(dataset.element_spec, tuple):
            return dataset.map(lambda *element: tf.nest.map_structure(_to_dense, element, padding, check_types=False))
        return dataset.map(lambda element: tf.nest.map_structure(_to_dense, element, padding, check_types=False))


def _to_dense(tensor: Any, padding: Any) -> Any:
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.to_tensor(padding)
    return tf.sparse.to_dense(tensor) if isinstance(tensor, tf.SparseTensor) else tensor


@dataclass(frozen=True)
class _Part:
    """What a replica reads of a dataset."""

    dataset: Any
    what: str
    """In words; empty if there are no other replicas."""
    first: Sequence[Any]
    """Its first elements, at most two."""
    rest: Iterator[Any]
    """The elements after these."""


def _part(dataset: Any, data: DataContext | None, origin: str) -> _Part:
    """What this replica reads of a dataset: as tf.distribute does, by files, or if it reads none by elements.

    Raises:
        ConfigurationError: its first elements cannot be read.
    """
    part, what = _choose_part(dataset, data, origin)
    is_auto = data is not None and data.listed > 1 and _policy(dataset) == AutoShardPolicy.AUTO
    try:
        first, rest = _begin(part, origin)
    except ConfigurationError as error:
        if not is_auto or TOO_FEW_FILES not in str(error):
            raise
        first = []
    if data and is_auto and not first:
        with eager_mode():
            part = dataset.shard(data.replicas, data.replica)
        what = f"1 of every {data.replicas} examples, because there are fewer files than replicas"
        first, rest = _begin(part, origin)
    return _Part(part, what, first, rest)


def of_unknown_size(dataset: Any) -> Any:
    """A dataset with the same elements, of which each replica has others, so that their number is not that of all."""
    with eager_mode():
        return dataset.filter(lambda *_: True)


def _begin(part: Any, origin: str) -> tuple[list[Any], Iterator[Any]]:
    """At most two elements, and an iterator over the rest."""
    elements = _elements(part, origin)
    try:
        return list(itertools.islice(elements, 2)), elements
    except ModelError as error:
        raise ConfigurationError(str(error)) from error


def _choose_part(dataset: Any, data: DataContext | None, origin: str) -> tuple[Any, str]:
    """What this replica reads of a dataset by its policy, and a description of that; empty if there are no others."""
    if data is None or data.listed == 1:
        return dataset, ""
    with eager_mode():
        cache_files.claim(dataset, data, origin)
    if data.spare_workers:  # the part of a replica that does not exist would never be read
        return (
            dataset,
            "all examples, starting at a different one than other replicas, because workers may join and leave",
        )
    with eager_mode():
        part = distribute._AutoShardDataset(dataset, data.replicas, data.replica, data.replicas)
    policy = _policy(dataset)
    if policy == AutoShardPolicy.OFF:
        return part, "all examples, because auto_shard_policy is OFF"
    return part, f"part {data.replica + 1} of {data.replicas}, which auto_shard_policy {policy.name} determines"


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


def complete(example: Any) -> tuple[Any, Any, Any]:
    """(inputs, targets, weight), where the weight may be None.

    Without targets these are None, or () for a tuple of the inputs alone, which a model's `train_step` then gets.
    """
    if not isinstance(example, tuple):
        return example, None, None
    if len(example) == 1:
        return example[0], (), None
    return example[0], example[1], example[2] if len(example) > 2 else None


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
