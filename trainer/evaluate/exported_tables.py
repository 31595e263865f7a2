"""The variables of an exported model, whose tables are written in slices.

A table that grows is a matrix of its rows in the order of their ids, and these, NAME/ids: a lookup is a binary search,
so that a program which loads the model needs no op of ours, and no hash table in memory. Other ids read zeros.
"""

from collections.abc import Callable, Mapping, Sequence

from trainer.checkpoint.sliced_saver import SlicedSaver
from trainer.checkpoint.table_files import Array, DynamicRows, StoredRows
from trainer.evaluate import stored_tables
from trainer.models import Parameter
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.private import without_op_callbacks
from trainer.tensorflow_types import Graph, Tensor, Variable


def create_variables(shapes: Mapping[str, Sequence[int]], dtype: object = tf.float32) -> dict[str, Variable]:
    """Add variables of these names to the default graph. Their initial values are placeholders."""
    with without_op_callbacks():  # with them, TensorFlow's saver does not know a variable
        return {
            name: tf1.get_variable(name, initializer=tf1.placeholder(dtype, shape), use_resource=True)
            for name, shape in shapes.items()
        }


class ExportedTables:
    """The variables, in the default graph."""

    def __init__(self, parameters: Mapping[str, Parameter], tables: Mapping[str, StoredRows]) -> None:
        """Add variables for parameters, of which some are tables."""
        self._parameters, self._tables = parameters, tables
        self._growing = {name: each for name, each in tables.items() if isinstance(each, DynamicRows)}
        shapes = {name: tables[name].shape if name in tables else each.shape for name, each in parameters.items()}
        self._variables = create_variables(shapes)
        self._ids = {
            name: create_variables({f"{name}/ids": [len(each.ids)]}, tf.int64)[f"{name}/ids"]
            for name, each in self._growing.items()
        }
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
        assert ids is not None  # noqa: S101 - only its layer reads it
        known, rows = self._ids[name].read_value(), self._variables[name]
        if not len(self._growing[name].ids):
            return tf.zeros(tf.concat([tf.shape(ids), [rows.shape[1]]], axis=0), wanted.dtype)
        flat = tf.reshape(ids, [-1])
        places = tf.minimum(tf.searchsorted(known, flat, out_type=tf.int64), len(self._growing[name].ids) - 1)
        is_known = tf.cast(tf.equal(tf.gather(known, places), flat), tf.float32)[:, None]
        found = rows.sparse_read(places) * is_known
        return tf.cast(tf.reshape(found, tf.concat([tf.shape(ids), [rows.shape[1]]], axis=0)), wanted.dtype)

    def saver(self, dense: Mapping[str, Array]) -> SlicedSaver:
        """What writes the variables: the tables, and these other arrays by name."""
        of = {name: each.op.name for name, each in self._variables.items()}
        whole = {of[name]: value for name, value in dense.items()}
        whole |= {self._ids[name].op.name: each.ids for name, each in self._growing.items()}
        return SlicedSaver(whole, {of[name]: each for name, each in self._tables.items()})
