"""Columns of a table as one vector of numbers, x: one element for a number, and one for each text of a category.

The columns are by name, with their categories; None are numbers: {"age": None, "port": ["C", "Q", "S"]}.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from trainer.data.examples import Array

Columns: TypeAlias = Mapping[str, Sequence[str] | None]
_TEXTS = [f"{kind}{compression}" for kind in (".csv", ".tsv") for compression in ("", ".gz", ".zip")]
FILES = (".parquet", *_TEXTS)
"""What the names of files with tables end in."""


def features(columns: Columns) -> list[str]:
    """The names of the elements of x, such as age, port=C, port=Q and port=S."""
    return [
        f"{name}={each}" if categories else name for name, categories in columns.items() for each in categories or [""]
    ]


def column_names(columns: Columns) -> list[str]:
    """For each element of x, the name of its column."""
    return [name for name, categories in columns.items() for _ in categories or [""]]


def encode(batch: Any, columns: Columns) -> Array:
    """The vectors x of the rows of a `pyarrow.RecordBatch`: float32 [n, features].

    A number that is absent is NaN, and so is each element of a text that is absent or not one of the categories.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = []
    for name, categories in columns.items():
        if categories is None:
            with np.errstate(over="ignore"):  # the reader finds infinite values
                values = batch[name].cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
                parts.append(values.astype(np.float32)[:, np.newaxis])
        else:
            index = pc.index_in(batch[name].cast(pa.string()), pa.array(categories, pa.string()))
            known = index.fill_null(-1).to_numpy(zero_copy_only=False)[:, np.newaxis]
            hot = (known == np.arange(len(categories))).astype(np.float32)
            parts.append(np.where(known < 0, np.float32(np.nan), hot))
    return np.concatenate(parts, axis=1)
