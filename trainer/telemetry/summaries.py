"""TensorBoard summaries of scalars."""

import os
from pathlib import Path

from trainer.tensorflow import tf1


class SummaryWriter:
    """Writes scalars by global step to one folder."""

    def __init__(self, folder: Path) -> None:
        # Use a unique suffix: another process may create a file in this folder within the same second.
        self._writer = tf1.summary.FileWriter(str(folder), flush_secs=5, filename_suffix=f".{os.getpid()}")

    def write(self, step: int, **scalars: float) -> None:
        """Write the value of each scalar at this step."""
        values = [tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._writer.add_summary(tf1.Summary(value=values), step)

    def flush(self) -> None:
        """Flush the written values to the file."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
