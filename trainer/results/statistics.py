"""Accuracy with its uncertainty, the comparison of two models, and the confusion matrix."""

import math

import numpy as np

from trainer.data.examples import Array

Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution, for intervals of 95 %."""


def wilson(right: int, total: int) -> tuple[float, float]:
    """The 95 % confidence interval of a proportion (Wilson, 1927). It is in [0, 1] and right for few examples too."""
    share, weight = right / total, Z * Z / total
    centre = (share + weight / 2) / (1 + weight)
    half = Z * math.sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)


def mcnemar(only_first: int, only_second: int) -> float:
    """The p value of McNemar's exact test, two-sided: whether two models are equally often right.

    Args:
        only_first: Examples that only the first model has right.
        only_second: Examples that only the second has right.
    """
    total, fewer = only_first + only_second, min(only_first, only_second)
    count = term = 1  # of the binomial distribution with p = 1/2, in whole numbers
    for index in range(fewer):
        term = term * (total - index) // (index + 1)
        count += term
    return min(1.0, float(2 * count / 2**total))


def confusion(labels: Array, predicted: Array, classes: int) -> Array:
    """The number of examples by label (row) and prediction (column): int64 [classes, classes]."""
    return np.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)
