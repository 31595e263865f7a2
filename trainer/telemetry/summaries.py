"""TensorBoard summaries: scalars, pictures and histograms."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainer.telemetry.pictures import Array, to_png
from trainer.tensorflow import tf, tf1

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 60.0
"""After a failure, for this long no summaries are written."""

BINS = 30
LARGEST_ARRAY = 100_000
"""The most values of an array in a histogram; of a larger array it has every second, third, …"""
ARRAYS = 50
"""The most arrays with a histogram."""


class SummaryWriter:
    """Writes summaries by global step to one folder. If the volume is full, training goes on without some of them."""

    def __init__(self, folder: Path) -> None:
        # Use a unique suffix: another process may create a file in this folder within the same second.
        self._folder, self._files = folder, 0
        self._writer: Any = None
        self._paused_until = 0.0
        self._try(lambda: None)

    def _open(self) -> None:
        suffix = f".{os.getpid()}" + (f".{self._files}" if self._files else "")
        self._files += 1
        self._writer = tf1.summary.FileWriter(str(self._folder), flush_secs=5, filename_suffix=suffix)
        self._writer.flush()

    def _try(self, act: Callable[[], None]) -> None:
        """Write, unless that has failed within the last minute. After a failure, start a new file."""
        if time.monotonic() < self._paused_until:
            return
        try:
            if self._writer is None:
                self._open()
            act()
        except (OSError, RuntimeError, tf.errors.OpError) as error:  # RuntimeError: of TensorFlow's writing thread
            self._writer, self._paused_until = None, time.monotonic() + PAUSE_SECONDS
            cause = str(error).partition("\n")[0]
            logger.warning(f"the curves cannot be written to {self._folder} ({cause}); they will have a gap")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the value of each scalar at this step, by name."""
        values = [tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._try(lambda: self._writer.add_summary(tf1.Summary(value=values), step))

    def write_picture(self, step: int, tag: str, pixels: Array) -> None:
        """Write a picture of bytes [height, width, channels]."""
        height, width, channels = pixels.shape
        image = tf1.Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=to_png(pixels))
        summary = tf1.Summary(value=[tf1.Summary.Value(tag=tag, image=image)])
        self._try(lambda: self._writer.add_summary(summary, step))

    def write_histograms(self, step: int, arrays: Mapping[str, Array]) -> None:
        """Write how the values of each array are distributed, of the first ARRAYS arrays."""
        values = [
            tf1.Summary.Value(tag=tag, histo=_histogram(array))
            for tag, array in list(arrays.items())[:ARRAYS]
            if array.size and np.isfinite(array).all()
        ]
        self._try(lambda: self._writer.add_summary(tf1.Summary(value=values), step))

    def flush(self) -> None:
        """Flush the written values to the file."""
        self._try(lambda: self._writer.flush())

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._try(lambda: self._writer.close())


def _histogram(array: Array) -> object:
    values = array.reshape(-1)
    values = values[:: -(-values.size // LARGEST_ARRAY)].astype(np.float64)
    counts, edges = np.histogram(values, BINS)
    return tf1.HistogramProto(
        min=values.min(),
        max=values.max(),
        num=values.size,
        sum=values.sum(),
        sum_squares=np.square(values).sum(),
        bucket_limit=edges[1:].tolist(),
        bucket=counts.tolist(),
    )
