"""Writes the variables of a SavedModel in slices, so that large ones need not be in memory."""

from collections.abc import Mapping
from pathlib import Path

from trainer.checkpoint.table_files import Array, StoredRows
from trainer.tensorflow import tf, tf1
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
        Path(save_path).parent.mkdir(exist_ok=True)
        with tf.Graph().as_default(), tf1.device("/device:CPU:0"), tf1.Session() as session:
            path, name, part = (tf1.placeholder(tf.string, []) for _ in range(3))
            values, paths = tf1.placeholder(tf.float32), tf1.placeholder(tf.string, [None])
            write = tf.raw_ops.SaveV2(prefix=path, tensor_names=[name], shape_and_slices=[part], tensors=[values])
            merge = tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=paths, destination_prefix=save_path)
            parts = []
            if self._dense:
                parts.append(f"{save_path}_dense")
                whole = {name: tf1.placeholder(each.dtype) for name, each in self._dense.items()}
                write_dense = tf.raw_ops.SaveV2(
                    prefix=parts[0],
                    tensor_names=list(whole),
                    shape_and_slices=[""] * len(whole),
                    tensors=list(whole.values()),
                )
                session.run(write_dense, {whole[each]: array for each, array in self._dense.items()})
            for of, table in self._tables.items():
                rows, dim = table.shape
                for start, found in table.slices():
                    parts.append(f"{save_path}_part_{len(parts)}")
                    where = f"{rows} {dim} {start},{len(found)}:-"
                    session.run(write, {path: parts[-1], name: of, part: where, values: found})
            session.run(merge, {paths: parts})
        return save_path
