"""The initial values of rows, which their ids and a seed determine, as in `trainer/kernels/dynamic_table.h`."""

from typing import Any

import keras
import numpy as np
import numpy.typing as npt

INITIALIZERS = "RandomUniform, RandomNormal, TruncatedNormal, Zeros, Ones or Constant"

Array = npt.NDArray[Any]


class InitialRows:
    """Draws them."""

    def __init__(self, initializer: Any, dim: int) -> None:
        """Take the distribution and the seed of a Keras initializer.

        Raises:
            ValueError: its distribution is not known.
        """
        kinds = keras.initializers
        kind = type(initializer)
        if kind is kinds.RandomUniform:
            self.kind, self.first, self.second = "uniform", initializer.minval, initializer.maxval
        elif kind in (kinds.RandomNormal, kinds.TruncatedNormal):
            self.kind = "normal" if kind is kinds.RandomNormal else "truncated"
            self.first, self.second = initializer.mean, initializer.stddev
        elif kind in (kinds.Zeros, kinds.Ones, kinds.Constant):
            value = {kinds.Zeros: 0.0, kinds.Ones: 1.0}.get(kind)
            self.kind, self.first, self.second = "constant", initializer.value if value is None else value, 0.0
        else:
            raise ValueError(f"embeddings_initializer={initializer!r}, but {INITIALIZERS} was expected.")
        seed = getattr(initializer, "seed", 0)
        self.seed = seed if isinstance(seed, int) else 0
        self._dim = dim

    def of(self, ids: Array) -> Array:
        """The initial rows of ids, int64 [n]: float32 [n, dim]."""
        keys = _mix(np.uint64(self.seed) ^ _mix(ids.astype(np.uint64)))[:, None]
        places = np.arange(self._dim, dtype=np.uint64)
        shape = (len(ids), self._dim)
        if self.kind == "constant":
            return np.full(shape, self.first, np.float32)
        first, second = np.float32(self.first), np.float32(self.second)
        if self.kind == "uniform":
            uniform = _uniform(keys, places)
            found: Array = np.float64(first) + np.float64(second - first) * uniform
            return found.astype(np.float32)
        normal, places = np.full(shape, np.inf), 2 * places
        while (wanted := np.isinf(normal) | ((self.kind == "truncated") & (np.abs(normal) > 2))).any():
            radius = np.sqrt(-2 * np.log(_uniform(keys, places)))
            drawn = radius * np.cos(2 * np.pi * _uniform(keys, places + np.uint64(1)))
            normal = np.where(wanted, drawn, normal)
            places = places + np.uint64(2 * self._dim)
        scaled: Array = np.float64(first) + np.float64(second) * normal
        return scaled.astype(np.float32)


def _mix(numbers: Array) -> Array:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014), of uint64."""
    with np.errstate(over="ignore"):
        numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: Array = numbers ^ (numbers >> np.uint64(31))
        return found


def _uniform(keys: Array, places: Array) -> Array:
    """Numbers in (0, 1) by their places in the sequences of keys."""
    with np.errstate(over="ignore"):
        found: Array = ((_mix(keys + places) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        return found
