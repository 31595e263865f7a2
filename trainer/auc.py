"""The area under the ROC curve, also by groups: how often an example of class 1 has a larger score than one of class 0.

Equal scores count half (Hanley and McNeil, 1982). NumPy alone.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def auc(labels: Array, scores: Array, weights: Array | None = None) -> float:
    """The area under the ROC curve; NaN if all examples are of one class, or a score is NaN.

    Args:
        labels: 0 or 1, or the share of class 1 in an example, [n].
        scores: Of class 1, [n].
        weights: Those of the examples, [n]; None for 1.
    """
    order = np.argsort(scores)
    sizes = np.ones(len(scores)) if weights is None else weights[order].astype(np.float64)
    return float(_areas(scores[order], labels[order], sizes, np.zeros(1, np.int64))[0][0]) if len(order) else math.nan


def group_auc(keys: Array, labels: Array, scores: Array, weights: Array | None = None) -> float:
    """The mean of the AUCs of groups, weighted by their numbers of examples (GAUC; Zhou et al., 2018).

    Groups with examples of one class have no AUC, and are left out. NaN if all are.

    Args:
        keys: That of the group of each example, int64 [n].
        labels: As for `auc`.
        scores: As for `auc`.
        weights: As for `auc`. A group then has the sum of those of its examples.
    """
    if not len(keys):
        return math.nan
    order = np.lexsort((scores, keys))
    found, sizes = keys[order], np.ones(len(keys)) if weights is None else weights[order].astype(np.float64)
    starts = np.flatnonzero(np.append(True, found[1:] != found[:-1]))
    areas, totals = _areas(scores[order], labels[order], sizes, starts)
    with np.errstate(invalid="ignore"):
        kept = ~np.isnan(areas) | np.isnan(np.add.reduceat(scores[order], starts))  # a NaN among scores stays visible
    return float(areas[kept] @ totals[kept] / totals[kept].sum()) if totals[kept].sum() else math.nan


def _areas(scores: Array, labels: Array, sizes: Array, starts: Array) -> tuple[Array, Array]:
    """The AUC of each group, and the sum of the weights of its examples, float64 [groups].

    Args:
        scores: [n], sorted within each group.
        labels: [n].
        sizes: The weights of the examples, float64 [n].
        starts: The first example of each group, [groups].
    """
    is_first = np.append(True, scores[1:] != scores[:-1])
    is_first[starts] = True
    equal = np.flatnonzero(is_first)  # where equal scores of a group begin
    positive = np.add.reduceat(sizes * labels, equal)
    negative = np.add.reduceat(sizes, equal) - positive
    first = np.searchsorted(equal, starts)
    before = np.cumsum(negative) - negative
    lengths = np.diff(np.append(first, len(equal)))
    below = before - np.repeat(before[first], lengths)
    won = np.add.reduceat(positive * (below + negative / 2), first)
    ones, zeros = np.add.reduceat(positive, first), np.add.reduceat(negative, first)
    wrong = np.isnan(np.add.reduceat(scores[equal], first))
    with np.errstate(invalid="ignore", divide="ignore"):
        areas = np.where((ones > 0) & (zeros > 0) & ~wrong, won / (ones * zeros), np.nan)
    return areas, ones + zeros
