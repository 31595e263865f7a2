"""Parquet files: their columns in simple types, and their rows."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from trainer.data.tabular.errors import damaged
from trainer.data.tabular.kinds import is_text, may_exceed_int64, simplest
from trainer.errors import ConfigurationError

VALUE_BYTES = 12
"""What a value takes in memory at least, on average; files may have a dictionary of few values."""
_BATCH_BYTES = 8 << 20
_BUFFER_BYTES = 1 << 20
_MOST_ROWS = 10_000


@dataclass(frozen=True)
class ParquetColumn:
    """A column of a file, or a field of one of structs."""

    path: Sequence[str]
    """The name of the column, and those of the fields."""
    kind: pa.DataType
    """The type in which it is read."""


@dataclass(frozen=True)
class ParquetColumns:
    """The columns of a file."""

    columns: Mapping[str, ParquetColumn]
    """By their names; a field of a struct is `column.field`."""
    class_names: Mapping[str, Sequence[str]]
    """By column, what Hugging Face calls the labels in it."""


@dataclass(frozen=True)
class RowGroup:
    """A part of a file that is read by itself."""

    path: Path
    index: int
    rows: int
    size: int
    """Of all of its columns, uncompressed, in bytes."""


def read_columns(path: Path) -> ParquetColumns:
    """The columns of a file.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    with _open(path) as file:
        schema = file.schema_arrow
        columns: dict[str, ParquetColumn] = {}
        for each in schema:
            _add_columns(columns, [each.name], each.type)
        columns |= {
            name: ParquetColumn(each.path, _whole_kind(file, each))
            for name, each in columns.items()
            if may_exceed_int64(each.kind)
        }
    return ParquetColumns(columns, _class_names(schema))


def read_rows(
    path: Path,
    columns: Sequence[ParquetColumn],
    kinds: Sequence[pa.DataType],
    names: Sequence[str],
    group: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """These columns of a file, or of one of its row groups, in these types, by these names, in batches of megabytes.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    with _open(path) as file:
        for batch in _batches(file, columns, group):
            values = [_value(batch, each, kind) for each, kind in zip(columns, kinds, strict=True)]
            yield pa.record_batch(values, names=list(names))


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from None


@contextmanager
def writing(place: Path, schema: pa.Schema, room_for: str) -> Iterator[Any]:
    """Write a file that is there as a whole or not at all.

    Args:
        place: The file.
        schema: Its columns.
        room_for: What is written, for errors.

    Yields:
        The `pyarrow.parquet.ParquetWriter`.

    Raises:
        ConfigurationError: it cannot be written.
    """
    partial = place.with_suffix(f".{os.getpid()}")
    try:
        with pyarrow.parquet.ParquetWriter(partial, schema, compression="zstd") as writer:
            yield writer
        partial.rename(place)
    except OSError as error:
        raise ConfigurationError(
            f"{place} cannot be written ({error.strerror}); let TMPDIR name a folder with room for {room_for}, or give "
            "Parquet files."
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def row_groups(path: Path) -> Sequence[RowGroup]:
    """The row groups of a file.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    with _open(path) as file:
        found = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        return [RowGroup(path, index, each.num_rows, each.total_byte_size) for index, each in enumerate(found)]


def _batches(file: Any, columns: Sequence[ParquetColumn], group: int | None = None) -> Iterator[Any]:
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    row_bytes = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1)
    row_bytes = max(row_bytes, VALUE_BYTES * len(columns))
    rows = max(1, min(_MOST_ROWS, int(_BATCH_BYTES / row_bytes)))
    names = [*dict.fromkeys(".".join(each.path) for each in columns)]
    yield from file.iter_batches(rows, row_groups=None if group is None else [group], columns=names)


def _add_columns(columns: dict[str, ParquetColumn], path: Sequence[str], kind: pa.DataType) -> None:
    """Add a column; one of structs as its fields, or as the bytes of images of Hugging Face."""
    if not pa.types.is_struct(kind):
        columns.setdefault(".".join(path), ParquetColumn(path, simplest(kind)))
    elif kind.get_field_index("bytes") >= 0:
        columns[".".join(path)] = ParquetColumn([*path, "bytes"], simplest(kind.field("bytes").type))
    else:
        for each in kind:
            _add_columns(columns, [*path, each.name], each.type)


def _whole_kind(file: Any, column: ParquetColumn) -> pa.DataType:
    """The type of whole numbers that may have more than 64 bits: texts, if one has."""
    try:
        for batch in _batches(file, [column]):
            _field(batch, column.path).cast(pa.int64())
    except pa.ArrowInvalid:
        return pa.string()
    return pa.int64()


def _field(batch: pa.RecordBatch, path: Sequence[str]) -> Any:
    found = batch[path[0]]
    return pc.struct_field(found, list(path[1:])) if len(path) > 1 else found


def _value(batch: pa.RecordBatch, column: ParquetColumn, kind: pa.DataType) -> Any:
    """A column of a batch in this type, with null for NaN and for an empty text."""
    found = _field(batch, column.path)
    if isinstance(found.type, pa.ExtensionType) and not isinstance(kind, pa.ExtensionType):
        found = found.storage
    if found.type != kind:
        found = found.cast(kind, safe=False)
    if pa.types.is_floating(kind):
        absent = pc.is_nan(found)
    elif is_text(kind):
        absent = pc.equal(found, "")
    else:
        return found
    return pc.if_else(absent, None, found) if pc.any(absent).as_py() else found


def _class_names(schema: pa.Schema) -> dict[str, Sequence[str]]:
    """The names of labels that Hugging Face's `datasets` writes into the metadata of a Parquet file."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: [*map(str, each["names"])] for name, each in features.items() if "names" in each}
    except (KeyError, TypeError, ValueError):
        return {}
