"""Which rows of a table are held out."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.errors import ConfigurationError

Mask = npt.NDArray[np.bool_]

SPLIT = "split"
"""The column that names the split of each row, if there is one."""
NAMES = re.compile(r"(test|val(?:id(?:ation)?)?(?![a-z])|eval(?![a-z]))")
"""How the names of files, and the values of the column `split`, of held-out rows begin."""
LEAST, MOST = 200, 50_000
"""Fewer held-out rows say little, more say no more. A tenth of the rows is held out, up to a fifth of few."""


def by_column(values: Any) -> Mask:
    """Which rows a column `split` names as held out."""
    encoded = values.cast(pa.string()).fill_null("").dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    names = np.array([bool(NAMES.match(each.lower())) for each in encoded.dictionary.to_pylist()])
    return np.asarray(names[encoded.indices.to_numpy(zero_copy_only=False)])


def by_name(paths: Sequence[Path]) -> list[bool] | None:
    """Which files are held out by their names; None if none is, or all are."""
    found = [bool(NAMES.match(path.name.lower())) for path in paths]
    return found if any(found) and not all(found) else None


def check(test: int, train: int, origin: str, remedy: str = "") -> None:
    """Check that there are rows of both splits.

    Raises:
        ConfigurationError: there are not.
    """
    if not test or not train:
        raise ConfigurationError(
            f"{origin}: {test:,} rows are held out (test, val) and {train:,} are to train on; both are needed{remedy}."
        )


def number(rows: int) -> int:
    """How many of the rows are held out."""
    return max(1, min(max(rows // 10, LEAST), rows // 5, MOST))


def choose(targets: npt.NDArray[Any], is_class: bool) -> Mask:
    """Which rows are held out, by their targets: of each class the same share. The choice is deterministic.

    Of a class of few rows it is one, if it has others, and all classes together take at most half of the held-out rows.
    """
    rows = len(targets)
    order = np.random.default_rng(0).permutation(rows)
    if is_class:  # sort by which share of the rows of its class comes before a row
        ranks = np.empty(rows)
        classes = np.unique(targets)
        for each in classes:
            own = order[targets[order] == each]
            ranks[own] = (np.arange(len(own)) + 0.5) / len(own)
            if len(own) > 1 and 2 * len(classes) <= number(rows):
                ranks[own[0]] = 0.0
        order = order[np.argsort(ranks[order], kind="stable")]
    found = np.zeros(rows, np.bool_)
    found[order[: number(rows)]] = True
    return found
