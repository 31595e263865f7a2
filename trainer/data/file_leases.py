"""Leases of files, for data whose examples have no index: a `tf.data.Dataset` that the user makes of some files.

A part of a lease is one file. The replica reads its batches, and the file is done when the last one is. The files that
a lost replica had begun, or that were not done in a checkpoint, are read again from their begin.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from trainer.data.examples import Array
from trainer.data.leases import ASK_SECONDS, OwnLeases
from trainer.data.orders import Deal
from trainer.data.stream import prefetch


class _Batch(NamedTuple):
    arrays: Sequence[Array]
    """Its leaves."""
    counted: int
    """How many of its examples count."""
    file: int
    """The number of the file in the order in which this replica reads them."""
    is_last: bool = False
    """Whether the file has no more."""


NOTHING = _Batch((), 0, -1)
"""What stands in for a batch while there is no file."""


class FileLeases:
    """The files of a run, of which this replica reads some one after the other. The places are those of its steps."""

    follows_steps = False

    def __init__(
        self, files: Sequence[Callable[[], Iterator[Sequence[Array]]]], seed: int | None, devices: int, least: int = 1
    ) -> None:
        """Read no file yet.

        Args:
            files: For each file, what returns the leaves of its batches.
            seed: Determines their order in each epoch; None keeps it.
            devices: Those of the replica, with a batch in each step.
            least: The steps of the shortest execution.
        """
        self.deal = Deal(len(files), 1, 1, seed)
        """Deals the files. What it calls a step is one file."""
        self._files, self._devices, self._least = files, devices, least

    def begin(self, own: OwnLeases) -> "FileLeases":
        """Begin a session. `own` gives the files, as if each were a step."""
        self._own, self._coming = own, prefetch(self._read(own))
        self._ready: deque[_Batch] = deque()
        self._taken: deque[_Batch] = deque()
        """Batches that are not known to be done."""
        return self

    @property
    def done(self) -> int:
        """The files that are done, before the first one that is not."""
        return self._own.done

    @property
    def is_over(self) -> bool:
        """Whether all files of the run are done."""
        return self._own.is_over

    def has(self, places: range) -> bool:
        """Whether there are batches for all of these places now."""
        wanted = len(places) * self._devices
        while len(self._ready) < wanted:
            batch = next(self._coming)
            if batch is not NOTHING:
                self._ready.append(batch)
            elif len(places) > self._least or not self._ready:
                return False
            else:  # the last ones, fewer than such an execution takes
                self._ready.append(_Batch([each[:1] for each in self._ready[0].arrays], 0, -1))
        return True

    def batches(self) -> Iterator[tuple[Sequence[Array], int]]:
        """The leaves of the batches that `has` has found, and how many examples of each count."""
        while True:
            batch = self._ready.popleft()
            self._taken.append(batch)
            yield batch.arrays, batch.counted

    def took(self, places: range, is_done: bool) -> None:
        """Take note of an execution at these places: its batches are done, or are to be taken again."""
        found = [self._taken.popleft() for _ in range(len(places) * self._devices)]
        if not is_done:
            self._ready.extendleft(reversed(found))
            return
        for each in found:
            if each.is_last:
                self._own.took(range(each.file, each.file + 1), is_done=True)

    def _read(self, own: OwnLeases) -> Iterator[_Batch]:
        for file in itertools.count():
            while (part := own.at(file)) is None:
                yield NOTHING
                time.sleep(ASK_SECONDS)
            [index], _ = self.deal.take(part.step, 0)
            last = None
            for arrays in self._files[index]():
                if last:
                    yield last
                last = _Batch(arrays, len(arrays[0]), file)
            if last:
                yield last._replace(is_last=True)
            else:  # an empty file
                own.took(range(file, file + 1), is_done=True)
