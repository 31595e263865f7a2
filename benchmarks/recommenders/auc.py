"""The exact area under the ROC curve of examples that must have one."""

from typing import Any

import numpy as np

from trainer import auc as areas


def auc(labels: Any, scores: Any) -> float:
    """As `trainer.auc.auc`, of labels and scores of any shape.

    Raises:
        ValueError: the labels are all equal.
    """
    is_one = np.ravel(labels) > 0.5
    if is_one.all() or not is_one.any():
        raise ValueError(f"all {len(is_one)} labels are {int(is_one.any())}, which have no AUC; give examples of both.")
    return areas.auc(is_one, np.ravel(scores))
