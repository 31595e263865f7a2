"""Whether the elements of a `tf.data.Dataset` are batches, or single examples.

`keras.Model.fit` takes each element as a batch; the trainer also takes single examples. The shapes that the model
accepts decide. Where these are not known, the ops that make the dataset do.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer.errors import ConfigurationError
from trainer.tensorflow import tf

Shape = Sequence[int | None]


class RaggedShape(tuple[int | None, ...]):
    """The shape of batches of an input that is ragged."""

    __slots__ = ()


Accepted = Callable[[], Mapping[str, Shape] | None]
"""Returns the shapes of batches that a model accepts, by the names of its inputs; None if it does not say them."""
BATCHES, EXAMPLES, COUNTED, UNCLEAR = "batches", "examples", "counted", "unclear"
BATCHING = {"Batch", "PaddedBatch", "MapAndBatch", "DenseToSparseBatch", "Rebatch"}
"""Kinds of datasets whose elements are batches."""
SOURCES = {"TensorSlice", "SparseTensorSlice", "TFRecord", "TextLine", "FixedLengthRecord", "Unbatch"}
"""Kinds whose elements are examples."""
COUNTERS = {"Range", "Random"}
"""Kinds that a map makes examples or batches of."""
OF_FUNCTIONS = {"FlatMap", "Interleave", "GroupByWindow"}
"""Kinds whose elements are those of the datasets that a function returns."""
KEEPING = {
    *("Map", "Prefetch", "Cache", "Options", "Shuffle", "Repeat", "Take", "Skip", "Filter", "Shard", "Snapshot"),
    *("TakeWhile", "AssertCardinality", "IgnoreErrors", "Zip", "Concatenate", "DirectedInterleave", "Restructured"),
}
"""Kinds whose elements are batches if those of all inputs are."""
_KIND = re.compile(r"_?(?:Parallel)?(?P<kind>\w+?)Dataset(?:V\d)?$")
"""In the name of a class of datasets, or of an op that makes one."""


def are_batches(dataset: Any, first: Sequence[Any], accepted: Accepted | None, origin: str) -> bool:
    """Whether the elements are batches, as those for `fit`.

    Args:
        dataset: The `tf.data.Dataset`.
        first: Its first elements, at least one.
        accepted: Returns the shapes of batches that the model accepts, if it says them.
        origin: The dataset's name in errors.

    Raises:
        ConfigurationError: nothing tells.
    """
    if not all(_has_one_length(each) for each in first):
        return False
    shapes = accepted() if accepted else None
    if shapes and (found := _by_shapes(first[0], shapes)) is not None:
        return found
    kind = _structure(dataset)
    if kind == COUNTED and all(len(each.shape) == 1 for each in tf.nest.flatten(first[0])):
        return False  # a batch of them would be a batch of numbers
    if kind in (COUNTED, UNCLEAR):
        raise ConfigurationError(
            f"{origin}: an element may be one example or a batch; end the dataset with batch(SIZE) if it is an "
            "example, and with unbatch() and batch(SIZE) if it is a batch, or begin the model with keras.Input."
        )
    return kind != EXAMPLES


def size_of(dataset: Any) -> int | None:
    """The examples of a full batch, of a dataset that ends in one op that makes batches; otherwise None."""
    while dataset is not None:
        kind = _kind(type(dataset).__name__)
        if kind in BATCHING:
            size = getattr(dataset, "_batch_size", None)
            return None if size is None or tf.rank(size) else int(size)
        inputs = dataset._inputs() if kind in KEEPING else []
        dataset = inputs[0] if len(inputs) == 1 else None
    return None


def _has_one_length(element: Any) -> bool:
    """Whether all tensors of an element have the same number of rows."""
    lengths = {tuple(each.shape[:1]) for each in tf.nest.flatten(element)}
    return len(lengths) == 1 and lengths != {()}


def _by_shapes(element: Any, accepted: Mapping[str, Shape]) -> bool | None:
    """Whether the model accepts an element as a batch, and not as an example; None if it accepts both, or neither."""
    inputs = element[0] if isinstance(element, tuple) else element
    if isinstance(inputs, dict) and accepted.keys() <= inputs.keys():
        given = [inputs[name] for name in accepted]
    else:
        given = tf.nest.flatten(inputs)
    if len(given) != len(accepted):
        return None
    pairs = [(list(each.shape), list(wanted)) for each, wanted in zip(given, accepted.values(), strict=True)]
    as_batch = all(_fits(shape, wanted) for shape, wanted in pairs)
    as_example = all(_fits([None, *shape], wanted) for shape, wanted in pairs)
    return as_batch if as_batch != as_example else None


def _fits(shape: Shape, wanted: Shape) -> bool:
    """Whether a model takes a batch of this shape: it adds or removes a last dimension of 1, as Keras does."""
    if len(shape) == len(wanted) + 1 and shape[-1] == 1:
        shape = shape[:-1]
    elif len(shape) == len(wanted) - 1 and wanted[-1] == 1:
        wanted = wanted[:-1]
    pairs = zip(shape[1:], wanted[1:], strict=False)
    return len(shape) == len(wanted) and all(each is None or other in (None, each) for each, other in pairs)


def _kind(name: str) -> str:
    found = _KIND.match(name)
    return found["kind"] if found else name


def _structure(dataset: Any, is_mapped: bool = False) -> str | None:
    """What the ops of a dataset say about its elements, of which all tensors have one length; None if they do not."""
    kind, inputs, made = _parts(dataset)
    if kind in BATCHING:
        is_full = isinstance(dataset, tf.data.Dataset) and bool(getattr(dataset, "_drop_remainder", False))
        return UNCLEAR if is_mapped and is_full else BATCHES  # as where sequences are cut from a text
    if kind in SOURCES:
        return EXAMPLES
    if kind in OF_FUNCTIONS:
        return _structure(made, is_mapped) if made is not None else None
    if kind in COUNTERS and is_mapped:
        return COUNTED
    if kind not in KEEPING or not inputs:
        return None
    if kind == "DirectedInterleave":
        inputs = inputs[1:]  # the first one chooses among the others
    found = {_structure(each, is_mapped or kind == "Map") for each in inputs}
    known = found - {None, COUNTED} or found  # as of what is zipped with a counter
    common = next(iter(known)) if len(known) == 1 else None
    makes_batches = kind == "Map" and common != BATCHES and _has_unknown_lengths(dataset)
    return None if makes_batches else common


def _has_unknown_lengths(dataset: Any) -> bool:
    """Whether a dataset does not know the first dimension of any tensor, as that of a batch."""
    if not isinstance(dataset, tf.data.Dataset):
        return False
    specs = tf.nest.flatten(dataset.element_spec)
    return all(getattr(each, "shape", None) and each.shape.rank and each.shape[0] is None for each in specs)


def _parts(dataset: Any) -> tuple[str, Sequence[Any], Any]:
    """The kind of a dataset, or of the op that makes one in a function; its inputs; and what its own function makes."""
    if isinstance(dataset, tf.data.Dataset):
        function = getattr(dataset, "_map_func", None) or getattr(dataset, "_reduce_func", None)
        graph = function.function.graph if function else None
        kind, inputs = _kind(type(dataset).__name__), dataset._inputs()
    else:
        while dataset.type == "Identity":
            dataset = dataset.inputs[0].op
        attributes = dataset.node_def.attr
        name = next((attributes[key].func.name for key in ("f", "reduce_func") if key in attributes), None)
        graph = dataset.graph._get_function(name).graph if name else None
        kind, inputs = _kind(dataset.type), [each.op for each in dataset.inputs if each.dtype == tf.variant]
    outputs = graph.outputs if graph is not None and kind in OF_FUNCTIONS else []
    return kind, inputs, outputs[0].op if outputs else None
