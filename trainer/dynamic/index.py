"""The rows of ids in a process that trains alone, by plain Keras."""

import threading
import time
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.dynamic.ids import NO_ID

Array = npt.NDArray[Any]


class Index:
    """The rows of ids, in the order in which they were used last."""

    def __init__(self, capacity: int, admit_after: int, expire_after: int, in_seconds: bool) -> None:
        self._capacity, self._admit_after = capacity, admit_after
        self._expire_after, self._in_seconds = expire_after, in_seconds
        self._lock = threading.Lock()
        self._steps = 0
        self._rows: OrderedDict[int, tuple[int, float]] = OrderedDict()
        """By id: its row, and when it was used."""
        self._free: list[int] = []
        self._seen: dict[int, int] = {}
        """How often ids without a row were seen."""

    def admit(self, ids: Array) -> tuple[Array, dict[int, int]]:
        """The rows of ids, int64 like these, -1 without one; and of those that are new, the ids by row."""
        unique, places = np.unique(ids, return_inverse=True)
        with self._lock:
            self._steps += 1
            now = time.time() if self._in_seconds else self._steps
            self._expire(now)
            new: dict[int, int] = {}
            rows = np.array([self._admit(int(each), now, new) for each in unique], np.int64)
        return rows[places].reshape(ids.shape), new

    def _admit(self, key: int, now: float, new: dict[int, int]) -> int:
        if key == NO_ID:
            return -1
        if key in self._rows:
            row = self._rows[key][0]
        else:
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] < self._admit_after:
                return -1
            if not self._free and len(self._rows) == self._capacity:
                _, (row, used) = next(iter(self._rows.items()))
                if used >= now:
                    return -1
                self._rows.popitem(last=False)
                self._free.append(row)
            row = self._free.pop() if self._free else len(self._rows)
            self._seen.pop(key)
            new[row] = key
        self._rows[key] = row, now
        self._rows.move_to_end(key)
        return row

    def _expire(self, now: float) -> None:
        while self._expire_after and self._rows:
            key, (row, used) = next(iter(self._rows.items()))
            if now - used <= self._expire_after:
                return
            self._rows.pop(key)
            self._free.append(row)

    def find(self, ids: Array) -> Array:
        """The rows of ids, int64 like these, -1 without one."""
        unique, places = np.unique(ids, return_inverse=True)
        with self._lock:
            rows = np.array([self._rows.get(int(each), (-1,))[0] for each in unique], np.int64)
        return rows[places].reshape(ids.shape)

    def listed(self) -> tuple[Array, Array]:
        """All ids in ascending order, and their rows."""
        with self._lock:
            pairs = sorted((key, row) for key, (row, _) in self._rows.items())
        found = np.array(pairs, np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def set(self, ids: Array) -> None:
        """Let these ids have the rows 0, 1, …, and no other one."""
        with self._lock:
            now = time.time() if self._in_seconds else self._steps
            self._rows = OrderedDict((int(key), (row, now)) for row, key in enumerate(ids))
            self._free, self._seen = [], {}
