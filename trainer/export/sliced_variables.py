"""Writes the variables of a SavedModel in slices, so that large ones need not be in memory."""

from collections.abc import Mapping
from pathlib import Path

from trainer.graph.table_files import Array, StoredRows
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.private import eager_mode
from trainer.tensorflow_types import Session


class SlicedSaver(tf1.train.Saver):  # type: ignore[misc]
    """A `Saver` that writes what it is given, and not the values of the variables."""

    def __init__(self, dense: Mapping[str, Array], tables: Mapping[str, StoredRows]) -> None:
        """Add the ops to the default graph, which restore all its variables.

        Args:
            dense: Arrays by the names of their variables.
            tables: The others.
        """
        super().__init__()
        self._dense, self._tables = dense, tables

    def save(self, sess: Session, save_path: str, *_: object, **__: object) -> str:
        """Write the variables to a path."""
        parts: list[str] = []

        def add(name: str, array: Array, part: str = "") -> None:
            parts.append(f"{save_path}_part_{len(parts)}")
            tf.raw_ops.SaveV2(prefix=parts[-1], tensor_names=[name], shape_and_slices=[part], tensors=[array])

        Path(save_path).parent.mkdir(exist_ok=True)
        with eager_mode(), tf.device("/device:CPU:0"):
            for name, array in self._dense.items():
                add(name, array)
            for name, table in self._tables.items():
                rows, dim = table.shape
                for start, values in table.slices():
                    add(name, values, f"{rows} {dim} {start},{len(values)}:-")
            tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=save_path)
        return save_path
