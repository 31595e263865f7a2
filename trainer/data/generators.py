"""Generators and `keras.utils.PyDataset`, as `keras.Model.fit` takes them, as `tf.data.Dataset`s."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optree

from trainer.data.examples import Array
from trainer.data.structures import join_lists
from trainer.errors import ConfigurationError
from trainer.tensorflow import tf
from trainer.tensorflow.private import eager_mode
from trainer.text.reasons import reason


def is_py_dataset(found: Any) -> bool:
    """Whether this is a `keras.utils.PyDataset`, without an import of Keras."""
    return any(kind.__name__ == "PyDataset" for kind in type(found).__mro__)


def dataset(make: Callable[[], Any], origin: str, file: str) -> Any:
    """The examples that a generator or a `PyDataset` gives, as a `tf.data.Dataset`.

    Its elements are batches, as for `fit`, if their inputs and targets have one length; otherwise they are examples.

    Args:
        make: Returns the generator, a new one for each pass, or the `PyDataset`.
        origin: Its name in errors.
        file: The model's file, for errors.

    Raises:
        ConfigurationError: it fails, or it gives something else than inputs and targets, or nothing.
    """
    with eager_mode():
        try:
            first = list(itertools.islice(_elements(make()), 2))
        except ConfigurationError:
            raise
        except Exception as error:
            raise ConfigurationError(f"{origin} failed: {reason(error, file)}.") from error
        if not first:
            raise ConfigurationError(f"{origin} gives no examples.")
        if not isinstance(first[0], tuple) or len(first[0]) not in (2, 3):
            kind = type(first[0]).__name__
            raise ConfigurationError(f"{origin}: elements (inputs, targets) were expected, not {kind}.")
        leaves = [_leaves(each, origin) for each in first]
        lengths = {array.shape[:1] for array in leaves[0]}
        are_batches = len(lengths) == 1 and lengths != {()}
        specs = tuple(_spec(arrays, are_batches) for arrays in zip(*leaves, strict=True))

        def generate() -> Iterator[tuple[Array, ...]]:
            elements = _elements(make())
            while True:
                with eager_mode():  # TensorFlow calls it in a thread of its own
                    element = next(elements, None)
                if element is None:
                    return
                yield tuple(_leaves(element, origin))

        found = tf.data.Dataset.from_generator(generate, output_signature=specs)
        structure = optree.tree_structure(_joined(first[0], origin))
        found = found.unbatch() if are_batches else found
        return found.map(lambda *arrays: optree.tree_unflatten(structure, arrays))


def _elements(found: Any) -> Iterator[Any]:
    """The elements of one pass."""
    if not is_py_dataset(found):
        yield from found
        return
    indices = itertools.count() if found.num_batches is None else range(found.num_batches)
    yield from (found[index] for index in indices)
    found.on_epoch_end()


def _joined(element: tuple[Any, ...], origin: str) -> Any:
    return tuple(join_lists(each, origin) for each in element)


def _leaves(element: tuple[Any, ...], origin: str) -> list[Array]:
    return [np.asarray(each) for each in optree.tree_leaves(_joined(element, origin))]


def _spec(arrays: tuple[Array, ...], are_batches: bool) -> Any:
    """The spec of the elements of which these are the first ones. Sizes that differ may vary."""
    sizes = [each[0] if len({*each}) == 1 else None for each in zip(*[array.shape for array in arrays], strict=True)]
    kind = tf.string if arrays[0].dtype.kind in "OSU" else arrays[0].dtype
    return tf.TensorSpec([None, *sizes[1:]] if are_batches else sizes, kind)
