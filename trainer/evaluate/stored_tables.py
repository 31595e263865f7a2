"""A prediction that reads the rows of tables where they are stored, so that no table is in memory."""

from collections.abc import Callable, Mapping, Sequence

from trainer.checkpoint.table_files import Array
from trainer.models import Model, Parameter, Prediction, gathers
from trainer.models.op_template import of_graph
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Graph, Tensor


def predict(
    model: Model,
    parameters: Mapping[str, Parameter],
    arrays: Mapping[str, Tensor],
    batch: Sequence[Tensor],
    counts: Sequence[Tensor],
    read: Callable[[str, Array | None], Array],
) -> tuple[Prediction, Graph]:
    """Add the ops of a prediction to the default graph, as `Model.predict`.

    Args:
        model: The model.
        parameters: All its parameters, by name.
        arrays: Those that are no tables.
        batch: The leaves of a batch.
        counts: The state of the metrics before this batch.
        read: Returns rows of a table by their ids [*shape] as float32 [*shape, dim], or without ids all of it.

    Returns:
        The prediction, and a graph to keep as long as its ops run.
    """
    with tf.Graph().as_default() as graph:
        whole = {name: tf1.placeholder(tf.float32, each.shape) for name, each in parameters.items()}
        leaves, before = ([tf1.placeholder(each.dtype, each.shape) for each in given] for given in (batch, counts))
        traced = model.predict(whole, leaves, before)
    tables = {name: each for name, each in whole.items() if name not in arrays}
    found = [(name, op) for name, table in tables.items() for op in gathers.find(table, [*whole.values(), *before])]
    rows = [op.outputs[0] for _, op in found]
    ids = of_graph(graph, leaves, [op.inputs[1] for _, op in found], pruned=True).copy(batch, "ids") if found else []

    def look_up(name: str, given: Sequence[Tensor], wanted: Tensor) -> Tensor:
        looked_up = tf.numpy_function(lambda *ids: read(name, *(ids or [None])), given, tf.float32)
        return tf.cast(tf.ensure_shape(looked_up, wanted.shape), wanted.dtype)

    looked_up = [look_up(name, [each], op.outputs[0]) for (name, op), each in zip(found, ids, strict=True)]
    others = [name for name in tables if name not in {name for name, _ in found}]
    dense = {**arrays, **{name: look_up(name, [], whole[name]) for name in others}}
    outputs = [*traced.outputs.values(), traced.loss, *traced.counts]
    template = of_graph(graph, [*(whole[name] for name in dense), *leaves, *before, *rows], outputs, pruned=True)
    copied = template.copy([*dense.values(), *batch, *counts, *looked_up], "prediction")
    count = len(traced.outputs)
    return Prediction(dict(zip(traced.outputs, copied, strict=False)), copied[count], copied[count + 1 :]), graph
