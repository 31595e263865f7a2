"""TensorBoard's curves."""

import os
from pathlib import Path

from trainer.tensorflow import tf1


class SummaryWriter:
    """Scalars by global step, in one folder."""

    def __init__(self, folder: Path) -> None:
        # A name of its own, as another process may write into the folder within the same second.
        self._writer = tf1.summary.FileWriter(str(folder), flush_secs=5, filename_suffix=f".{os.getpid()}")

    def write(self, step: int, **scalars: float) -> None:
        """Add a point to the curve of each name."""
        values = [tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._writer.add_summary(tf1.Summary(value=values), step)

    def flush(self) -> None:
        """Let readers see what was added."""
        self._writer.flush()

    def close(self) -> None:
        """Write out what is left."""
        self._writer.close()
