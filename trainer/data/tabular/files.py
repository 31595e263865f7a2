"""Files with the same columns, of text or of Parquet: the types of the columns, and the rows in batches."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from trainer.data.columns.names import PARQUET
from trainer.data.skipped import Skipped
from trainer.data.tabular.dialect import Dialect, read_dialect
from trainer.data.tabular.formats import TEXT, Format, find_formats
from trainer.data.tabular.kinds import common, is_text
from trainer.data.tabular.parquet import ParquetColumns, RowGroup, read_columns, read_rows
from trainer.data.tabular.profile import profile_files
from trainer.data.tabular.texts import EncodingError, LongRowError, read_texts
from trainer.errors import ConfigurationError
from trainer.text import truncate

BATCH_ROWS = 1000
INDEX = re.compile(r"(Unnamed: \d+|__index_level_\d+__)?")
"""The names that pandas gives to an index without a name."""
_PARQUET = b"PAR1"
"""How Parquet files begin."""
T = TypeVar("T")


@dataclass(frozen=True)
class TabularFiles:
    """Files with the same columns."""

    paths: Sequence[Path]
    types: Mapping[str, pa.DataType]
    """By the names of the columns: int64, float64, bool, string, timestamp("us"), null if a column has no value, lists
    of numbers or texts, tensors, bytes of images, or types that are not used (`kinds.remedy`)."""
    notes: Sequence[str]
    """Sentences about what was decided where the files can be read in two ways."""
    class_names: Mapping[str, Sequence[str]]
    """By column, what Hugging Face calls the labels in it."""
    dialects: Mapping[Path, Dialect]
    """Of the files of text."""
    formats: Mapping[str, Format]
    """Of their columns."""
    parquet: Mapping[Path, ParquetColumns]
    """The columns of the Parquet files."""

    def as_texts(self, names: Collection[str]) -> "TabularFiles":
        """The files, with these columns as texts, which may be numbers by chance."""
        changed = {name for name in names if name in self.types and not is_text(self.types[name])}
        types = {name: pa.string() if name in changed else kind for name, kind in self.types.items()}
        formats = {name: TEXT if name in changed else each for name, each in self.formats.items()}
        return replace(self, types=types, formats=formats)

    def as_written(self, names: Collection[str]) -> "TabularFiles":
        """The files, with these columns as texts in the spellings that they have."""
        written = {name: TEXT for name in names if name in self.formats}
        return replace(self.as_texts(names), formats={**self.formats, **written})

    @property
    def readings(self) -> Mapping[str, str]:
        """By column of the files of text, the name of the way in which its numbers or dates are read."""
        return {name: each.reading.name for name, each in self.formats.items() if each.reading}

    def read(self, path: Path, columns: Sequence[str], skipped: Skipped) -> Iterator[pa.RecordBatch]:
        """These columns of a file, in the order of its rows, in batches of at most 1,000. A missing value is null.

        Rows of a text that have another number of columns than the header are skipped.

        Raises:
            ConfigurationError: the file cannot be read, or has changed since the types were found.
        """
        batches = self._read_texts if path in self.dialects else self._read_parquet
        for batch in batches(path, columns, skipped):
            for start in range(0, len(batch), BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)

    def read_group(self, group: RowGroup, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of a row group of a Parquet file, in batches of some megabytes.

        Raises:
            ConfigurationError: the file cannot be read.
        """
        found = [self.parquet[group.path].columns[name] for name in columns]
        yield from read_rows(group.path, found, [self.types[name] for name in columns], columns, group.index)

    def _read_texts(self, path: Path, columns: Sequence[str], skipped: Skipped) -> Iterator[pa.RecordBatch]:
        try:
            for batch in read_texts(path, self.dialects[path], columns, skipped):
                values = [self.formats[name].convert(batch[name]) for name in columns]
                yield pa.record_batch(values, names=list(columns))
        except (pa.ArrowInvalid, LongRowError, EncodingError) as error:
            reason = truncate(" ".join(str(error).split()), 100) or type(error).__name__
            raise ConfigurationError(
                f"{path}: the file has changed since its columns were found ({reason}); start again."
            ) from None

    def _read_parquet(self, path: Path, columns: Sequence[str], skipped: Skipped) -> Iterator[pa.RecordBatch]:
        found = [self.parquet[path].columns[name] for name in columns]
        yield from read_rows(path, found, [self.types[name] for name in columns], columns)


def open_files(paths: Sequence[Path], delimiter: str | None, readings: Mapping[str, str] | None = None) -> TabularFiles:
    """Find the columns of these files, and their types, by a pass over all rows of the files of text.

    Args:
        paths: Files of text or of Parquet.
        delimiter: That of the files of text; None finds that of each.
        readings: The `readings` of earlier files, which decide where no value of these does.

    Raises:
        ConfigurationError: a file cannot be read, or its columns are not those of the first one.
    """
    is_parquet = {path: path.suffix in PARQUET or _begins(path, _PARQUET) for path in paths}
    found = _each(paths, lambda path: read_columns(path) if is_parquet[path] else read_dialect(path, delimiter))
    parquet = {path: each for path, each in found.items() if isinstance(each, ParquetColumns)}
    dialects = _named({path: each for path, each in found.items() if isinstance(each, Dialect)})
    has = {path: [*parquet[path].columns] if is_parquet[path] else dialects[path].names for path in paths}
    nameless = {name for each in dialects.values() for name in each.nameless}
    names = [name for name in has[paths[0]] if name not in nameless or all(name in each for each in has.values())]
    _check_columns(has, names)
    profiles = profile_files(dialects, names)
    has_semicolons = any(each.delimiter == ";" for each in dialects.values())
    formats, notes = find_formats(profiles, has_semicolons, readings or {})
    types, more_notes = _types(names, formats if dialects else {}, parquet)
    formats = {name: _as_kind(each, types[name]) for name, each in formats.items()}
    types = {name: kind for name, kind in types.items() if not (name in nameless and pa.types.is_null(kind))}
    class_names = {name: each for found in parquet.values() for name, each in found.class_names.items()}
    notes = [*_notes_on_files(dialects), *_notes_on_columns(has), *notes, *more_notes]
    return TabularFiles(paths, types, notes, class_names, dialects, formats, parquet)


def _each(paths: Sequence[Path], read: Callable[[Path], T]) -> dict[Path, T]:
    """What is read of each file; the errors of all in one."""
    found, problems = {}, []
    for path in paths:
        try:
            found[path] = read(path)
        except ConfigurationError as error:
            problems.append(str(error))
    if problems:
        raise ConfigurationError(f"{'; '.join(each.removesuffix('.') for each in problems)}.")
    return found


def _named(dialects: Mapping[Path, Dialect]) -> dict[Path, Dialect]:
    """The dialects; files without a header have the names of the first one that has one, and as many columns."""
    headed = next((each.names for each in dialects.values() if each.has_header), None)
    return {
        path: each
        if each.has_header or headed is None or len(headed) != len(each.names)
        else replace(each, names=headed, notes=each.notes[:-1])
        for path, each in dialects.items()
    }


def _check_columns(has: Mapping[Path, Sequence[str]], names: Sequence[str]) -> None:
    lacking = {path: [name for name in names if name not in others] for path, others in has.items()}
    if wrong := [f"{path}: it has no column {', '.join(absent)}" for path, absent in lacking.items() if absent]:
        raise ConfigurationError(
            f"{'; '.join(wrong)}, as the first file has; name one file, or a folder of files with the same columns."
        )


def _begins(path: Path, expected: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(expected)) == expected
    except OSError:
        return False  # what reads the file says it


def _notes_on_columns(has: Mapping[Path, Sequence[str]]) -> list[str]:
    first, *others = has
    more = {path.name: [name for name in has[path] if name and name not in has[first]] for path in others}
    return [
        f"{path}: {truncate(', '.join(names), 100)} left out, as the first file, {first.name}, has no such column"
        for path, names in more.items()
        if names
    ]


def _types(
    names: Sequence[str], formats: Mapping[str, Format], parquet: Mapping[Path, ParquetColumns]
) -> tuple[dict[str, pa.DataType], list[str]]:
    """The types that have the values of all files, and notes on columns that have several.

    Raises:
        ConfigurationError: there is none.
    """
    types, notes, problems = {}, [], []
    for name in names:
        kinds = {"the files of text": formats[name].kind} if name in formats else {}
        kinds |= {path.name: each.columns[name].kind for path, each in parquet.items()}
        kind = common([*kinds.values()])
        (first, expected), *others = kinds.items()
        place, other = next((each for each in others if each[1] != expected), (first, expected))
        if kind is None:
            problems.append(f"{name} is {other} in {place}, but {expected} in {first}")
        elif is_text(kind) and not pa.types.is_null(other) and other != expected:
            notes.append(f"{name}: it is {other} in {place}, but {expected} in {first}, so the column has texts")
        types[name] = pa.null() if kind is None else kind
    if problems:
        raise ConfigurationError(f"{'; '.join(problems)}: write each column in one type.")
    return types, notes


def _notes_on_files(dialects: Mapping[Path, Dialect]) -> list[str]:
    places: dict[str, list[Path]] = {}
    for path, each in dialects.items():
        for note in each.notes:
            places.setdefault(note, []).append(path)
    return [
        f"{found[0].name}{f' and {len(found) - 1} other files' if len(found) > 1 else ''}: {note}"
        for note, found in places.items()
    ]


def _as_kind(found: Format, kind: pa.DataType) -> Format:
    """The format that gives values of this type."""
    return found if found.kind == kind else TEXT if is_text(kind) else replace(found, kind=kind)
