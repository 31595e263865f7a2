"""The steady part of a training and its snapshots, which a program prints as a line of JSON. It imports NumPy alone."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recommenders.work import Work

WARM_UP, WARM_UP_SECONDS = 0.1, 2.0
"""The steady part begins after this share of the examples, or after this time, if that is sooner."""
MAX_SECONDS = 5.0
"""The steady part of a training without snapshots ends after this time."""


def save(folder: Path, examples: int, weights: Mapping[str, Any]) -> None:
    """Write a snapshot: the arrays of the model by Keras's paths."""
    np.savez(folder / f"{examples}.npz", **dict[str, Any](weights))


class Progress:
    """Counts the examples of all workers; the time of a snapshot does not count."""

    def __init__(
        self, work: Work, folder: Path = Path(), weights: Callable[[], Mapping[str, Any]] = dict[str, Any]
    ) -> None:
        """Snapshots go to `folder`; `weights` returns the arrays of the model by Keras's paths."""
        self._work, self._folder, self._weights = work, folder, weights
        self._points = list(work.points)
        self._first: float | None = None
        self._begin: tuple[float, int] | None = None
        self._end = (0.0, 0)
        self._snapshots: list[tuple[int, float]] = []
        self._paused = 0.0

    def tick(self, examples: int) -> bool:
        """Record that so many examples are done; return whether to go on."""
        now, work = time.time(), self._work
        self._first = self._first or now
        is_warm = examples >= work.examples * WARM_UP or now > self._first + WARM_UP_SECONDS
        if self._begin is None and is_warm:
            self._begin = (now, examples)
        self._end = (now, examples)
        if self._points and examples >= self._points[0]:
            self._points.pop(0)
            self._snapshots.append((examples, now - self._first - self._paused))
            save(self._folder, examples, self._weights())
            self._paused += time.time() - now
        if self._begin is None or self._begin == self._end:
            return True
        is_late = not work.every and now > self._begin[0] + MAX_SECONDS
        return examples < work.examples and not is_late

    @property
    def line(self) -> dict[str, Any]:
        """The steady part, in seconds since 1970 and in examples, and the snapshots."""
        begin, examples = self._begin or (0.0, 0)
        seconds = self._end[0] - begin - self._paused
        line = {"begin": begin, "end": self._end[0], "examples": self._end[1] - examples, "seconds": seconds}
        return {**line, "snapshots": self._snapshots}

    def print(self) -> None:
        """Print the line as JSON."""
        print(json.dumps(self.line), flush=True)
