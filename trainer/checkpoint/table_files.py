"""The tables of a checkpoint, in files that are read and written in slices.

A table of n rows has a base, `table-NUMBER-TOKEN.npy`, float32 [n, (1 + slots) x dim]: each row of the table, followed
by the same row of each optimizer slot. Checkpoints share it. The rows that have changed since are in files of each
checkpoint: `PATH.table-NUMBER.rows.npy`, int64 [k] in ascending order, and `PATH.table-NUMBER.values.npy`, float32
[k, (1 + slots) x dim]. `PATH.tables.json` names the tables, their slots and bases.

A row of a table that grows has two more fields: its id, and when it was last read. Its number is only its place in the
base; one without a row has the id `NO_ID`, and rows may have numbers beyond the end of the base.
"""

import glob
import json
import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from trainer.data.files import write_atomically
from trainer.dynamic.ids import NO_ID
from trainer.tensorflow import tf, tf1

Array = npt.NDArray[Any]

MERGED_SHARE = 0.25
"""Once more than this share of the rows has changed, a checkpoint gets a new base."""
ALL = slice(None)
SLICE_BYTES = 32 << 20
"""What is read or written at once."""


@dataclass(frozen=True)
class Changes:
    """The rows of a table that have changed since its base."""

    rows: Array
    """int64 [k], in ascending order."""
    values: Array
    """`Table.empty(k)`, with their values."""


@dataclass(frozen=True)
class Table:
    """A table, and its base."""

    name: str
    rows: int
    dim: int
    slots: tuple[str, ...]
    """The suffixes of the names of the optimizer's slots."""
    base: str = ""
    """The name of its file."""
    grows: bool = False
    """Whether its rows have ids."""
    in_seconds: bool = False
    """Whether the time when a row was used is in seconds, and not in steps."""

    @property
    def width(self) -> int:
        """Numbers of a row of the base."""
        return (1 + len(self.slots)) * self.dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the files' elements: numbers, or rows with their ids."""
        fields = [("id", "<i8"), ("used", "<i4"), ("values", "<f4", (self.width,))]
        return np.dtype(fields) if self.grows else np.dtype("<f4")

    def shape(self, rows: int) -> tuple[int, ...]:
        """That of an array of this many rows."""
        return (rows,) if self.grows else (rows, self.width)

    def empty(self, rows: int) -> Array:
        """An array of this many rows, zeros; those of a table that grows are none."""
        found = np.zeros(self.shape(rows), self.dtype)
        if self.grows:
            found["id"] = NO_ID
        return found

    def join(self, parts: Sequence[Array]) -> Array:
        """An array of rows from their values or, if the table grows, from ids, times and values."""
        if not self.grows:
            return parts[0]
        found = self.empty(len(parts[0]))
        for field, part in zip(("id", "used", "values"), parts, strict=True):
            found[field] = part
        return found

    def values(self, rows: Array) -> Array:
        """The values of an array of rows, float32 [n, width]."""
        found: Array = rows["values"] if self.grows else rows
        return found

    def slices(self, multiple: int = 1) -> Iterator[tuple[int, int]]:
        """The first row and the end of each slice; its rows are a multiple of this number, except for the last one."""
        size = max(1, SLICE_BYTES // (4 * self.width * multiple)) * multiple
        return ((start, min(start + size, self.rows)) for start in range(0, self.rows, size))


def write_base(folder: Path, number: int, table: Table, slices: Iterable[Array]) -> str:
    """Write the base of a table from its slices, in order, and return its name. It reaches the disk.

    Raises:
        OSError: it cannot be written.
    """
    name = f"table-{number}-{secrets.token_hex(4)}.npy"
    partial = folder / f".{name}"
    try:
        with partial.open("wb") as file:
            _begin(file, table.dtype, table.shape(table.rows))
            for each in slices:
                file.write(np.ascontiguousarray(each).data)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(folder / name)
    finally:
        partial.unlink(missing_ok=True)
    return name


def merge(folder: Path, number: int, table: Table, changes: Changes) -> Table:
    """Write another base, which has these changes, and return the table with it.

    Raises:
        OSError: it cannot be read or written.
    """
    stored = StoredTable(table, np.load(folder / table.base, mmap_mode="r"), changes)
    made = replace(table, rows=stored.rows)
    return replace(made, base=write_base(folder, number, made, (stored.between(*each) for each in made.slices())))


def _begin(file: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Write the header of NumPy's format. Its own function for whole files hides why a write failed."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def write(path: str, tables: Sequence[Table], changes: Sequence[Changes]) -> None:
    """Write the files of a checkpoint for its tables."""
    for number, each in enumerate(changes):
        for kind, array in (("rows", each.rows), ("values", each.values)):
            with Path(f"{path}.table-{number}.{kind}.npy").open("wb") as file:
                _begin(file, array.dtype, array.shape)
                file.write(np.ascontiguousarray(array).data)
    write_atomically(Path(f"{path}.tables.json"), json.dumps([asdict(each) for each in tables], indent=2).encode())


def read(path: str) -> Sequence[Table]:
    """The tables of a checkpoint.

    Raises:
        tf.errors.DataLossError: their list is damaged.
    """
    file = Path(f"{path}.tables.json")
    try:
        return TypeAdapter(list[Table]).validate_json(file.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise tf.errors.DataLossError(None, None, f"{file}: {error}") from error


def has_tables(path: str) -> bool:
    """Whether a checkpoint has tables."""
    return Path(f"{path}.tables.json").exists()


def files_of(path: str) -> list[Path]:
    """The files of a checkpoint for its tables, without bases."""
    stem = Path(path)
    return [*stem.parent.glob(f"{glob.escape(stem.name)}.table*")]


def _base_of(path: str, table: Table) -> Path:
    """The base of a table of a checkpoint, which is in the folder of the checkpoint or in the one above."""
    own = Path(path).with_name(table.base)
    return own if own.exists() else own.parent.parent / table.base


def remove_partial(folder: Path) -> None:
    """Remove bases that a process which was killed has not completed."""
    for file in folder.glob(".table-*.npy"):
        file.unlink(missing_ok=True)


def bases_of(path: str) -> list[Path]:
    """The bases of the tables of a checkpoint."""
    return [_base_of(path, table) for table in read(path)]


def remove_unused(folder: Path, kept: Collection[str] = ()) -> None:
    """Remove the bases in a folder that are not among `kept` and that no checkpoint in it, or just below it, has.

    If the list of a checkpoint cannot be read, it removes nothing.

    Raises:
        OSError: a file cannot be removed.
    """
    lists = [*folder.glob("*.tables.json"), *folder.glob("*/*.tables.json")]
    paths = [str(each).removesuffix(".tables.json") for each in lists]
    try:
        used = {table.base for path in paths if Path(f"{path}.index").exists() for table in read(path)}
    except tf.errors.DataLossError:
        return
    for file in folder.glob("table-*-*.npy"):
        if file.name not in used and file.name not in kept:
            file.unlink(missing_ok=True)


class StoredTable:
    """The rows of a table in a checkpoint, which are read from the disk when they are needed."""

    def __init__(self, table: Table, base: Array, changes: Changes) -> None:
        """The base and the changes may be in memory that is mapped from files."""
        self.table, self._base, self._changes = table, base, changes
        self.rows = max(len(base), int(changes.rows[-1]) + 1) if len(changes.rows) else len(base)
        """How many there are."""

    @classmethod
    def open(cls, path: str, number: int, table: Table) -> "StoredTable":
        """Open the files of a checkpoint.

        Raises:
            tf.errors.DataLossError: a file is absent or damaged.
        """
        base = _map(_base_of(path, table), table.shape(table.rows), table.dtype)
        files = [Path(f"{path}.table-{number}.{kind}.npy") for kind in ("rows", "values")]
        changes = Changes(_map(files[0], (-1,), np.dtype(np.int64)), _map(files[1], table.shape(-1), table.dtype))
        if len(changes.rows) != len(changes.values):
            raise tf.errors.DataLossError(None, None, f"{files[1]} does not have the rows of {files[0]}")
        return cls(table, base, changes)

    def between(self, start: int, end: int) -> Array:
        """The rows from `start` to `end`, with their slots, as in the files."""
        found, kept = self.table.empty(end - start), self._base[start:end]
        found[: len(kept)] = kept
        first, last = np.searchsorted(self._changes.rows, [start, end])
        found[self._changes.rows[first:last] - start] = self._changes.values[first:last]
        return found

    def take(self, rows: Array, columns: slice) -> Array:
        """These columns of the values of these rows, float32 [*rows.shape, columns]."""
        base, values = self.table.values(self._base), self.table.values(self._changes.values)
        if not len(base):
            base = np.zeros((1, self.table.width), np.float32)
        found = base[np.minimum(rows, len(base) - 1), columns]
        if len(values):
            places = np.minimum(np.searchsorted(self._changes.rows, rows), len(values) - 1)
            changed = self._changes.rows[places] == rows
            found[changed] = values[places[changed], columns]
        return found

    def field(self, name: str) -> Array:
        """A field of all rows of a table that grows, [rows]: "id", int64, or "used", int32."""
        found: Array = self.table.empty(1)[name].repeat(self.rows)
        found[: len(self._base)] = self._base[name]
        found[self._changes.rows] = self._changes.values[name]
        return found


def _map(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    try:
        found: Array = np.load(file, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise tf.errors.DataLossError(None, None, f"{file}: {error}") from error
    if found.dtype != dtype or len(found.shape) != len(shape):
        raise tf.errors.DataLossError(None, None, f"{file} has {found.dtype} {found.shape}, not {dtype} {shape}")
    if any(want not in (-1, has) for want, has in zip(shape, found.shape, strict=True)):
        raise tf.errors.DataLossError(None, None, f"{file} has the shape {found.shape}, not {shape}")
    return found


class StoredRows:
    """An array of a checkpoint of which rows are read alone: a table, or the slot of one."""

    def __init__(self, stored: StoredTable, slot: int = 0) -> None:
        """`slot` is 0 for the values of the table."""
        dim = stored.table.dim
        self._stored, self.shape = stored, (stored.rows, dim)
        self._columns = slice(slot * dim, (slot + 1) * dim)

    def between(self, start: int, end: int) -> Array:
        """The rows from `start` to `end`, float32 [end - start, dim]."""
        return np.ascontiguousarray(self._stored.between(start, end)[:, self._columns])

    def slices(self) -> Iterator[tuple[int, Array]]:
        """All rows in slices, each with its first row."""
        for start, end in Table("", *self.shape, ()).slices():
            yield start, self.between(start, end)

    def take(self, ids: Array) -> Array:
        """These rows, float32 [*ids.shape, dim].

        Raises:
            ValueError: it lacks one of them.
        """
        if ids.size and (ids.min() < 0 or ids.max() >= self.shape[0]):
            wrong = ids[(ids < 0) | (ids >= self.shape[0])].flat[0]
            raise ValueError(f"{wrong} is not in [0, {self.shape[0]})")
        return self._stored.take(ids, self._columns)


class DynamicRows(StoredRows):
    """A table that grows in a checkpoint: the rows that have ids, in the order of these."""

    def __init__(self, stored: StoredTable, slot: int = 0) -> None:
        super().__init__(stored, slot)
        ids = stored.field("id")
        numbers = np.flatnonzero(ids != NO_ID)
        order = np.argsort(ids[numbers])
        self._numbers = numbers[order]
        self.ids: Array = ids[self._numbers]
        """int64 [n], in ascending order."""
        self.shape = (len(self.ids), stored.table.dim)

    def between(self, start: int, end: int) -> Array:
        return self._stored.take(self._numbers[start:end], self._columns)

    def with_ids(self) -> Array:
        """All rows with the fields "id", int64, and "values", float32 [dim]."""
        found = np.empty(len(self.ids), [("id", "<i8"), ("values", "<f4", self.shape[1:])])
        found["id"], found["values"] = self.ids, self.between(0, len(self.ids))
        return found

    def used(self, in_seconds: bool, now: int) -> Array:
        """When each row was last read, int32 [n], in this unit. If it was counted in the other one, that is now."""
        if self._stored.table.in_seconds != in_seconds:
            return np.full(len(self.ids), now, np.int32)
        found: Array = np.minimum(self._stored.field("used")[self._numbers], np.int32(now))
        return found

    def take(self, ids: Array) -> Array:
        """The rows of these ids, float32 [*ids.shape, dim]; zeros for those that it lacks."""
        if not len(self.ids):
            return np.zeros((*ids.shape, self.shape[1]), np.float32)
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        found = self._stored.take(self._numbers[places], self._columns)
        found[self.ids[places] != ids] = 0
        return found


class StoredArrays:
    """The arrays of a checkpoint by name."""

    def __init__(self, path: str) -> None:
        """Open a checkpoint.

        Raises:
            tf.errors.OpError: it cannot be read.
        """
        if not Path(f"{path}.index").exists():
            raise tf.errors.NotFoundError(None, None, f"there is no checkpoint {path}")
        try:
            self._reader = tf1.train.load_checkpoint(path)
            self._shapes: Mapping[str, Any] = self._reader.get_variable_to_shape_map()
        except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:  # raise a specific one
            raise tf.errors.DataLossError(None, None, str(error)) from error
        self._filled: dict[str, Array] = {}
        self.tables = {table.name: StoredTable.open(path, number, table) for number, table in enumerate(read(path))}
        """By name, of those that are in files of their own."""
        self._places = {
            name + suffix: (stored, slot)
            for name, stored in self.tables.items()
            for slot, suffix in enumerate(["", *stored.table.slots])
        }
        self._rows: dict[str, StoredRows] = {}

    @property
    def names(self) -> set[str]:
        """The names of all arrays."""
        return {*self._shapes, *self._places}

    def fill(self, name: str, shape: Sequence[int], value: float) -> None:
        """Let there be an array that the checkpoint lacks, with this value in each place."""
        self._filled[name] = np.broadcast_to(np.float32(value), shape)

    def whole(self, name: str) -> Array:
        """An array.

        Raises:
            tf.errors.OpError: it is absent or damaged.
        """
        if name in self._places:
            return self.rows(name).between(0, self.rows(name).shape[0])
        if name in self._filled:
            return self._filled[name]
        if name not in self._shapes:
            raise tf.errors.NotFoundError(None, None, f"the checkpoint has no {name}")
        try:
            found: Array = self._reader.get_tensor(name)
        except (tf.errors.OpError, IndexError, RuntimeError, ValueError) as error:  # raise a specific one
            raise tf.errors.DataLossError(None, None, str(error)) from error
        return found

    def rows(self, name: str) -> StoredRows:
        """A matrix of which rows can be read alone. One that the checkpoint has as a whole is read now.

        Raises:
            tf.errors.OpError: it is absent or damaged.
        """
        if name in self._rows:
            return self._rows[name]
        if name in self._places:
            stored, slot = self._places[name]
            found = DynamicRows(stored, slot) if stored.table.grows else StoredRows(stored, slot)
        else:
            whole = self.whole(name)
            table = Table(name, len(whole), whole.shape[1], ())
            found = StoredRows(StoredTable(table, whole, Changes(np.zeros(0, np.int64), table.empty(0))))
        self._rows[name] = found
        return found
