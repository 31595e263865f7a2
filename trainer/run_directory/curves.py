"""The curves of a run, from TensorBoard's event files."""

import math
import os
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from trainer.data.examples import Array

EVENT_FILES = "events.out.tfevents.*"


@dataclass(frozen=True)
class Curve:
    """A number by global step."""

    steps: Array
    """int64 [n], ascending."""
    times: Array
    """Seconds since the epoch, float64 [n]."""
    values: Array
    """float64 [n]; not all are finite."""

    def finite(self) -> "Curve":
        """The points whose values are finite."""
        kept = np.isfinite(self.values)
        return Curve(self.steps[kept], self.times[kept], self.values[kept])

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[tuple[int, float, float]]:
        """The points: step, time and value."""
        return zip(self.steps.tolist(), self.times.tolist(), self.values.tolist(), strict=True)


@dataclass(frozen=True)
class Line:
    """A curve for a picture: of each range of steps the smallest, the mean and the largest value."""

    steps: Array
    low: Array
    mean: Array
    high: Array


def read(folder: Path) -> dict[str, Curve]:
    """The curves in the event files of a folder, by tag. A file that is being written is read as far as it goes.

    A process that restores a checkpoint writes a new file, whose steps may begin below those of the file before. These
    replace the later points of that file, which the run has lost.
    """
    points: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for path in sorted(folder.glob(EVENT_FILES)):
        found: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
        plugins: dict[str, str] = {}
        for event in _events(path):
            for value in event.summary.value if event.HasField("summary") else ():
                plugins.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
                number = _scalar(value, plugins[value.tag])
                if number is not None:
                    found[value.tag].append((event.step, event.wall_time, number))
        for tag, new in found.items():
            points[tag] += new
    return {tag: _curve(each) for tag, each in points.items()}


def read_below(folder: Path) -> dict[str, Curve]:
    """The curves in the event files of a folder and of those in it, by the path of their folder and their tag."""
    found = {}
    for each in sorted({file.parent for file in event_files(folder)}):
        place = each.relative_to(folder).as_posix()
        found.update({tag if place == "." else f"{place}/{tag}": curve for tag, curve in read(each).items()})
    return found


def event_files(folder: Path) -> list[Path]:
    """TensorBoard's event files in a folder and in those in it."""
    return [*folder.rglob(EVENT_FILES)]


def _events(path: Path) -> Iterator[Any]:
    """The events of a file: each is a record of its length, a checksum, its bytes and a checksum, as in a TFRecord.

    TensorBoard's own reader imports TensorFlow.
    """
    from tensorboard.compat.proto.event_pb2 import Event

    with path.open("rb") as file:
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", head[:8])
            if length > os.fstat(file.fileno()).st_size - file.tell() - 4:  # it is being written, or damaged
                return
            try:
                yield Event.FromString(file.read(length))
            except DecodeError:
                return
            file.read(4)


def _scalar(value: Any, plugin: str) -> float | None:
    """The number of a value of TensorFlow 1, or of `tf.summary.scalar` of TensorFlow 2; None if it is not a number."""
    from tensorboard.util import tensor_util

    if value.HasField("simple_value"):
        return float(value.simple_value)
    if plugin == "scalars" and value.HasField("tensor"):
        return float(tensor_util.make_ndarray(value.tensor).item())
    return None


def _curve(points: list[tuple[int, float, float]]) -> Curve:
    points.sort(key=lambda point: point[1])
    kept: list[tuple[int, float, float]] = []
    for point in points:
        while kept and kept[-1][0] >= point[0]:
            kept.pop()
        kept.append(point)
    columns = np.array(kept, np.float64)
    return Curve(columns[:, 0].astype(np.int64), columns[:, 1], columns[:, 2])


def shorten(curve: Curve, points: int) -> Line:
    """The finite points of a curve, or means over ranges of steps if there are more than `points`."""
    curve = curve.finite()
    size = math.ceil(len(curve) / points) if len(curve) else 1
    starts = np.arange(0, len(curve), size)
    if not len(starts):
        return Line(*(np.zeros(0) for _ in range(4)))
    counts = np.diff(np.append(starts, len(curve)))
    low, high = np.minimum.reduceat(curve.values, starts), np.maximum.reduceat(curve.values, starts)
    mean = np.add.reduceat(curve.values, starts) / counts
    steps = np.add.reduceat(curve.steps.astype(np.float64), starts) / counts
    return Line(steps, low, mean, high)
