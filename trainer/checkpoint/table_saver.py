"""Saves and restores tables, in slices, beside training.

A table is read as a whole once after the start of a session, while replicas train: this is the base of its checkpoints.
Each update marks its rows with the period of the table, a number that the chief raises before it reads the base and at
each snapshot. So a snapshot consists of the rows whose mark is the period of the base or a later one. It is taken while
no update runs, so together with the base it is the table at one moment.
"""

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trainer.checkpoint import table_files
from trainer.checkpoint.table_files import Array, Changes, StoredArrays, Table
from trainer.shards.parameters import Shard
from trainer.shards.tables import TablePart
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Session, Tensor


@dataclass(frozen=True)
class _Part:
    """The ops for the part of a table on one server."""

    slice: Tensor
    """float32 [end - start, (1 + slots) x dim]: the rows from `start` to `end`."""
    count: Tensor
    """int64 scalar: the number of staged rows."""
    rows: Tensor
    """int64 [end - start]: the staged rows from number `start` to `end`."""
    values: Tensor
    """float32 [end - start, (1 + slots) x dim]: their values."""
    clear: Operation
    """Op that drops the staged rows."""
    period: Tensor
    """int32 scalar: the period."""
    begin: Operation
    """Op that sets it."""
    is_initialized: Tensor
    """bool scalar: whether all variables are initialized."""
    run_id: Tensor
    """string scalar: the run that they belong to."""
    create: Operation
    """Op that initializes them, the values with 0, as those of no run."""
    complete: Operation
    """Op that makes them those of this run."""
    given: Tensor
    """float32 [n, (1 + slots) x dim] placeholder."""
    write: Operation
    """Op that writes `given` from row `start` on."""


@dataclass(frozen=True)
class TableSnapshot:
    """The tables at one moment: what has changed since their bases."""

    period: int
    """That which began then."""
    changes: Sequence[Changes]
    """For each table."""


class TableSaver:
    """Ops that save and restore the tables of all shards."""

    def __init__(self, shards: Sequence[Shard], slots: Sequence[str], run: str = "") -> None:
        """Add the ops to the default graph, on the current device.

        Args:
            shards: The shards, of which the first ones have parts of the same tables.
            slots: Slot names of the optimizer.
            run: Unique identifier of the run.
        """
        with_tables = [shard for shard in shards if shard.tables]
        self._servers, self._run = len(with_tables), run
        self._start, self._end = (tf1.placeholder(tf.int64, []) for _ in range(2))
        self._period = tf1.placeholder(tf.int32, [])
        self._tables: list[Table] = []
        self._since: list[Tensor] = []
        """For each table, int32 scalar placeholder: the first period whose changes a snapshot has."""
        self._parts: list[list[_Part]] = []
        """By table and server."""
        for parts in zip(*(shard.tables for shard in with_tables), strict=True):
            rows = sum(int(part.values.shape[0]) for part in parts)
            table = Table(parts[0].name, rows, parts[0].dim, tuple(f"/{slot}" for slot in slots))
            self._tables.append(table)
            self._since.append(tf1.placeholder(tf.int32, []))
            self._parts.append([self._add(table, *each) for each in zip(parts, with_tables, strict=True)])
        self._folder = Path()
        self._now = 0
        """The period of all tables."""
        self._bases: list[tuple[Table, int]] = []
        """Each table with its base, and the first period whose changes the base lacks."""
        self._is_base_finite = True

    def _add(self, table: Table, part: TablePart, shard: Shard) -> _Part:
        given = tf1.placeholder(tf.float32, [None, table.width])
        with tf1.device(shard.device):
            staged = tf.raw_ops.StagePeek(index=0, **_area(part, shard))
            rows, *values = (each[self._start : self._end] for each in staged)
            sliced = tf.range(self._start, tf.minimum(self._end, int(part.values.shape[0])))
            received = tf.identity(given)
            places = tf.range(self._start, self._start + tf.shape(received, tf.int64)[0])
            written = list(zip(part.variables, tf.split(received, 1 + len(table.slots), axis=1), strict=True))

            def write() -> Operation:
                return tf.group(
                    *[
                        tf.raw_ops.ResourceScatterUpdate(resource=each.handle, indices=places, updates=value)
                        for each, value in written
                    ]
                )

            floats = [each.assign(tf.zeros(each.shape), read_value=False) for each in part.variables]
            others = [part.periods.initializer, part.period.initializer, part.run_id.assign("", read_value=False)]
            is_initialized = [tf1.is_variable_initialized(each) for each in part.all_variables]
            return _Part(
                slice=tf.concat([each.sparse_read(sliced) for each in part.variables], axis=1),
                count=tf.size(staged[0], tf.int64),
                rows=rows,
                values=tf.concat(values, axis=1),
                clear=tf.raw_ops.StageClear(**_area(part, shard)),
                period=part.period.read_value(),
                begin=shard.alone(lambda: part.period.assign(self._period, read_value=False)),
                is_initialized=tf.reduce_all(tf.stack(is_initialized)),
                run_id=part.run_id.read_value(),
                create=tf.group(*floats, *others),
                complete=part.run_id.initializer,
                given=given,
                write=shard.alone(write),
            )

    def stage(self, shard: Shard) -> list[Operation]:
        """Add the ops that keep the changed rows of a shard on its server, and begin another period.

        No update may run meanwhile.
        """
        staged = []
        for part, since in zip(shard.tables, self._since, strict=False):
            area = _area(part, shard)
            with tf.control_dependencies([part.period.assign(self._period, read_value=False)]):
                rows = tf.reshape(tf.where(part.periods.read_value() >= since), [-1])
            with tf.control_dependencies([tf.raw_ops.StageClear(**area)]):  # of an earlier chief
                values = [rows, *(each.sparse_read(rows) for each in part.variables)]
                staged.append(tf.raw_ops.Stage(values=values, shared_name=area["shared_name"]))
        return staged

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The shapes of the tables, by name."""
        return {table.name: (table.rows, table.dim) for table in self._tables}

    @property
    def has_bases(self) -> bool:
        """Whether all tables have a base, without which there is no snapshot."""
        return len(self._bases) == len(self._tables)

    @property
    def bases(self) -> set[str]:
        """The names of the files of the bases."""
        return {table.base for table, _ in self._bases}

    def forget(self) -> None:
        """Drop the bases: the session, or the values of the tables, are others now."""
        self._bases = []

    def read_bases(self, session: Session, folder: Path) -> None:
        """Read all tables, and write their bases to a folder.

        Raises:
            OSError: they cannot be written.
            tf.errors.OpError, RuntimeError: a parameter server is lost, or the session is closed.
        """
        parts = [part for parts in self._parts for part in parts]
        self._folder, self._bases, self._is_base_finite = folder, [], True
        self._now = 1 + max(map(int, session.run([part.period for part in parts])))
        session.run([part.begin for part in parts], {self._period: self._now})
        bases = []
        for number, table in enumerate(self._tables):
            base = table_files.write_base(folder, number, table, self._read(session, number, table))
            bases.append((replace(table, base=base), self._now))
        self._bases = bases

    def _read(self, session: Session, number: int, table: Table) -> Iterator[Array]:
        """The slices of a table."""
        slices = [part.slice for part in self._parts[number]]
        for start, end in table.slices(self._servers):
            found = np.empty((end - start, table.width), np.float32)
            parts = session.run(slices, {self._start: start // self._servers, self._end: -(-end // self._servers)})
            for server, part in enumerate(parts):
                found[server :: self._servers] = part
            self._is_base_finite &= bool(np.isfinite(found[:, : table.dim]).all())
            yield found

    def begin_period(self) -> dict[Tensor, int]:
        """What the ops of `stage` must be fed with. They need bases."""
        self._now += 1
        since = {each: first for each, (_, first) in zip(self._since, self._bases, strict=True)}
        return {self._period: self._now, **since}

    def fetch(self, session: Session) -> TableSnapshot:
        """Fetch the rows that the ops of `stage` keep, and drop them there.

        Raises:
            tf.errors.OpError, RuntimeError: a parameter server is lost, or the session is closed.
        """
        period, changes = self._now, []
        for table, parts in zip(self._tables, self._parts, strict=True):
            slices = [
                (server, part, {self._start: start, self._end: end})
                for server, part in enumerate(parts)
                for start, end in replace(table, rows=int(session.run(part.count))).slices()
            ]
            rows = [session.run(part.rows, feeds) * self._servers + server for server, part, feeds in slices]
            joined = np.concatenate([np.zeros(0, np.int64), *rows])
            order = np.argsort(joined)
            places, values = np.argsort(order), np.empty((len(order), table.width), np.float32)
            for _, part, feeds in slices:
                found = session.run(part.values, feeds)
                values[places[: len(found)]] = found
                places = places[len(found) :]
            session.run([part.clear for part in parts])
            changes.append(Changes(joined[order], values))
        return TableSnapshot(period, changes)

    def is_finite(self, snapshot: TableSnapshot) -> bool:
        """Whether all rows are finite."""
        tables = zip(self._tables, snapshot.changes, strict=True)
        return self._is_base_finite and all(
            bool(np.isfinite(each.values[:, : table.dim]).all()) for table, each in tables
        )

    def write(self, path: str, snapshot: TableSnapshot, may_merge: bool) -> None:
        """Write the files of a checkpoint. A table of which many rows have changed gets a new base, if it may.

        Raises:
            OSError: they cannot be written.
        """
        if absent := [name for name in sorted(self.bases) if not (self._folder / name).exists()]:
            self.forget()
            raise OSError(errno.ENOENT, "it was removed", absent[0])
        changes = list(snapshot.changes)
        for number, (table, _) in enumerate(self._bases):
            if may_merge and len(changes[number].rows) > table_files.MERGED_SHARE * table.rows:
                base = table_files.merge(self._folder, number, table, changes[number])
                self._bases[number] = (replace(table, base=base), snapshot.period)
                changes[number] = Changes(changes[number].rows[:0], changes[number].values[:0])
        table_files.write(path, [table for table, _ in self._bases], changes)

    def find_lost(self, session: Session) -> Sequence[int]:
        """The servers that lack a part of this run's tables."""
        found = []
        for server, parts in enumerate(zip(*self._parts, strict=True)):
            is_there = all(session.run([part.is_initialized for part in parts]))
            if not is_there or any(each.decode() != self._run for each in session.run([part.run_id for part in parts])):
                found.append(server)
        return found

    def create(self, session: Session, servers: Sequence[int]) -> None:
        """Initialize the variables of these servers, before `restore`."""
        session.run([parts[server].create for parts in self._parts for server in servers])

    def restore(self, session: Session, arrays: StoredArrays, servers: Sequence[int] | None = None) -> None:
        """Restore the tables of these servers, by default of all, from a checkpoint. They have no base then.

        Raises:
            tf.errors.OpError: the checkpoint cannot be read.
        """
        self.forget()
        servers = range(self._servers) if servers is None else servers
        if not servers:
            return
        for table, parts in zip(self._tables, self._parts, strict=True):
            found = [arrays.rows(table.name + suffix) for suffix in ("", *table.slots)]
            if any(each.shape != (table.rows, table.dim) for each in found):
                raise tf.errors.InvalidArgumentError(None, None, f"{table.name} has another shape in the checkpoint")
            for start, end in table.slices(self._servers):
                values = np.concatenate([each.between(start, end) for each in found], axis=1)
                given = {parts[server].given: values[server :: self._servers] for server in servers}
                session.run([parts[server].write for server in servers], {self._start: start // self._servers, **given})
        session.run([parts[server].complete for parts in self._parts for server in servers])


def _area(part: TablePart, shard: Shard) -> dict[str, Any]:
    """The staging area of the changed rows of a part."""
    types = [tf.int64, *[tf.float32] * len(part.variables)]
    return {"shared_name": f"{shard.name}/{part.name}/changed", "dtypes": types}
