"""Accuracy with its uncertainty, the comparison of two models, the confusion matrix, and curves of two classes."""

import math
from typing import NamedTuple

import numpy as np

from trainer import auc as areas
from trainer.data.examples import Array

Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution, for intervals of 95 %."""
GROUPS, RESAMPLES = 10_000, 2_000
"""Of a bootstrap: the most groups of examples, and how often they are drawn."""


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


def auc(labels: Array, scores: Array) -> float | None:
    """The area under the ROC curve; None if all examples are of one class. The arguments are those of `areas.auc`."""
    found = areas.auc(labels, scores)
    return None if math.isnan(found) else found


def _ranks(scores: Array) -> Array:
    """The ranks of scores from 1 on, float64 [n]; equal ones have the mean of theirs."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places])


class Difference(NamedTuple):
    """A difference and its confidence interval of 95 %."""

    value: float
    low: float
    high: float


def auc_difference(labels: Array, first: Array, second: Array) -> Difference | None:
    """How much larger the AUC of the first of two models is on the same examples.

    The interval is that of DeLong et al. (1988), by ranks (Sun and Xu, "Fast Implementation of DeLong's Algorithm",
    2014). None if a class has fewer than two examples.

    Args:
        labels: int64 [n], 0 or 1.
        first: The scores of class 1 that the first model gives, [n].
        second: Those of the second.
    """
    positive = labels == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if min(ones, zeros) < 2:
        return None
    of_ones, of_zeros = np.zeros(ones), np.zeros(zeros)
    for scores, sign in ((first, 1), (second, -1)):
        ranks = _ranks(scores)
        # for each example of a class, the share of the other class that it is on the right side of
        of_ones += sign * (ranks[positive] - _ranks(scores[positive])) / zeros
        of_zeros += sign * (1 - (ranks[~positive] - _ranks(scores[~positive])) / ones)
    half = Z * math.sqrt(of_ones.var(ddof=1) / ones + of_zeros.var(ddof=1) / zeros)
    value = float(of_ones.mean())
    return Difference(value, value - half, value + half)


def mean_difference(first: Array, second: Array) -> Difference:
    """How much larger the mean of the first of two values of each example is, by a paired bootstrap (Efron, 1979).

    Of many examples, the means of random groups are drawn in place of single ones.

    Args:
        first: The values of the first model, float64 [n].
        second: Those of the second.
    """
    random = np.random.default_rng(0)
    differences = random.permutation(first - second)
    groups = np.array([each.mean() for each in np.array_split(differences, min(len(differences), GROUPS))])
    drawn = [groups[random.integers(len(groups), size=len(groups))].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Difference(float(differences.mean()), float(low), float(high))


def threshold_curves(labels: Array, scores: Array) -> tuple[Array, Array, Array]:
    """What thresholds from the largest score to the smallest find, each float64 [thresholds].

    Returns:
        The share of class 0 that is taken for class 1 (false positive rate), the share of class 1 that is found
        (recall), and the share of what is taken for class 1 that is right (precision).
    """
    order = np.argsort(-scores, kind="stable")
    is_last = np.append(np.diff(scores[order]) != 0, True)  # of equal scores
    found = np.cumsum(labels[order])[is_last]
    taken = np.arange(1, len(labels) + 1)[is_last]
    positive = max(1, int(labels.sum()))
    return (taken - found) / max(1, len(labels) - int(labels.sum())), found / positive, found / taken
