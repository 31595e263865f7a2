"""A folder of `.npz` files, as `--dataset npz` trains from, as a source. Each file is read as a whole."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.data.npz_file import read_arrays
from trainer.data.skipped import Skipped
from trainer.datasets.source import BATCH_ROWS, SPLIT, TARGET, TEST, Rows, Source, column, numbered, split_of
from trainer.errors import ConfigurationError


def is_source(folder: Path) -> bool:
    """Whether the folder has `.npz` files."""
    return any(folder.glob("*.npz"))


def open_source(folder: Path) -> Source:
    """The arrays of all files: y, and each other array as an input.

    Raises:
        ConfigurationError: a file is damaged, or its arrays cannot be used.
    """
    paths = sorted(folder.glob("*.npz"), key=lambda path: (split_of(path) == TEST, path.name))
    has_splits = split_of(paths[-1]) == TEST
    schema = _batch(_read(paths[0]), slice(0, 1), None).schema
    if has_splits:
        schema = schema.append(pa.field(SPLIT, pa.string()))

    def read(skipped: Skipped) -> Iterator[Rows]:
        for path in paths:
            arrays = _read(path)
            for start in range(0, len(arrays[TARGET]), BATCH_ROWS):
                batch = _batch(arrays, slice(start, start + BATCH_ROWS), split_of(path) if has_splits else None)
                if batch.schema != schema:
                    raise ConfigurationError(
                        f"{path}: its arrays are {describe(batch.schema)}, but those of {paths[0].name} are "
                        f"{describe(schema)}; use one shape and type."
                    )
                yield Rows(batch, numbered(path.name, start))

    return Source(".npz files", schema, read)


def describe(schema: pa.Schema) -> str:
    """The columns of a schema but the split, with their types."""
    return ", ".join(f"{each.name} ({_describe(each.type)})" for each in schema if each.name != SPLIT)


def _describe(kind: pa.DataType) -> str:
    if isinstance(kind, pa.FixedShapeTensorType):
        return f"{kind.value_type} {list(kind.shape)}"
    if pa.types.is_fixed_size_list(kind):
        return f"{kind.value_type} [{kind.list_size}]"
    return str(kind)


def _read(path: Path) -> Mapping[str, npt.NDArray[Any]]:
    arrays = read_arrays(path)
    if TARGET not in arrays or len(arrays) < 2:
        raise ConfigurationError(f"{path}: an array {TARGET} and arrays of inputs were expected, not {list(arrays)}.")
    for name, array in arrays.items():
        if array.dtype.kind not in "buif" or not array.ndim or len(array) != len(arrays[TARGET]):
            raise ConfigurationError(
                f"{path}: {name}: numbers, one row for each target, were expected, not {array.dtype} "
                f"{list(array.shape)}."
            )
        if array.dtype.kind in "ui" and array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
            raise ConfigurationError(f"{path}: {name}: integers of 32 bits were expected.")
    return arrays


def _batch(arrays: Mapping[str, npt.NDArray[Any]], rows: slice, split: str | None) -> pa.RecordBatch:
    columns = {name: column(array[rows]) for name, array in arrays.items() if name != TARGET}
    targets = arrays[TARGET][rows]
    columns[TARGET] = column(targets if targets.dtype.kind == "f" else targets.astype(np.int32))
    if split:
        columns[SPLIT] = pa.array([split] * len(targets))
    return pa.record_batch(columns)
