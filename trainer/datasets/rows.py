"""The rows of a dataset as numbers: values as arrays, and digests, which are equal for equal content.

A digest does not depend on where, or in what order, the rows are stored.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

DIGEST_BYTES = 8
"""Among ten million rows, two have the same digest with a chance of three in a million."""


def digests(batch: pa.RecordBatch, columns: Sequence[str]) -> npt.NDArray[np.uint64]:
    """A number for each row, from the names, the types and the values of these columns."""
    head = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in columns:
        head.update(f"{name} {batch.schema.field(name).type}\n".encode())
    plain = [name for name in columns if _is_plain(batch.schema.field(name).type)]
    parts = [_bytes(batch[name]) for name in columns if name not in plain]
    if plain:
        found = np.concatenate([each for name in plain for each in _cells(batch[name])], axis=1)
        parts.append([row.tobytes() for row in found])
    digests = bytearray()
    for row in zip(*parts, strict=True):
        each = head.copy()
        for part in row:
            each.update(len(part).to_bytes(8, "little") + part)
        digests += each.digest()
    return np.frombuffer(bytes(digests), "<u8")


def _is_plain(kind: pa.DataType) -> bool:
    """Whether each value is one number. A table may have thousands of such columns."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _cells(column: Any) -> Iterator[npt.NDArray[np.uint8]]:
    """The bytes of each number, [n, bytes], and of whether it is there."""
    is_valid = np.ones(len(column), np.bool_)
    if column.null_count:
        is_valid, column = column.is_valid().to_numpy(zero_copy_only=False), column.fill_null(0)
    yield np.ascontiguousarray(column.to_numpy(zero_copy_only=False))[:, np.newaxis].view(np.uint8)
    yield is_valid[:, np.newaxis].view(np.uint8)


def _bytes(column: Any) -> Sequence[bytes]:
    """The bytes of each row of a column."""
    if is_numeric(column.type):
        return [row.tobytes() for row in numbers(column)]
    values = column.to_pylist()
    return [each if isinstance(each, bytes) else b"" if each is None else str(each).encode() for each in values]


def is_numeric(kind: pa.DataType) -> bool:
    """Whether each row of a column of this type is a number, a vector or a tensor of numbers."""
    if isinstance(kind, pa.FixedShapeTensorType) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def numbers(column: Any) -> npt.NDArray[Any]:
    """A column of numbers, vectors or tensors as an array [n, values]. Absent values are NaN."""
    if isinstance(column.type, pa.FixedShapeTensorType):
        column = column.storage
    rows = len(column)
    if pa.types.is_fixed_size_list(column.type):
        column = column.flatten()
    return np.asarray(column.to_numpy(zero_copy_only=False)).reshape(rows, -1)
