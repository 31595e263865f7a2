"""CSV and Parquet files as a source. They are read in batches.

The columns of single numbers become one vector, the input x, and the names of its elements are kept. Vectors, tensors
and encoded images (of Parquet files) are inputs by their own names.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from trainer.data.skipped import Skipped
from trainer.datasets.source import (
    BATCH_ROWS,
    INPUT,
    SPLIT,
    TARGET,
    TARGETS,
    TEST,
    Choices,
    Rows,
    Source,
    class_names,
    column,
    numbered,
    split_of,
)
from trainer.errors import ConfigurationError
from trainer.text import truncate

_SUFFIXES = (".csv", ".csv.gz", ".parquet")


def is_file(path: Path) -> bool:
    """Whether this is a CSV or a Parquet file, by its name."""
    return path.name.endswith(_SUFFIXES)


def is_source(folder: Path) -> bool:
    """Whether the folder has CSV or Parquet files."""
    return any(is_file(path) for path in folder.iterdir())


def open_source(place: Path, choices: Choices) -> Source:
    """The rows of a file, or of all files of a folder.

    Raises:
        ConfigurationError: a file cannot be read, or its columns cannot be used.
    """
    paths = [place] if place.is_file() else sorted(path for path in place.iterdir() if is_file(path))
    paths.sort(key=lambda path: split_of(path) == TEST)
    return _Tables(paths, choices).source()


class _Tables:
    """Files with the same columns."""

    def __init__(self, paths: Sequence[Path], choices: Choices) -> None:
        self._paths = paths
        found = _schema(paths[0])
        self._target = _target(found, choices, paths[0])
        self._has_split_column = SPLIT in found.names and self._target != SPLIT
        self._has_test_files = not self._has_split_column and len(paths) > 1 and split_of(paths[-1]) == TEST
        inputs = list(choices.inputs) or [name for name in found.names if name not in (self._target, SPLIT)]
        for name in inputs:
            _check_input(found, name, paths[0])
        self._features = [name for name in inputs if _is_number(found.field(name).type)]
        self._others = [name for name in inputs if name not in self._features]
        if not inputs or (self._features and INPUT in self._others):
            raise ConfigurationError(
                f"{paths[0]}: columns of inputs, of which {INPUT} is not one beside columns of numbers, were expected, "
                f"not {', '.join(found.names)}."
            )
        self._types = {name: found.field(name).type for name in found.names}
        self._types |= dict.fromkeys(self._features, pa.float64())  # the first rows may be integers by chance
        self._classes = self._find_classes(choices) if _is_text(self._types[self._target]) else None

    def source(self) -> Source:
        """The files as a source.

        Raises:
            ConfigurationError: the first rows cannot be read.
        """
        first = next(self._read(Skipped(0, is_quiet=True)), None)
        if first is None:
            raise ConfigurationError(f"{self._paths[0]}: it has no rows.")
        kind = "Parquet files" if self._paths[0].suffix == ".parquet" else "CSV files"
        return Source(kind, first.batch.schema, self._read, self._classes, self._features or None)

    def _read(self, skipped: Skipped) -> Iterator[Rows]:
        for path in self._paths:
            start = 0
            for batch in _batches(path, [*self._columns()], self._types, skipped):
                yield Rows(self._convert(batch, path), numbered(path.name, start))
                start += len(batch)

    def _columns(self) -> Iterator[str]:
        yield from (*self._features, *self._others, self._target)
        if self._has_split_column:
            yield SPLIT

    def _convert(self, batch: pa.RecordBatch, path: Path) -> pa.RecordBatch:
        """The columns of the dataset. A number that is absent becomes NaN, which is found later."""
        columns: dict[str, Any] = {}
        if self._features:
            numbers = [_floats(batch[name]) for name in self._features]
            columns[INPUT] = column(np.stack(numbers, axis=1))
        for name in self._others:
            columns[INPUT if len(self._others) == 1 and not self._features else name] = _stored(
                batch[name], f"{path}: {name}"
            )
        columns[TARGET] = self._targets(batch[self._target], path)
        if self._has_split_column:
            columns[SPLIT] = batch[SPLIT].cast(pa.string())
        elif self._has_test_files:
            columns[SPLIT] = pa.array([split_of(path)] * len(batch))
        return pa.record_batch(columns)

    def _targets(self, found: Any, path: Path) -> Any:
        if self._classes is not None:
            labels = pc.index_in(_text(found), pa.array(self._classes))
            return labels.cast(pa.int32())
        if pa.types.is_floating(found.type):
            return column(_floats(found))
        if pa.types.is_integer(found.type) or pa.types.is_boolean(found.type):
            try:
                return found.cast(pa.int32())
            except pa.ArrowInvalid as error:
                raise ConfigurationError(f"{path}: {self._target}: integers of 32 bits expected ({error}).") from None
        return _stored(found, f"{path}: {self._target}")

    def _find_classes(self, choices: Choices) -> Sequence[str]:
        """The names in the column of the targets, from a pass over all files."""
        names: set[str] = set()
        for path in self._paths:
            for batch in _batches(path, [self._target], self._types, Skipped(0, is_quiet=True)):
                names |= {each for each in pc.unique(_text(batch[0])).to_pylist() if each}
        return class_names(names, choices.known_classes, str(self._paths[0]))


def _schema(path: Path) -> pa.Schema:
    try:
        if path.suffix == ".parquet":
            return pyarrow.parquet.read_schema(path)
        with pyarrow.csv.open_csv(path, parse_options=_parse(path, Skipped(0, is_quiet=True))) as reader:
            return reader.schema
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _batches(
    path: Path, columns: Sequence[str], types: dict[str, pa.DataType], skipped: Skipped
) -> Iterator[pa.RecordBatch]:
    try:
        if path.suffix == ".parquet":
            with pyarrow.parquet.ParquetFile(path) as file:
                if absent := [name for name in columns if name not in file.schema_arrow.names]:
                    raise ConfigurationError(f"{path}: it has no column {absent[0]}, as the first file has.")
                yield from file.iter_batches(BATCH_ROWS, columns=columns)
            return
        options = pyarrow.csv.ConvertOptions(
            column_types={name: types[name] for name in columns}, include_columns=columns, strings_can_be_null=True
        )
        with pyarrow.csv.open_csv(path, parse_options=_parse(path, skipped), convert_options=options) as reader:
            for batch in reader:
                for start in range(0, len(batch), BATCH_ROWS):
                    yield batch.slice(start, BATCH_ROWS)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None


def _parse(path: Path, skipped: Skipped) -> Any:
    def skip(row: Any) -> str:
        skipped.add(path.name, f"{row.actual_columns} columns, but the header has {row.expected_columns}: {row.text}")
        return "skip"

    return pyarrow.csv.ParseOptions(invalid_row_handler=skip)


def _damaged(path: Path, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"{path}: the file cannot be read ({truncate(' '.join(str(error).split()), 200)}).")


def _target(found: pa.Schema, choices: Choices, path: Path) -> str:
    names = (choices.target,) if choices.target else TARGETS
    for name in names:
        if name in found.names:
            return name
    raise ConfigurationError(
        f"{path}: a column {' or '.join(names)} of targets was expected, not {', '.join(found.names)}; name yours with "
        "--target."
    )


def _check_input(found: pa.Schema, name: str, path: Path) -> None:
    if name not in found.names:
        raise ConfigurationError(f"--inputs: {path} has no column {name}; it has {', '.join(found.names)}.")
    kind = found.field(name).type
    if _is_text(kind) or not (_is_number(kind) or _is_array(kind)):
        raise ConfigurationError(
            f"{path}: {name}: numbers, vectors, tensors or images were expected, not {kind}; choose columns with "
            "--inputs."
        )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))


def _is_array(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.FixedShapeTensorType):
        return True
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or (is_list and _is_number(kind.value_type)))


def _text(found: Any) -> Any:
    return found.cast(pa.string())


def _floats(found: Any) -> Any:
    with np.errstate(over="ignore"):  # infinite values are found later
        return found.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype(np.float32)


def _stored(found: Any, origin: str) -> Any:
    """A column of vectors, tensors or images in the type in which the dataset has it."""
    if isinstance(found.type, pa.FixedShapeTensorType):
        return column(found.to_numpy_ndarray())
    if pa.types.is_binary(found.type) or pa.types.is_large_binary(found.type):
        return found.cast(pa.binary())
    if found.null_count:
        raise ConfigurationError(f"{origin}: {found.null_count} rows have no value; remove them.")
    values = found.flatten()
    if not len(found) or len(values) % len(found) or len(pc.unique(pc.list_value_length(found))) != 1:
        raise ConfigurationError(f"{origin}: lists of one length were expected.")
    return column(values.to_numpy(zero_copy_only=False).reshape(len(found), -1))
