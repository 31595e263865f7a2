"""TensorBoard's curves."""

from pathlib import Path

from trainer.tensorflow import tf1


class SummaryWriter:
    """Scalars by global step, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._writer = tf1.summary.FileWriter(str(folder), flush_secs=5)

    def write(self, step: int, **scalars: float) -> None:
        """Add a point to the curve of each name."""
        values = [tf1.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._writer.add_summary(tf1.Summary(value=values), step)

    def close(self) -> None:
        """Write out what is left."""
        self._writer.close()
