"""Rows of Parquet files that do not fit into memory, in an order that the seed and the epoch determine.

An epoch takes the row groups in a random order, LANES of them side by side, each of these from its first row on. The
next rows of all lanes are a window, in which the rows are shuffled. So memory holds a few windows, each row is read
once an epoch, and any place of the order can be read again after a restart.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainer.data.examples import Array
from trainer.data.tabular.parquet import RowGroup

LANES = 4
WINDOW_ROWS, LEAST_WINDOW_ROWS = 1 << 16, 1 << 11
WINDOW_BYTES = 16 << 20
KEPT_WINDOWS = 2
"""A batch may begin in one window and end in the next."""
Read = Callable[[RowGroup], Iterator[Any]]
"""Returns the rows of a row group in batches, each a `pyarrow.RecordBatch`, without those that are left out."""


@dataclass(frozen=True)
class Part:
    """Successive rows of a row group."""

    group: int
    start: int
    rows: int


@dataclass(frozen=True)
class Window:
    """The parts that are shuffled together, and the place of their first row in the order of the epoch."""

    start: int
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return sum(part.rows for part in self.parts)


def windows(rows: Sequence[int], size: int, seed: int, epoch: int) -> list[Window]:
    """The windows of an epoch.

    Args:
        rows: Those of each row group.
        size: The rows of a window, about.
        seed: That of the run.
        epoch: The number of the epoch, from 0.
    """
    order = np.random.default_rng([seed, epoch]).permutation(len(rows))
    each = max(1, size // LANES)
    parts: list[Part] = []
    for begin in range(0, len(order), LANES):
        lanes = [
            [Part(int(group), start, min(each, rows[group] - start)) for start in range(0, rows[group], each)]
            for group in order[begin : begin + LANES]
        ]
        parts += [part for next_parts in itertools.zip_longest(*lanes) for part in next_parts if part]
    found: list[Window] = []
    start, own = 0, list[Part]()
    for part in parts:
        own.append(part)
        if sum(one.rows for one in own) >= size:
            found.append(Window(start, tuple(own)))
            start, own = start + found[-1].rows, []
    return [*found, Window(start, tuple(own))] if own else found


class Blocks:
    """Reads the examples of row groups by their places in the order of the epochs. Not for several threads at once."""

    def __init__(
        self,
        groups: Sequence[RowGroup],
        rows: Sequence[int],
        read: Read,
        convert: Callable[[Any], Sequence[Array]],
        seed: int,
    ) -> None:
        """Take what reads the data.

        Args:
            groups: The row groups.
            rows: The rows that `read` gives of each.
            read: Reads a row group.
            convert: Returns the leaves of the examples of a `pyarrow.Table`.
            seed: That of the order.
        """
        self._groups, self._rows, self._read, self._convert, self._seed = groups, rows, read, convert, seed
        self.size = sum(rows)
        """The number of examples."""
        bytes_a_row = max(1, sum(group.size for group in groups) // max(1, sum(group.rows for group in groups)))
        self._window_rows = max(LEAST_WINDOW_ROWS, min(WINDOW_ROWS, WINDOW_BYTES // bytes_a_row))
        self._epoch, self._windows, self._starts = -1, list[Window](), np.zeros(0, np.int64)
        self._kept: OrderedDict[tuple[int, int], Sequence[Array]] = OrderedDict()
        self._open: dict[int, tuple[int, Iterator[Any], Any]] = {}
        """By row group, the row that comes next, what reads the others, and the rest of the last batch."""

    def read(self, indices: npt.NDArray[Any]) -> Sequence[Array]:
        """The leaves of the examples at these places; those of one epoch must be successive, but for a wrap."""
        epochs, places = np.divmod(indices, self.size)
        parts: list[Sequence[Array]] = []
        begin = 0
        while begin < len(indices):
            epoch, place = int(epochs[begin]), int(places[begin])
            number = self._find(epoch, place)
            window = self._windows[number]
            inside = place - window.start
            most = min(window.rows - inside, len(indices) - begin)
            run = places[begin : begin + most] - place == np.arange(most)
            same = run & (epochs[begin : begin + most] == epoch)
            count = most if same.all() else int(np.argmin(same))
            arrays = self._window(epoch, number)
            parts.append([array[inside : inside + count] for array in arrays])
            begin += count
        return parts[0] if len(parts) == 1 else [np.concatenate(each) for each in zip(*parts, strict=True)]

    def once(self, size: int) -> Iterator[Sequence[Array]]:
        """All examples in batches of this size, in the order of the first epoch."""
        for start in range(0, self.size, size):
            yield self.read(np.arange(start, min(self.size, start + size)))

    def _find(self, epoch: int, place: int) -> int:
        """The window that has this place."""
        if epoch != self._epoch:
            self._epoch, self._windows = epoch, windows(self._rows, self._window_rows, self._seed, epoch)
            self._starts = np.array([each.start for each in self._windows])
            self._open.clear()
        return int(np.searchsorted(self._starts, place, side="right")) - 1

    def _window(self, epoch: int, number: int) -> Sequence[Array]:
        """The shuffled examples of a window of the present epoch."""
        key = epoch, number
        if key not in self._kept:
            window = self._windows[number]
            table = pa.Table.from_batches([batch for part in window.parts for batch in self._read_part(part)])
            order = np.random.default_rng([self._seed, epoch, number]).permutation(window.rows)
            self._kept[key] = [array[order] for array in self._convert(table)]
            while len(self._kept) > KEPT_WINDOWS:
                self._kept.popitem(last=False)
        return self._kept[key]

    def _read_part(self, part: Part) -> Iterator[Any]:
        """The rows of a part. The parts of a row group are usually read one after another."""
        at, batches, rest = self._open.pop(part.group, (0, iter(()), None))
        if at != part.start or (at == 0 and rest is None):
            at, batches, rest = 0, self._read(self._groups[part.group]), None
        end = part.start + part.rows
        while at < end:
            batch = rest if rest is not None and len(rest) else next(batches)
            skip = min(len(batch), max(0, part.start - at))
            take = min(len(batch) - skip, end - at - skip)
            if take > 0:
                yield batch.slice(skip, take)
            rest = batch.slice(skip + take)
            at += skip + take
        if end < self._rows[part.group]:
            self._open[part.group] = at, batches, rest
