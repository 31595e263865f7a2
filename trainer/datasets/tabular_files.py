"""CSV and Parquet files as a source. They are read in batches.

The columns of single numbers, and those of text as categories, become one vector, the input x. Vectors, tensors and
encoded images (of Parquet files) are inputs by their own names.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainer.data.columns.vectors import Columns, encode
from trainer.data.skipped import Skipped
from trainer.data.tabular import INDEX, TabularFiles, find_files, is_number, is_tabular, is_text, open_files
from trainer.datasets.source import (
    INPUT,
    SPLIT,
    TARGET,
    TARGETS,
    TEST,
    TRAIN,
    Choices,
    Rows,
    Source,
    class_names,
    column,
    numbered,
)
from trainer.errors import ConfigurationError
from trainer.text import enumerate_last, truncate

logger = logging.getLogger(__name__)

_HELD_OUT = re.compile(r"(test|val(?:id(?:ation)?)?(?![a-z]))")
"""How the names of files of the held-out split begin."""
MOST_CATEGORIES = 100
"""A column with more different texts is hardly one of categories: names, dates, numbers with a stray word."""


def is_source(folder: Path) -> bool:
    """Whether the folder has CSV or Parquet files."""
    return any(is_tabular(path) for path in folder.iterdir())


def open_source(place: Path, choices: Choices) -> Source:
    """The rows of a file, or of all files of a folder.

    Raises:
        ConfigurationError: a file cannot be read, or its columns cannot be used.
    """
    paths = find_files(place)
    held_out = {match[1] for path in paths if len(paths) > 1 and (match := _HELD_OUT.match(path.name))}
    if len(held_out) > 1:
        raise ConfigurationError(
            f"{place}: it has files named {' and '.join(sorted(held_out))}, but one held-out split was expected; move "
            "the others away."
        )
    paths.sort(key=lambda path: _split_of(path) == TEST)
    files = open_files(paths, choices.delimiter)
    for note in files.notes:
        logger.info(note)
    texts = [name for name, categories in (choices.known_columns or {}).items() if categories]
    return _TabularSource(files.as_texts(texts), choices).source()


class _TabularSource:
    """Files with the same columns."""

    def __init__(self, files: TabularFiles, choices: Choices) -> None:
        self._files, self._paths, types = files, files.paths, files.types
        first = self._paths[0]
        self._target = _target(types, choices, first)
        self._has_split_column = SPLIT in types and self._target != SPLIT
        self._has_test_files = (
            not self._has_split_column and len(self._paths) > 1 and _split_of(self._paths[-1]) == TEST
        )
        inputs = list(choices.inputs) or self._inputs()
        for name in inputs:
            _check_input(types, name, first)
        elements = [name for name in inputs if is_number(types[name]) or is_text(types[name])]
        self._others = [name for name in inputs if name not in elements]
        if not inputs or (elements and INPUT in self._others):
            raise ConfigurationError(
                f"{first}: columns of inputs, of which {INPUT} is not one beside columns of numbers, were expected, "
                f"not {', '.join(types)}."
            )
        self._columns: Columns = {
            name: self._categories(name, inputs, choices) if is_text(types[name]) else None for name in elements
        }
        has_names = is_text(types[self._target]) or pa.types.is_boolean(types[self._target])
        self._classes = self._find_classes(choices) if has_names and not choices.regression else None
        self._are_values = self._find_whether_values(choices)

    def source(self) -> Source:
        """The files as a source.

        Raises:
            ConfigurationError: the first rows cannot be read.
        """
        first = next(self._read(Skipped(0, is_quiet=True)), None)
        if first is None:
            raise ConfigurationError(f"{self._paths[0]}: it has no rows.")
        kind = "Parquet files" if self._paths[0].suffix == ".parquet" else "CSV files"
        names = None if self._are_values else self._classes or self._files.class_names.get(self._target)
        return Source(kind, first.batch.schema, self._read, names, self._columns or None)

    def _inputs(self) -> list[str]:
        """All columns that may be inputs, without the index that pandas writes."""
        found = [name for name in self._files.types if name not in (self._target, SPLIT)]
        index = [name for name in found if INDEX.fullmatch(name)]
        if index:
            logger.info(f"{self._paths[0]}: the column {index[0]!r}, an index that pandas writes, is left out")
        return [name for name in found if name not in index]

    def _read(self, skipped: Skipped) -> Iterator[Rows]:
        names = [*self._columns, *self._others, self._target, *([SPLIT] if self._has_split_column else [])]
        for path in self._paths:
            start = 0
            for batch in self._files.read(path, names, skipped):
                yield Rows(self._convert(batch, path), numbered(path.name, start))
                start += len(batch)

    def _convert(self, batch: pa.RecordBatch, path: Path) -> pa.RecordBatch:
        """The columns of the dataset. A number that is absent becomes NaN, which is found later."""
        columns: dict[str, Any] = {}
        if self._columns:
            columns[INPUT] = column(encode(batch, self._columns))
        for name in self._others:
            columns[INPUT if len(self._others) == 1 and not self._columns else name] = _stored(
                batch[name], f"{path}: {name}"
            )
        columns[TARGET] = self._targets(batch[self._target], path)
        if self._has_split_column:
            columns[SPLIT] = batch[SPLIT].cast(pa.string())
        elif self._has_test_files:
            columns[SPLIT] = pa.array([_split_of(path)] * len(batch))
        return pa.record_batch(columns)

    def _targets(self, found: Any, path: Path) -> Any:
        if self._classes is not None:
            labels = pc.index_in(found.cast(pa.string()), pa.array(self._classes))
            return labels.cast(pa.int32())
        if not is_number(found.type):
            return _stored(found, f"{path}: {self._target}")
        if self._are_values:
            return found.cast(pa.float64(), safe=False).cast(pa.float32(), safe=False)
        try:
            return found.cast(pa.int32())
        except pa.ArrowInvalid as error:
            raise ConfigurationError(f"{path}: {self._target}: integers of 32 bits expected ({error}).") from None

    def _categories(self, name: str, inputs: Sequence[str], choices: Choices) -> Sequence[str]:
        found = self._texts(name)
        known = (choices.known_columns or {}).get(name)
        if known and found - set(known):
            raise ConfigurationError(
                f"{self._paths[0]}: the text {min(found - set(known))} of {name} is not in the dataset, where it has "
                f"{truncate(', '.join(known), 200)}; import all data again with --overwrite to add a category."
            )
        if known:
            return known
        if len(found) > MOST_CATEGORIES:
            others = ",".join(each for each in inputs if each != name)
            raise ConfigurationError(
                f"{self._paths[0]}: {name} has {len(found)} different texts, such as {_strangest(found)!r}, but a "
                f"column of categories has at most {MOST_CATEGORIES}; correct it, or leave it out by --inputs {others}."
            )
        logger.info(f"{name}: {enumerate_last(sorted(found), 'category', 'categories')}")
        return sorted(found)

    def _find_whether_values(self, choices: Choices) -> bool:
        """Whether the targets are values to predict, and not class labels."""
        kind = self._files.types[self._target]
        if choices.regression and not is_number(kind):
            raise ConfigurationError(
                f"--regression: {self._target} of {self._paths[0]} is {kind}, but numbers were expected; see --target."
            )
        if choices.regression or pa.types.is_floating(kind):
            return True
        if not pa.types.is_integer(kind) or choices.known_classes or self._target in self._files.class_names:
            return False
        smallest = min(
            pc.min(batch[0]).as_py() or 0
            for path in self._paths
            for batch in self._files.read(path, [self._target], Skipped(0, is_quiet=True))
        )
        if smallest < 0:
            logger.info(f"{self._target}: whole numbers below 0 are values to predict")
        return smallest < 0

    def _find_classes(self, choices: Choices) -> Sequence[str]:
        return class_names(self._texts(self._target), choices.known_classes, str(self._paths[0]))

    def _texts(self, name: str) -> set[str]:
        """The different texts of a column, from a pass over all files."""
        found: set[str] = set()
        for path in self._paths:
            for batch in self._files.read(path, [name], Skipped(0, is_quiet=True)):
                found |= {each for each in pc.unique(batch[0].cast(pa.string())).to_pylist() if each}
        return found


def _split_of(path: Path) -> str:
    return TEST if _HELD_OUT.match(path.name) else TRAIN


def _target(types: Mapping[str, pa.DataType], choices: Choices, path: Path) -> str:
    names = (choices.target,) if choices.target else TARGETS
    for name in names:
        if name in types:
            return name
    raise ConfigurationError(
        f"{path}: a column {' or '.join(names)} of targets was expected, not {', '.join(types)}; name yours with "
        "--target."
    )


def _check_input(types: Mapping[str, pa.DataType], name: str, path: Path) -> None:
    if name not in types:
        raise ConfigurationError(f"--inputs: {path} has no column {name}; it has {', '.join(types)}.")
    kind = types[name]
    if not (is_number(kind) or is_text(kind) or _is_array(kind)):
        raise ConfigurationError(
            f"{path}: {name}: numbers, texts, vectors, tensors or images were expected, not {kind}; choose columns "
            "with --inputs."
        )


def _is_array(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.FixedShapeTensorType):
        return True
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or (is_list and is_number(kind.value_type)))


def _strangest(texts: set[str]) -> str:
    """The first text, if possible one that is not a number: in a column of numbers, that is the fault."""

    def is_number(text: str) -> bool:
        try:
            float(text)
        except ValueError:
            return False
        return True

    return min(texts, key=lambda each: (is_number(each), each))


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
