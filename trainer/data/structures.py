"""Structures of arrays as users write them, in which a list may be one array or several."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.data.examples import Array, Signature
from trainer.errors import ConfigurationError

LABELS = ("label", "labels", "target", "targets", "y")
"""The names under which dictionaries often have the targets."""


def join_lists(structure: Any, origin: str) -> Any:
    """The structure with an array in place of each list of numbers or texts.

    Raises:
        ConfigurationError: the lists in a list have different lengths.
    """
    if isinstance(structure, dict):
        return {key: join_lists(each, origin) for key, each in structure.items()}
    if not isinstance(structure, (list, tuple)):
        return structure
    first: Any = structure
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if not isinstance(first, (int, float, str, bytes, np.generic)):
        return tuple(join_lists(each, origin) for each in structure)
    try:
        return np.asarray(structure)
    except ValueError:
        raise ConfigurationError(
            f"{origin}: lists of one length were expected; pad them, such as by keras.utils.pad_sequences, or give "
            "a tf.data.Dataset of arrays, whose batches are padded."
        ) from None


def stack(arrays: Sequence[Array]) -> Array:
    """An array [n, …] of n arrays, which are padded to the largest with zeros or empty texts if their shapes differ."""
    shapes = [array.shape for array in arrays]
    if len({*shapes}) == 1:
        return np.stack(arrays)
    padding = b"" if arrays[0].dtype == object else 0
    found = np.full([len(arrays), *np.max(shapes, axis=0)], padding, arrays[0].dtype)
    for place, array in zip(found, arrays, strict=True):
        place[tuple(map(slice, array.shape))] = array
    return found


def missing_targets(signature: Signature) -> str:
    """What to do where a model compares its outputs with targets, and the examples have none."""
    inputs, _, _ = signature.pack(signature.specs)
    if not isinstance(inputs, dict) or len(inputs) < 2:
        return "train_data(): elements (inputs, targets) were expected, not inputs alone"
    names = list(inputs)
    target = next((name for name in LABELS if name in names), names[-1])
    others = [name for name in names if name != target]
    several = ", ".join(f"{name!r}: each[{name!r}]" for name in others)
    given = f"each[{others[0]!r}]" if len(others) == 1 else f"{{{several}}}"
    return (
        f"train_data(): elements (inputs, targets) were expected, not dictionaries of {', '.join(names)}; in a "
        f"tf.data.Dataset, add .map(lambda each: ({given}, each[{target!r}]))"
    )
