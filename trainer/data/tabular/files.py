"""CSV and Parquet files: the types of their columns, and their rows in batches. It needs pyarrow, not TensorFlow.

A CSV file is read as text, and its values are converted by types that fit all rows of all files.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from trainer.data.columns.names import FILES
from trainer.data.skipped import Skipped
from trainer.data.tabular.dialect import read_header
from trainer.data.tabular.parquet import class_names, parquet_schema, plain_type, read_parquet
from trainer.data.tabular.texts import read_texts
from trainer.data.tabular.values import as_values, csv_types
from trainer.errors import ConfigurationError

INDEX = re.compile(r"(Unnamed: \d+|__index_level_\d+__)?")
"""The names that pandas gives to an index without a name."""


@dataclass(frozen=True)
class TabularFiles:
    """Files with the same columns."""

    paths: Sequence[Path]
    types: Mapping[str, pa.DataType]
    """By the names of the columns: numbers, text (`pa.string()`), bytes, lists, tensors, or types that are not used."""
    delimiters: Mapping[Path, str]
    """Of the CSV files."""
    decimal_point: str = "."
    class_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By column, what Hugging Face calls the labels in it."""

    def as_texts(self, names: Collection[str]) -> "TabularFiles":
        """The files, with these columns as texts, which may be numbers by chance."""
        types = {name: pa.string() if name in names else kind for name, kind in self.types.items()}
        return replace(self, types=types)

    def read(self, path: Path, columns: Sequence[str], skipped: Skipped) -> Iterator[pa.RecordBatch]:
        """These columns of a file, in batches. CSV rows of another length than the header are skipped.

        Raises:
            ConfigurationError: the file cannot be read, or lacks a column.
        """
        if path not in self.delimiters:
            yield from read_parquet(path, columns)
            return
        for batch in read_texts(path, self.delimiters[path], columns, skipped):
            values = [as_values(batch[name], self.types[name], self.decimal_point) for name in columns]
            yield pa.record_batch(values, names=list(columns))


def is_tabular(path: Path) -> bool:
    """Whether this is a CSV or a Parquet file, by its name."""
    return path.name.endswith(FILES)


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a column of this type are texts."""
    return bool(pa.types.is_string(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether values of a column of this type are numbers, of which true is 1."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def open_files(paths: Sequence[Path], delimiter: str | None) -> TabularFiles:
    """Find the columns of these files, and their types.

    Args:
        paths: CSV or Parquet files.
        delimiter: That of the CSV files; None finds it in the header of each.

    Raises:
        ConfigurationError: a file cannot be read, or its columns are not those of the first one.
    """
    headers = {path: read_header(path, delimiter) for path in paths if path.suffix != ".parquet"}
    delimiters = {path: found for path, (found, _) in headers.items()}
    if not headers:
        schema = parquet_schema(paths[0])
        types = {field.name: plain_type(field.type) for field in schema}
        return TabularFiles(paths, types, {}, class_names=class_names(schema))
    names = headers[min(headers, key=paths.index)][1]
    lacking = {path: [name for name in names if name not in others] for path, (_, others) in headers.items()}
    if wrong := [f"{path}: it has no column {', '.join(absent)}" for path, absent in lacking.items() if absent]:
        raise ConfigurationError(f"{'; '.join(wrong)}, as the first file has.")
    types = csv_types(delimiters, names, ".")
    if set(delimiters.values()) != {","} and pa.string() in types.values():
        with_comma = csv_types(delimiters, names, ",")
        if list(with_comma.values()).count(pa.string()) < list(types.values()).count(pa.string()):
            return TabularFiles(paths, with_comma, delimiters, ",")
    return TabularFiles(paths, types, delimiters)
