"""Saves and restores tables, in slices, beside training.

A table is read as a whole once after the start of a session, while replicas train: this is the base of its checkpoints.
Each update marks its rows with the period of the table, a number that the chief raises before it reads the base and at
each snapshot. So a snapshot consists of the rows whose mark is the period of the base or a later one. It is taken while
no update runs, so together with the base it is the table at one moment.
"""

import errno
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trainer.checkpoint import table_files, table_ops
from trainer.checkpoint.files import GLOBAL_STEP
from trainer.checkpoint.table_files import Array, Changes, DynamicRows, StoredArrays, StoredRows, Table
from trainer.checkpoint.table_ops import PartOps, Slice
from trainer.shards.dynamic_part import BEGIN_OF_TIME, DynamicPart
from trainer.shards.parameters import Shard
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Session, Tensor

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableSnapshot:
    """The tables at one moment: what has changed since their bases."""

    period: int
    """That which began then."""
    tables: Sequence[Table]
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
        self._slice = Slice(tf1.placeholder(tf.int64, []), tf1.placeholder(tf.int64, []))
        self._period = tf1.placeholder(tf.int32, [])
        self._tables: list[Table] = []
        self._since: list[Tensor] = []
        """For each table, int32 scalar placeholder: the first period whose changes a snapshot has."""
        self._parts: list[list[PartOps]] = []
        """By table and server."""
        for parts in zip(*(shard.tables for shard in with_tables), strict=True):
            first, rows = parts[0], sum(part.rows for part in parts)
            table = Table(first.name, rows, first.dim, tuple(f"/{slot}" for slot in slots))
            if isinstance(first, DynamicPart):
                table = replace(table, grows=True, in_seconds=first.growth.in_seconds)
            self._tables.append(table)
            self._since.append(tf1.placeholder(tf.int32, []))
            every = zip(parts, with_tables, strict=True)
            self._parts.append([table_ops.add(table, *each, self._slice, self._period) for each in every])
        self._folder = Path()
        self._now = 0
        """The period of all tables."""
        self._bases: list[tuple[Table, int]] = []
        """Each table with its base, and the first period whose changes the base lacks."""
        self._is_base_finite = True
        self._told: dict[str, int] = {}
        """By the names of tables that grow: the rows that were logged last."""
        self._are_full: set[str] = set()
        """The names of those of which the log says that rows leave for others."""

    def stage(self, shard: Shard) -> list[Operation]:
        """Add the ops that keep the changed rows of a shard on its server, and begin another period.

        No update may run meanwhile.
        """
        return [
            table_ops.stage(part, shard, since, self._period)
            for part, since in zip(shard.tables, self._since, strict=False)
        ]

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
        for number, given in enumerate(self._tables):
            table = self._present(session, number, given)
            base = table_files.write_base(folder, number, table, self._read(session, number, table))
            bases.append((replace(table, base=base), self._now))
        self._bases = bases

    def _present(self, session: Session, number: int, table: Table) -> Table:
        """A table with the rows that it has now, if it grows."""
        counts = self._count(session, number)
        return table if counts is None else replace(table, rows=self._servers * int(counts[:, 0].max()))

    def _count(self, session: Session, number: int) -> Array | None:
        """The counts of each part of a table, int64 [servers, 5]; None if it does not grow."""
        counts = [part.counts for part in self._parts[number] if part.counts is not None]
        return np.stack(session.run(counts)) if counts else None

    def _tell_size(self, session: Session, number: int, table: Table) -> None:
        """Log how large a table has become, when it has twice the rows, and once that rows leave for others."""
        counts = self._count(session, number)
        if counts is None:
            return
        rows, left = int(counts[:, 1].sum()), int(counts[:, 2].sum())
        told = self._told.get(table.name, 0)
        if rows >= 2 * told and rows:
            self._told[table.name] = rows
            logger.info(f"{table.name} has rows for {rows:,} ids")
        if left and table.name not in self._are_full:
            self._are_full.add(table.name)
            logger.warning(
                f"{table.name}: its capacity of {table.rows:,} rows is reached, so {left:,} that were not used for a "
                "long time have left for new ids; raise the capacity of the DynamicEmbedding, or let rows expire"
            )

    def _read(self, session: Session, number: int, table: Table) -> Iterator[Array]:
        """The slices of a table."""
        slices = [part.slice for part in self._parts[number]]
        for start, end in table.slices(self._servers):
            found = table.empty(end - start)
            parts = session.run(slices, self._slice.of(start // self._servers, -(-end // self._servers)))
            for server, part in enumerate(parts):
                found[server :: self._servers] = table.join(part)
            self._is_base_finite &= _is_finite(table, found)
            yield found

    def begin_period(self, since: int | None = None) -> dict[Tensor, int]:
        """What the ops of `stage` must be fed with. They need bases.

        Args:
            since: The first period whose changes the snapshot has; by default that of the base of each table.
        """
        self._now += 1
        firsts = [first if since is None else since for _, first in self._bases]
        return {self._period: self._now, **dict(zip(self._since, firsts, strict=True))}

    def fetch(self, session: Session) -> TableSnapshot:
        """Fetch the rows that the ops of `stage` keep, and drop them there.

        Raises:
            tf.errors.OpError, RuntimeError: a parameter server is lost, or the session is closed.
        """
        period, changes = self._now, []
        for number, (table, parts) in enumerate(zip(self._tables, self._parts, strict=True)):
            slices = [
                (server, part, self._slice.of(start, end))
                for server, part in enumerate(parts)
                for start, end in replace(table, rows=int(session.run(part.count))).slices()
            ]
            rows = [session.run(part.numbers, feeds) * self._servers + server for server, part, feeds in slices]
            joined = np.concatenate([np.zeros(0, np.int64), *rows])
            order = np.argsort(joined)
            places, values = np.argsort(order), table.empty(len(order))
            for _, part, feeds in slices:
                found = table.join(session.run(part.values, feeds))
                values[places[: len(found)]] = found
                places = places[len(found) :]
            session.run([part.clear for part in parts])
            self._tell_size(session, number, table)
            changes.append(Changes(joined[order], values))
        return TableSnapshot(period, self._tables, changes)

    def is_finite(self, snapshot: TableSnapshot) -> bool:
        """Whether all rows are finite."""
        tables = zip(self._tables, snapshot.changes, strict=True)
        return self._is_base_finite and all(_is_finite(table, each.values) for table, each in tables)

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
                merged = table_files.merge(self._folder, number, table, changes[number])
                self._bases[number] = (merged, snapshot.period)
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
        for number, table in enumerate(self._tables):
            found = [arrays.rows(table.name + suffix) for suffix in ("", *table.slots)]
            if isinstance(found[0], DynamicRows) != table.grows:
                raise tf.errors.InvalidArgumentError(None, None, f"{table.name} is of another kind in the checkpoint")
            if isinstance(found[0], DynamicRows):
                is_now = int(time.time()) - BEGIN_OF_TIME if table.in_seconds else int(arrays.whole(GLOBAL_STEP))
                self._restore_by_id(session, number, found, found[0].used(table.in_seconds, is_now), servers)
            else:
                self._restore_rows(session, number, found, servers)
        session.run([parts[server].complete for parts in self._parts for server in servers])

    def _restore_rows(self, session: Session, number: int, found: Sequence[StoredRows], servers: Sequence[int]) -> None:
        """Restore a table from its values, and the slots."""
        table, parts = self._tables[number], self._parts[number]
        if any(each.shape != (table.rows, table.dim) for each in found):
            raise tf.errors.InvalidArgumentError(None, None, f"{table.name} has another shape in the checkpoint")
        for start, end in table.slices(self._servers):
            values = np.concatenate([each.between(start, end) for each in found], axis=1)
            given = {parts[server].given[0]: values[server :: self._servers] for server in servers}
            session.run(
                [parts[server].write for server in servers], {self._slice.start: start // self._servers, **given}
            )

    def _restore_by_id(
        self, session: Session, number: int, found: Sequence[StoredRows], used: Array, servers: Sequence[int]
    ) -> None:
        """Restore a table that grows, whose rows were used at these times: each goes to the server of its id."""
        table, parts = self._tables[number], self._parts[number]
        stored = found[0]
        assert isinstance(stored, DynamicRows)  # noqa: S101
        if stored.shape[1] != table.dim:
            raise tf.errors.InvalidArgumentError(None, None, f"{table.name} has another shape in the checkpoint")
        session.run([parts[server].create for server in servers])  # without rows that the checkpoint lacks
        for start, end in replace(table, rows=stored.shape[0]).slices():
            values = np.concatenate([each.between(start, end) for each in found], axis=1)
            rows = stored.ids[start:end], used[start:end], values
            for server in servers:
                own = rows[0] % self._servers == server
                given = zip(parts[server].given, rows, strict=True)
                session.run(parts[server].write, {placeholder: each[own] for placeholder, each in given})


def _is_finite(table: Table, rows: Array) -> bool:
    """Whether the values of rows are finite, without their slots."""
    return bool(np.isfinite(table.values(rows)[:, : table.dim]).all())
