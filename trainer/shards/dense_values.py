"""Reads the dense parameters for Keras's callbacks, and adds what these have changed."""

from collections.abc import Mapping, Sequence

import numpy as np

from trainer.data.examples import Array
from trainer.shards.parameters import Layout, Shard
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Session, Tensor


class DenseValues:
    """Ops on all parameters but for tables."""

    def __init__(self, layout: Layout, shards: Sequence[Shard]) -> None:
        """Add the ops to the default graph, on the current device."""
        self._layout = layout
        values = []
        for shard in shards:
            with tf1.device(shard.device):
                values.append(shard.read_parameters())
        self._read: Mapping[str, Tensor] = layout.unpack(values)
        self._given = [tf1.placeholder(tf.float32, [size]) for size in layout.shards]
        self._add = tf.group(*[_add(shard, given) for shard, given in zip(shards, self._given, strict=True)])

    def read(self, session: Session) -> dict[str, Array]:
        """The parameters by name."""
        return dict(session.run(self._read))

    def add(self, session: Session, differences: Mapping[str, Array]) -> None:
        """Add differences to the parameters with these names."""
        flat = [
            (differences[name] if name in differences else np.zeros(shape)).astype(np.float32).ravel()
            for name, shape in self._layout.shapes.items()
        ]
        parts = np.split(np.concatenate(flat), np.cumsum(self._layout.shards)[:-1])
        session.run(self._add, dict(zip(self._given, parts, strict=True)))


def _add(shard: Shard, difference: Tensor) -> Operation:
    with tf1.device(shard.device):
        parts = zip(shard.parameters, shard.split(difference), strict=True)
        return tf.group(*[each.assign_add(part, use_locking=True, read_value=False) for each, part in parts])
