"""The files of a data set with columns: one file, those of a folder, or those at a URI."""

import functools
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from trainer.data.columns import held_out
from trainer.data.columns.names import SHOWN, are_records, find, has_columns, with_columns
from trainer.data.skipped import Skipped
from trainer.data.tabular import TabularFiles, open_files
from trainer.data.tabular.parquet import VALUE_BYTES, RowGroup, row_groups, writing
from trainer.errors import ConfigurationError
from trainer.storage.object_store import ObjectStore, is_uri

logger = logging.getLogger(__name__)

PACKED = {".gz": 5, ".zip": 5}
"""How many times as large as its file a compressed text is, about."""
PROGRESS_SECONDS = 5.0
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The value of a column, in the name of a folder, that is missing."""
GROUP_ROWS = 1 << 16
"""Those of a row group of Parquet files that are written here."""


@dataclass(frozen=True)
class Folder:
    """Files with the same columns, and the columns that the names of their folders have, as in `year=2024/`."""

    origin: str
    """What errors call them."""
    files: TabularFiles
    partitions: Mapping[Path, Mapping[str, int | str | None]]
    """By file, the values of the columns that the names of its folders have."""

    @functools.cached_property
    def types(self) -> Mapping[str, pa.DataType]:
        """The types of the columns by name."""
        return {**self.files.types, **self._types_of_folders}

    @functools.cached_property
    def _types_of_folders(self) -> Mapping[str, pa.DataType]:
        names = {name for each in self.partitions.values() for name, value in each.items() if isinstance(value, str)}
        first = self.partitions[self.files.paths[0]]
        return {name: pa.string() if name in names else pa.int64() for name in first}

    @property
    def is_parquet(self) -> bool:
        """Whether all files are of Parquet."""
        return all(path in self.files.parquet for path in self.files.paths)

    @property
    def size(self) -> int:
        """The size of all columns in memory, in bytes, about."""
        if self.is_parquet:
            least = VALUE_BYTES * len(self.types) * sum(group.rows for group in self.groups)
            return max(least, sum(group.size for group in self.groups))
        return sum(path.stat().st_size * PACKED.get(path.suffix.lower(), 1) for path in self.files.paths)

    @functools.cached_property
    def groups(self) -> Sequence[RowGroup]:
        """The row groups of all files, of Parquet."""
        return [group for path in self.files.paths for group in row_groups(path)]

    def read(self, path: Path, columns: Sequence[str], skipped: Skipped) -> Iterator[pa.RecordBatch]:
        """These columns of a file, in batches."""
        own = [name for name in columns if name in self.files.types] or [next(iter(self.files.types))]
        for batch in self.files.read(path, own, skipped):
            yield self._with_partitions(batch, path, columns)

    def read_group(self, group: RowGroup, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of a row group, in batches."""
        own = [name for name in columns if name in self.files.types] or [next(iter(self.files.types))]
        for batch in self.files.read_group(group, own):
            yield self._with_partitions(batch, group.path, columns)

    def as_texts(self, names: Sequence[str]) -> "Folder":
        """The same, with these columns as texts, which may be numbers by chance."""
        return replace(self, files=self.files.as_texts(names))

    def as_written(self, names: Sequence[str]) -> "Folder":
        """The same, with these columns as texts in the spellings that they have."""
        return replace(self, files=self.files.as_written(names))

    def _with_partitions(self, batch: pa.RecordBatch, path: Path, columns: Sequence[str]) -> pa.RecordBatch:
        values = self.partitions[path]
        if not values:
            return batch
        names = [name for name in columns if name in values or name in batch.schema.names]
        scalars = {name: pa.scalar(values[name], kind) for name, kind in self._types_of_folders.items()}
        arrays = [pa.repeat(scalars[name], len(batch)) if name in values else batch[name] for name in names]
        return pa.record_batch(arrays, names=names)

    def as_parquet(self, columns: Sequence[str], skipped: Skipped) -> "Folder":
        """The same rows as one Parquet file on this machine, which is written once."""
        place = cache() / f"{_digest(self.files.paths, columns, self.types)}.parquet"
        if not place.exists():
            logger.info(f"{self.origin}: {self.size / 2**30:.1f} GiB of text are written as Parquet, once, to {place}")
            kinds = self.types
            schema = pa.schema([(name, kinds[name]) for name in columns])
            progress = Progress(self.origin)
            with writing(place, schema, self.origin) as writer:
                for batch in _gathered(self, columns, skipped):
                    writer.write_table(batch.cast(schema), row_group_size=GROUP_ROWS)
                    progress.add(len(batch))
        return Folder(self.origin, open_files([place], None), {place: {}})


class Progress:
    """A line of the log every few seconds about rows that are read."""

    def __init__(self, origin: str) -> None:
        self._origin, self._rows, self._begun = origin, 0, time.monotonic()
        self._said = self._begun

    def add(self, rows: int) -> None:
        """Count rows."""
        self._rows += rows
        if (now := time.monotonic()) - self._said > PROGRESS_SECONDS:
            self._said = now
            logger.info(f"{self._origin}: {self._rows:,} rows in {now - self._begun:.0f} s")


def _gathered(folder: Folder, columns: Sequence[str], skipped: Skipped) -> Iterator[Any]:
    """The rows of all files as `pyarrow.Table`s of a row group each."""
    batches: list[Any] = []
    for path in folder.files.paths:
        for batch in folder.read(path, columns, skipped):
            batches.append(batch)
            if sum(map(len, batches)) >= GROUP_ROWS:
                yield pa.Table.from_batches(batches)
                batches = []
    if batches:
        yield pa.Table.from_batches(batches)


def cache() -> Path:
    """The folder of copies of data on this machine. It is made if absent; TMPDIR determines where."""
    place = Path(tempfile.gettempdir()) / f"trainer-data-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    return place


def _records_as_parquet(origin: str, paths: Sequence[Path]) -> tuple[Path, list[Path]]:
    """A folder of Parquet files with the records of TFRecord files, those of a held-out split by themselves."""
    from trainer.data.columns import tf_records

    folder = cache() / _digest(paths, (), {})
    folder.mkdir(exist_ok=True)
    tests = held_out.by_name(paths) or [False] * len(paths)
    splits = {
        folder / name: [path for path, is_test in zip(paths, tests, strict=True) if is_test == wanted]
        for name, wanted in (("train.parquet", False), ("test.parquet", True))
    }
    found = {place: own for place, own in splits.items() if own}
    for place, own in found.items():
        if not place.exists():
            logger.info(f"{origin}: {len(own)} TFRecord files are written as Parquet, once, to {place}")
            tf_records.write_parquet(own, place, GROUP_ROWS, origin)
    return folder, [*found]


def _digest(paths: Sequence[Path], columns: Sequence[str], types: Mapping[str, Any]) -> str:
    facts = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(
        repr((facts, [*columns], {name: str(each) for name, each in types.items()})).encode()
    ).hexdigest()[:32]


def open_folder(
    place: str,
    setting: str,
    kind: str | None = None,
    delimiter: str | None = None,
    readings: Mapping[str, str] | None = None,
) -> Folder:
    """Find the files at a path or a URI, and their columns. Those at a URI are copied to this machine.

    Args:
        place: The path or the URI.
        setting: The setting that has it, for errors.
        kind: That of the files, csv, parquet or tfrecord, if their names do not say it.
        delimiter: That of the files of text; None finds that of each.
        readings: See `open_files`.

    Raises:
        ConfigurationError: there are none, or one cannot be read.
        StoreError: an object store does not respond.
    """
    here = _download(place, setting) if is_uri(place) else Path(place)
    if not here.exists():
        raise ConfigurationError(f"{setting}={place}: there is no such file or folder.")
    paths = find(here, kind)
    if not paths:
        raise ConfigurationError(
            f"{setting}={place}: no file has a name that ends in {SHOWN}; name such a file, or a folder of them."
        )
    if all(are_records(path.name) for path in paths) or (
        kind == "tfrecord" and not any(has_columns(path.name) for path in paths)
    ):
        here, paths = _records_as_parquet(place, paths)
    files = open_files(paths, delimiter, readings)
    for note in files.notes:
        logger.info(note)
    partitions = {path: dict(_partitions(path.relative_to(here).parent if here.is_dir() else Path())) for path in paths}
    if len({tuple(each) for each in partitions.values()}) > 1:
        raise ConfigurationError(f"{setting}={place}: its folders are not all named alike, as in year=2024/month=1.")
    return Folder(place, files, _typed(partitions))


def _partitions(folder: Path) -> Iterator[tuple[str, str]]:
    for part in folder.parts:
        name, equals, value = part.partition("=")
        if equals:
            yield name, value


def _typed(partitions: Mapping[Path, Mapping[str, str]]) -> dict[Path, Mapping[str, int | str | None]]:
    """The values, None for a missing one, as whole numbers where all of a column are."""
    different = [(name, value) for each in partitions.values() for name, value in each.items() if value != NO_VALUE]
    texts = {name for name, value in different if not value.isdecimal()}

    def typed(name: str, value: str) -> int | str | None:
        return None if value == NO_VALUE else value if name in texts else int(value)

    return {path: {name: typed(name, value) for name, value in each.items()} for path, each in partitions.items()}


def _download(uri: str, setting: str) -> Path:
    """A copy of the files at a URI, which is that of one or of their folder."""
    if has_columns(uri):
        parent, _, name = uri.rpartition("/")
        store, names = ObjectStore(parent, setting), [name]
    else:
        store = ObjectStore(uri, setting)
        names = with_columns(store.names())
    place = cache() / hashlib.sha256(uri.encode()).hexdigest()[:32]
    if names:
        logger.info(f"{uri}: {len(names)} files are copied to {place}")
    for name in names:
        partial = place / f"{name}.{os.getpid()}"
        store.download(name, partial)
        partial.rename(place / name)
    for path in find(place):
        if str(path.relative_to(place)) not in names:
            path.unlink()
    return place / names[0] if has_columns(uri) else place
