"""Arrays as examples: checked, and converted to the types in which the trainer computes."""

from typing import Any

import numpy as np

from trainer.data.examples import Array, Examples
from trainer.errors import ConfigurationError

IMAGE_DIMENSIONS = 4
"""[n, height, width, channels]."""


def labelled(images: Array, labels: Array, origin: object) -> Examples:
    """Images and their class labels, from a file of this name.

    Raises:
        ConfigurationError: see `examples`.
    """
    return examples({"x": images}, labels, origin)


def examples(inputs: dict[str, Array], targets: Array, origin: object) -> Examples:
    """Examples from the arrays of a file.

    Inputs that are bytes are scaled to [0, 1]; floats stay as they are, and so do other integers, such as words by
    their numbers. Integers [n] are class labels; other targets are values to predict.

    Args:
        inputs: Arrays by name, [n, height, width, channels], [n, height, width] or [n, features].
        targets: Integers [n], or numbers [n] or [n, values].
        origin: The name of the file, for errors.

    Raises:
        ConfigurationError: an array has another type or shape, or is not finite.
    """
    found = {name: _input(array, f"{origin}: {name}") for name, array in inputs.items()}
    targets = _target(targets, origin)
    for name, array in found.items():
        if len(array) != len(targets):
            raise ConfigurationError(
                f"{origin}: {name} has {len(array)} examples but y has {len(targets)}; expected one target for each."
            )
    if not len(targets):
        raise ConfigurationError(f"{origin}: the arrays contain no examples; at least 1 is needed.")
    return Examples(found["x"] if set(found) == {"x"} else found, targets)


def hold_out(all_examples: Examples, number: int, is_shuffled: bool = True) -> tuple[Examples, Examples]:
    """The training split, and a test split of this many examples, always the same: random ones, or the last ones."""
    if not is_shuffled:
        return all_examples.take(slice(-number)), all_examples.take(slice(-number, None))
    order = np.random.default_rng(0).permutation(len(all_examples))
    return all_examples.take(order[number:]), all_examples.take(order[:number])


def _input(array: Array, origin: str) -> Array:
    if array.ndim < 2 or array.dtype.kind not in "uif":
        raise ConfigurationError(
            f"{origin}: arrays of numbers [n, height, width, channels], [n, height, width] or [n, features] were "
            f"expected, not {array.dtype} {list(array.shape)}."
        )
    if array.dtype.kind in "ui" and array.dtype != np.uint8:
        return _to_int32(array, origin)
    scaled = _to_float32(array, origin) / np.float32(255 if array.dtype == np.uint8 else 1)
    return np.asarray(scaled[..., np.newaxis] if scaled.ndim == IMAGE_DIMENSIONS - 1 else scaled)


def _target(array: Array, origin: object) -> Array:
    if array.ndim not in (1, 2) or array.dtype.kind not in "uif":
        raise ConfigurationError(
            f"{origin}: y: class labels, integers [n], or values, numbers [n] or [n, values], were expected, not "
            f"{array.dtype} {list(array.shape)}."
        )
    if array.dtype.kind == "f":
        return _to_float32(array, f"{origin}: y")
    found = _to_int32(array, f"{origin}: y")
    if len(found) and found.min() < 0 and array.ndim == 1:
        raise ConfigurationError(f"{origin}: y: labels from 0 were expected, not {found.min()}.")
    return found


def _to_float32(array: Array, origin: str) -> Array:
    with np.errstate(over="ignore"):  # the check finds values that overflow float32
        found = array.astype(np.float32)
    if not np.isfinite(found).all():
        raise ConfigurationError(f"{origin}: some values are not finite in float32; replace NaN and infinite values.")
    return found


def _to_int32(array: Any, origin: str) -> Array:
    limits = np.iinfo(np.int32)
    if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
        raise ConfigurationError(f"{origin}: integers of 32 bits were expected, not {array.min()} to {array.max()}.")
    return np.asarray(array.astype(np.int32))
