"""Parquet files: their columns and rows."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from trainer.data.tabular.damage import damaged
from trainer.errors import ConfigurationError

BATCH_ROWS = 1000


def read_parquet(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """These columns of a file, in batches."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if absent := [name for name in columns if name not in file.schema_arrow.names]:
                raise ConfigurationError(f"{path}: it has no column {', '.join(absent)}, as the first file has.")
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                yield pa.record_batch([_plain(batch[name]) for name in columns], names=list(columns))
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from None


def parquet_schema(path: Path) -> pa.Schema:
    """The columns of a file."""
    try:
        return pyarrow.parquet.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, error) from None


def class_names(schema: pa.Schema) -> dict[str, Sequence[str]]:
    """The names of labels that Hugging Face's `datasets` writes into the metadata of a Parquet file."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: [*map(str, each["names"])] for name, each in features.items() if "names" in each}
    except (KeyError, TypeError, ValueError):
        return {}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type in which a column is read: that of the bytes of an image of Hugging Face, float64 for decimals."""
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return kind.field("bytes").type
    if pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    return kind


def _plain(column: Any) -> Any:
    if pa.types.is_struct(column.type):
        return pc.struct_field(column, "bytes")
    kind = plain_type(column.type)
    return column if kind == column.type else column.cast(kind, safe=False)
