"""The moments of values, which can be added up: those of parts give those of the whole."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Moments:
    """Number, mean, standard deviation, minimum and maximum of some values."""

    count: int
    mean: float
    std: float
    min: float
    max: float

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> "Moments":
        """The moments of all elements of an array that is not empty."""
        wide = values.astype(np.float64)
        return cls(values.size, float(wide.mean()), float(wide.std()), float(wide.min()), float(wide.max()))

    def __add__(self, other: "Moments") -> "Moments":
        count = self.count + other.count
        mean = (self.count * self.mean + other.count * other.mean) / count
        squares = sum(each.count * (each.std**2 + (each.mean - mean) ** 2) for each in (self, other))
        return Moments(count, mean, math.sqrt(squares / count), min(self.min, other.min), max(self.max, other.max))
