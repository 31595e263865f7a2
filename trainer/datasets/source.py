"""What a source of data is: batches of rows, in the columns that `--dataset lance` trains from.

The column split (where the source has splits) is train or test. A table has its own columns. Otherwise the column y has
the targets, and each other column is an input.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.data.metadata import Table
from trainer.data.skipped import Skipped
from trainer.errors import ConfigurationError

INPUT, TARGET, SPLIT = "x", "y", "split"
TARGETS = (TARGET, "label")
"""The names of the targets in datasets that others have made."""
TRAIN, TEST = "train", "test"
BATCH_ROWS = 1000


@dataclass(frozen=True)
class Rows:
    """Some rows of a source."""

    batch: pa.RecordBatch
    name: Callable[[int], str]
    """How a person finds the row with this index: its file, and its place there."""


@dataclass(frozen=True)
class Source:
    """Raw data that can be read once, in batches."""

    kind: str
    schema: pa.Schema
    read: Callable[[Skipped], Iterator[Rows]]
    """Reads the rows; those that cannot be read are reported as skipped."""
    classes: Sequence[str] | None = None
    """The names of the classes, by label."""
    table: Table | None = None
    """What the table is, if its columns are imported as they are."""
    rows: int | None = None
    """How many there are, if this is known."""


def class_names(found: set[str], known: Sequence[str] | None, origin: str) -> Sequence[str]:
    """The names of the classes in the order of their labels: by number if all are numbers, otherwise by alphabet.

    Args:
        found: The names that the source has.
        known: The classes of the dataset that gets more rows.
        origin: The source, for errors.

    Raises:
        ConfigurationError: the source has a class that the dataset lacks.
    """
    if known is None:
        return sorted(found, key=int) if all(name.isdecimal() for name in found) else sorted(found)
    if unknown := sorted(found - set(known)):
        raise ConfigurationError(
            f"{origin}: the class {unknown[0]} is not in the dataset, whose classes are {', '.join(known)}; "
            "import all data again with --overwrite to add a class."
        )
    return known


def column(array: npt.NDArray[Any]) -> pa.Array:
    """A column of an array [n, …]: numbers, vectors or tensors, in the types in which the trainer computes."""
    array = np.ascontiguousarray(array.astype(_stored(array.dtype), copy=False))
    if array.ndim == 1:
        return pa.array(array)
    if array.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])
    return pa.FixedShapeTensorArray.from_numpy_ndarray(array)


def _stored(dtype: np.dtype[Any]) -> Any:
    if dtype == np.uint8:
        return np.uint8
    return np.float32 if dtype.kind == "f" else np.int32


def numbered(file: str, start: int) -> Callable[[int], str]:
    """The names of the rows of a file, from this row on."""
    return lambda row: f"{file}: row {start + row}"


def split_of(path: Path) -> str:
    """The split of a file: those named test… are held out, as in a folder that `--dataset npz` reads."""
    return TEST if path.name.startswith(TEST) else TRAIN
