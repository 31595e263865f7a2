"""Generators and `keras.utils.PyDataset`, as `keras.Model.fit` takes them, as `tf.data.Dataset`s."""

import itertools
import logging
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

logger = logging.getLogger(__name__)


def is_py_dataset(found: Any) -> bool:
    """Whether this is a `keras.utils.PyDataset`, without an import of Keras."""
    return any(kind.__name__ == "PyDataset" for kind in type(found).__mro__)


def dataset(make: Callable[[], Any], origin: str, file: str) -> Any:
    """What a generator or a `PyDataset` gives, as a `tf.data.Dataset` of the same elements.

    Args:
        make: Returns the generator, a new one for each pass, or the `PyDataset`.
        origin: Its name in errors.
        file: The model's file, for errors.

    Raises:
        ConfigurationError: it fails, or it gives nothing.
    """
    with eager_mode():
        try:
            given = make()
            first = list(itertools.islice(_elements(given), 2))
        except ConfigurationError:
            raise
        except Exception as error:
            raise ConfigurationError(f"{origin} failed: {reason(error, file)}.") from error
        if not first:
            raise ConfigurationError(f"{origin} gives no examples.")
        leaves = [_leaves(each, origin) for each in first]
        lengths = {array.shape[:1] for array in leaves[0]}
        may_be_batches = len(lengths) == 1 and lengths != {()}
        specs = tuple(_spec(arrays, may_be_batches) for arrays in zip(*leaves, strict=True))

        ends: set[int] = set()

        def generate() -> Iterator[tuple[Array, ...]]:
            elements = _elements(make())
            for count in itertools.count():
                with eager_mode():  # TensorFlow calls it in a thread of its own
                    element = next(elements, None)
                if element is None:
                    if count not in ends:
                        ends.add(count)
                        logger.info(f"{origin} has come to an end after {count:,} elements: it is read from its begin")
                    return
                yield tuple(_leaves(element, origin))

        found = tf.data.Dataset.from_generator(generate, output_signature=specs)
        structure: Any = optree.tree_structure(_joined(first[0], origin))
        if is_py_dataset(given) and given.num_batches is not None:
            found = found.apply(tf.data.experimental.assert_cardinality(given.num_batches))
        return found.map(lambda *arrays: optree.tree_unflatten(structure, arrays))


def _elements(found: Any) -> Iterator[Any]:
    """The elements of one pass."""
    if not is_py_dataset(found):
        yield from found
        return
    indices = itertools.count() if found.num_batches is None else range(found.num_batches)
    yield from (found[index] for index in indices)
    found.on_epoch_end()


def _joined(element: Any, origin: str) -> Any:
    """The element with arrays in place of lists; as for `fit`, a list of inputs and targets is a tuple of them."""
    several = isinstance(element, tuple) or (isinstance(element, list) and _has_arrays(element))
    return tuple(join_lists(each, origin) for each in element) if several else join_lists(element, origin)


def _has_arrays(element: list[Any]) -> bool:
    return any(np.ndim(each) or isinstance(each, dict) for each in element)


def _leaves(element: Any, origin: str) -> list[Array]:
    return [np.asarray(each) for each in optree.tree_leaves(_joined(element, origin))]


def _spec(arrays: tuple[Array, ...], may_be_batches: bool) -> Any:
    """The spec of the elements of which these are the first ones. Sizes that differ may vary."""
    sizes = [each[0] if len({*each}) == 1 else None for each in zip(*[array.shape for array in arrays], strict=True)]
    kind = tf.string if arrays[0].dtype.kind in "OSU" else arrays[0].dtype
    return tf.TensorSpec([None, *sizes[1:]] if may_be_batches else sizes, kind)
