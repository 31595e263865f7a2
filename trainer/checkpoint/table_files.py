"""The tables of a checkpoint, in files that are read and written in slices.

A table of n rows has a base, `table-NUMBER-TOKEN.npy`, float32 [n, (1 + slots) x dim]: each row of the table, followed
by the same row of each optimizer slot. Checkpoints share it. The rows that have changed since are in files of each
checkpoint: `PATH.table-NUMBER.rows.npy`, int64 [k] in ascending order, and `PATH.table-NUMBER.values.npy`, float32
[k, (1 + slots) x dim]. `PATH.tables.json` names the tables, their slots and bases.
"""

import glob
import json
import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from trainer.data.files import write_atomically
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
    """float32 [k, (1 + slots) x dim]."""


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

    @property
    def width(self) -> int:
        """Numbers of a row of the base."""
        return (1 + len(self.slots)) * self.dim

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
            _begin(file, "<f4", (table.rows, table.width))
            for each in slices:
                file.write(np.ascontiguousarray(each, np.float32).data)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(folder / name)
    finally:
        partial.unlink(missing_ok=True)
    return name


def merge(folder: Path, number: int, table: Table, changes: Changes) -> str:
    """Write another base, which has these changes, and return its name.

    Raises:
        OSError: it cannot be read or written.
    """
    stored = StoredTable(np.load(folder / table.base, mmap_mode="r"), changes)
    return write_base(folder, number, table, (stored.between(*each) for each in table.slices()))


def _begin(file: BinaryIO, dtype: str, shape: tuple[int, ...]) -> None:
    """Write the header of NumPy's format. Its own function for whole files hides why a write failed."""
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})


def write(path: str, tables: Sequence[Table], changes: Sequence[Changes]) -> None:
    """Write the files of a checkpoint for its tables."""
    for number, each in enumerate(changes):
        for kind, array in (("rows", each.rows), ("values", each.values)):
            with Path(f"{path}.table-{number}.{kind}.npy").open("wb") as file:
                _begin(file, array.dtype.str, array.shape)
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

    def __init__(self, base: Array, changes: Changes) -> None:
        """The base and the changes may be in memory that is mapped from files."""
        self._base, self._changes = base, changes

    @classmethod
    def open(cls, path: str, number: int, table: Table) -> "StoredTable":
        """Open the files of a checkpoint.

        Raises:
            tf.errors.DataLossError: a file is absent or damaged.
        """
        files = [_base_of(path, table), *(Path(f"{path}.table-{number}.{kind}.npy") for kind in ("rows", "values"))]
        shapes = [(table.rows, table.width), (-1,), (-1, table.width)]
        arrays = [_map(file, shape) for file, shape in zip(files, shapes, strict=True)]
        if len(arrays[1]) != len(arrays[2]):
            raise tf.errors.DataLossError(None, None, f"{files[2]} does not have the rows of {files[1]}")
        return cls(arrays[0], Changes(*arrays[1:]))

    def between(self, start: int, end: int, columns: slice = ALL) -> Array:
        """These columns of the rows from `start` to `end`, float32 [end - start, columns]."""
        found = np.array(self._base[start:end, columns])
        first, last = np.searchsorted(self._changes.rows, [start, end])
        found[self._changes.rows[first:last] - start] = self._changes.values[first:last, columns]
        return found

    def take(self, ids: Array, columns: slice) -> Array:
        """These columns of these rows, float32 [*ids.shape, columns]."""
        found = self._base[ids, columns]
        if len(self._changes.rows):
            places = np.minimum(np.searchsorted(self._changes.rows, ids), len(self._changes.rows) - 1)
            changed = self._changes.rows[places] == ids
            found[changed] = self._changes.values[places[changed], columns]
        return found


def _map(file: Path, shape: tuple[int, ...]) -> Array:
    try:
        found: Array = np.load(file, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise tf.errors.DataLossError(None, None, f"{file}: {error}") from error
    if len(found.shape) != len(shape) or any(
        want not in (-1, has) for want, has in zip(shape, found.shape, strict=True)
    ):
        raise tf.errors.DataLossError(None, None, f"{file} has the shape {found.shape}, not {shape}")
    return found


class StoredRows:
    """An array of a checkpoint of which rows are read alone: a table, or the slot of one."""

    def __init__(self, table: StoredTable, shape: tuple[int, int], slot: int = 0) -> None:
        """`slot` is 0 for the values of the table."""
        self._table, self.shape = table, shape
        self._columns = slice(slot * shape[1], (slot + 1) * shape[1])

    def between(self, start: int, end: int) -> Array:
        """The rows from `start` to `end`, float32 [end - start, dim]."""
        return self._table.between(start, end, self._columns)

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
        return self._table.take(ids, self._columns)


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
        self._rows: dict[str, StoredRows] = {}
        for number, table in enumerate(read(path)):
            stored = StoredTable.open(path, number, table)
            for slot, suffix in enumerate(["", *table.slots]):
                self._rows[table.name + suffix] = StoredRows(stored, (table.rows, table.dim), slot)

    @property
    def names(self) -> set[str]:
        """The names of all arrays."""
        return {*self._shapes, *self._rows}

    def fill(self, name: str, shape: Sequence[int], value: float) -> None:
        """Let there be an array that the checkpoint lacks, with this value in each place."""
        self._filled[name] = np.broadcast_to(np.float32(value), shape)

    def whole(self, name: str) -> Array:
        """An array.

        Raises:
            tf.errors.OpError: it is absent or damaged.
        """
        if name in self._rows:
            return self._rows[name].between(0, self._rows[name].shape[0])
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
        if name not in self._rows:
            whole = self.whole(name)
            none = Changes(np.zeros(0, np.int64), np.zeros((0, whole.shape[1]), np.float32))
            self._rows[name] = StoredRows(StoredTable(whole, none), whole.shape)
        return self._rows[name]
