"""The exact area under the ROC curve."""

from typing import Any

import numpy as np


def auc(labels: Any, scores: Any) -> float:
    """The share of the pairs of a 1 and a 0 in which the 1 has the higher score; an equal score counts half.

    Raises:
        ValueError: the labels are all equal.
    """
    labels, scores = np.ravel(labels) > 0.5, np.ravel(scores)
    ones = int(labels.sum())
    zeros = len(labels) - ones
    if not ones or not zeros:
        raise ValueError(f"all {len(labels)} labels are {int(ones > 0)}, which have no AUC; give examples of both.")
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return float((ranks[places][labels].sum() - ones * (ones + 1) / 2) / (ones * zeros))
