"""The variables of an exported model, whose tables are written in slices.

A table that grows is a matrix of its rows in the order of their ids, and these, NAME/ids: a lookup is a binary search,
so that a program which loads the model needs no op of ours, and no hash table in memory. Other ids read zeros.
A server that follows a run puts the rows of new ids into NAME/new_rows and NAME/new_ids, in the order of these.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trainer.checkpoint.sliced_saver import SlicedSaver
from trainer.checkpoint.table_files import Array, DynamicRows, StoredRows
from trainer.dynamic.ids import NO_ID
from trainer.evaluate import stored_tables
from trainer.export.export_folder import IDS, NEW_IDS, NEW_ROWS
from trainer.models import Parameter
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.private import without_op_callbacks
from trainer.tensorflow_types import Graph, Tensor, Variable


def create_variable(name: str, shape: Sequence[int | None], dtype: object = tf.float32) -> Variable:
    """Add a variable to the default graph. Its initial value is a placeholder."""
    value = tf1.placeholder(dtype, shape)
    with without_op_callbacks():  # with them, TensorFlow's saver does not know a variable
        return tf1.get_variable(name, initializer=value, use_resource=True, validate_shape=None not in shape)


class ExportedTables:
    """The variables, in the default graph."""

    def __init__(self, parameters: Mapping[str, Parameter], tables: Mapping[str, StoredRows]) -> None:
        """Add variables for parameters, of which some are tables."""
        self._parameters, self._tables = parameters, tables
        self._growing = {name: each for name, each in tables.items() if isinstance(each, DynamicRows)}
        shapes = {name: tables[name].shape if name in tables else each.shape for name, each in parameters.items()}
        self._variables = {name: create_variable(name, shape) for name, shape in shapes.items()}
        growing = self._growing.items()
        self._ids = {name: create_variable(name + IDS, [len(each.ids)], tf.int64) for name, each in growing}
        self._new_ids = {name: create_variable(name + NEW_IDS, [None], tf.int64) for name in self._growing}
        self._new_rows = {name: create_variable(name + NEW_ROWS, [None, each.shape[1]]) for name, each in growing}
        self._kept: list[Graph] = []

    def add(
        self, build: Callable[[Mapping[str, Tensor], Sequence[Tensor]], Sequence[Tensor]], given: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Add the ops of a function of the arrays and of other tensors, and return its outputs."""
        arrays = {name: each.read_value() for name, each in self._variables.items() if name not in self._growing}
        if not self._growing:
            return build(arrays, given)
        found, kept = stored_tables.add(build, self._parameters, arrays, given, self._look_up)
        self._kept.append(kept)
        return found

    def _look_up(self, name: str, ids: Tensor | None, wanted: Tensor) -> Tensor:
        """Read a table that grows."""
        if ids is None:  # these outputs do not depend on it
            return tf.zeros(wanted.shape, wanted.dtype)
        flat = tf.reshape(ids, [-1])
        found = _find(self._new_ids[name], self._new_rows[name], flat)
        if len(self._growing[name].ids):
            found += _find(self._ids[name], self._variables[name], flat)
        return tf.cast(tf.reshape(found, tf.concat([tf.shape(ids), tf.shape(found)[1:]], axis=0)), wanted.dtype)

    def saver(self, dense: Mapping[str, Array]) -> SlicedSaver:
        """What writes the variables: the tables, and these other arrays by name."""
        of = {name: each.op.name for name, each in self._variables.items()}
        whole = {of[name]: value for name, value in dense.items()}
        for name, each in self._growing.items():
            whole |= {self._ids[name].op.name: each.ids, self._new_ids[name].op.name: np.array([NO_ID])}
            whole[self._new_rows[name].op.name] = np.zeros((1, each.shape[1]), np.float32)
        whole |= {of[name]: each.between(0, 0) for name, each in self._tables.items() if not each.shape[0]}
        return SlicedSaver(whole, {of[name]: each for name, each in self._tables.items() if each.shape[0]})


def _find(known: Variable, rows: Variable, ids: Tensor) -> Tensor:
    """The rows of ids, float32 [n, dim]; zeros where they are not known. The known ids, at least one, are ascending."""
    keys = known.read_value()
    places = tf.minimum(tf.searchsorted(keys, ids, out_type=tf.int64), tf.size(keys, tf.int64) - 1)
    is_known = tf.cast(tf.equal(tf.gather(keys, places), ids), tf.float32)[:, None]
    return rows.sparse_read(places) * is_known
