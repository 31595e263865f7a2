"""CSV and Parquet files: the types of their columns, and their rows in batches. It needs pyarrow, not TensorFlow.

A CSV file is read as text, and its values are converted by types that fit all rows of all files.
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from trainer.data.columns.vectors import FILES
from trainer.data.skipped import Skipped
from trainer.errors import ConfigurationError
from trainer.text import truncate

BATCH_ROWS = 1000
DELIMITERS = (",", ";", "\t", "|")
"""Those that are found without being named."""
INDEX = re.compile(r"(Unnamed: \d+|__index_level_\d+__)?")
"""The names that pandas gives to an index without a name."""
_CSV_TYPES = (pa.int64(), pa.float64(), pa.bool_(), pa.string())
"""The types of a column of a CSV file: the first one that all values have."""


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
            yield from _read_parquet(path, columns)
            return
        for batch in _read_texts(path, self.delimiters[path], columns, skipped):
            values = [_value(batch[name], self.types[name], self.decimal_point) for name in columns]
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
    headers = {path: _header(path, delimiter) for path in paths if path.suffix != ".parquet"}
    delimiters = {path: found for path, (found, _) in headers.items()}
    if not headers:
        schema = _parquet_schema(paths[0])
        types = {field.name: _plain_type(field.type) for field in schema}
        return TabularFiles(paths, types, {}, class_names=_class_names(schema))
    names = headers[min(headers, key=paths.index)][1]
    lacking = {path: [name for name in names if name not in others] for path, (_, others) in headers.items()}
    if wrong := [f"{path}: it has no column {', '.join(absent)}" for path, absent in lacking.items() if absent]:
        raise ConfigurationError(f"{'; '.join(wrong)}, as the first file has.")
    types = _csv_types(delimiters, names, ".")
    if set(delimiters.values()) != {","} and pa.string() in types.values():
        with_comma = _csv_types(delimiters, names, ",")
        if list(with_comma.values()).count(pa.string()) < list(types.values()).count(pa.string()):
            return TabularFiles(paths, with_comma, delimiters, ",")
    return TabularFiles(paths, types, delimiters)


def _header(path: Path, delimiter: str | None) -> tuple[str, list[str]]:
    """The delimiter of a CSV file, and the names of its columns."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            text = io.TextIOWrapper(file, "utf-8-sig", newline="")
            rows = {}
            for each in [delimiter] if delimiter else DELIMITERS:
                text.seek(0)
                rows[each] = next(csv.reader(text, delimiter=each), [])
    except UnicodeDecodeError:
        raise _not_utf8(path) from None
    except (csv.Error, OSError, EOFError, zlib.error) as error:
        raise _damaged(path, error) from None
    found = max(rows, key=lambda each: len(rows[each]))
    names = rows[found]
    if not names:
        raise ConfigurationError(f"{path}: the file is empty; a line with the names of the columns was expected.")
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice:
        raise ConfigurationError(f"{path}: {names.count(twice)} columns are named {twice}; give each its own name.")
    return found, names


def _csv_types(delimiters: Mapping[Path, str], names: Sequence[str], decimal_point: str) -> dict[str, pa.DataType]:
    """The types of the columns, from a pass over all files."""
    found = {name: list(_CSV_TYPES) for name in names}
    for path, delimiter in delimiters.items():
        for batch in _read_texts(path, delimiter, [*found], Skipped(0, is_quiet=True)):
            for name, types in found.items():
                types[:] = [each for each in types if _fits(batch[name], each, decimal_point)]
    return {name: types[0] for name, types in found.items()}


def _fits(texts: Any, kind: pa.DataType, decimal_point: str) -> bool:
    try:
        _value(texts, kind, decimal_point)
    except pa.ArrowInvalid:
        return False
    return True


def _value(texts: Any, kind: pa.DataType, decimal_point: str) -> Any:
    """A column of a CSV file as values of this type."""
    texts = pc.utf8_trim_whitespace(texts)
    if pa.types.is_floating(kind) and decimal_point != ".":
        texts = pc.replace_substring(texts, decimal_point, ".")
    return texts.cast(kind)


def _read_texts(path: Path, delimiter: str, columns: Sequence[str], skipped: Skipped) -> Iterator[pa.RecordBatch]:
    def skip(row: Any) -> str:
        skipped.add(path.name, f"{row.actual_columns} columns, but the header has {row.expected_columns}: {row.text}")
        return "skip"

    parse = pyarrow.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=skip)
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()), include_columns=columns, strings_can_be_null=True
    )
    try:
        with pyarrow.csv.open_csv(path, parse_options=parse, convert_options=convert) as reader:
            for batch in reader:
                for start in range(0, len(batch), BATCH_ROWS):
                    yield batch.slice(start, BATCH_ROWS)
    except UnicodeDecodeError:
        raise _not_utf8(path) from None
    except (pa.ArrowException, OSError) as error:
        raise _not_utf8(path) if "UTF8" in str(error) else _damaged(path, error) from None


def _read_parquet(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if absent := [name for name in columns if name not in file.schema_arrow.names]:
                raise ConfigurationError(f"{path}: it has no column {', '.join(absent)}, as the first file has.")
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                yield pa.record_batch([_plain(batch[name]) for name in columns], names=list(columns))
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _parquet_schema(path: Path) -> pa.Schema:
    try:
        return pyarrow.parquet.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _class_names(schema: pa.Schema) -> dict[str, Sequence[str]]:
    """The names of labels that Hugging Face's `datasets` writes into the metadata of a Parquet file."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: [*map(str, each["names"])] for name, each in features.items() if "names" in each}
    except (KeyError, TypeError, ValueError):
        return {}


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type in which a column is read: that of the bytes of an image of Hugging Face, float64 for decimals."""
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        return kind.field("bytes").type
    if pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    return kind


def _plain(column: Any) -> Any:
    if pa.types.is_struct(column.type):
        return pc.struct_field(column, "bytes")
    kind = _plain_type(column.type)
    return column if kind == column.type else column.cast(kind, safe=False)


def _not_utf8(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path}: the text is not UTF-8; convert it, such as by iconv -f latin1 -t utf-8 {path.name} > utf8.csv."
    )


def _damaged(path: Path, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"{path}: the file cannot be read ({truncate(' '.join(str(error).split()), 200)}).")
