"""Ops that read the rows of tables where they are stored, so that no table is in memory."""

from collections.abc import Callable, Mapping, Sequence

from trainer.checkpoint.table_files import Array
from trainer.models import Parameter, gathers
from trainer.models.op_template import of_graph
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Graph, Tensor


def add(
    build: Callable[[Mapping[str, Tensor], Sequence[Tensor]], Sequence[Tensor]],
    parameters: Mapping[str, Parameter],
    arrays: Mapping[str, Tensor],
    given: Sequence[Tensor],
    read: Callable[[str, Array | None], Array],
) -> tuple[Sequence[Tensor], Graph]:
    """Add the ops of a function of a model's arrays to the default graph.

    Args:
        build: Adds the ops for all arrays by name and other tensors, and returns their outputs.
        parameters: All the model's parameters, by name.
        arrays: Those that are no tables.
        given: The other tensors.
        read: Returns rows of a table by their ids [*shape] as float32 [*shape, dim], or without ids all of it.

    Returns:
        The outputs, and a graph to keep as long as the ops run.
    """
    with tf.Graph().as_default() as graph:
        whole = {name: tf1.placeholder(tf.float32, each.shape) for name, each in parameters.items()}
        leaves = [tf1.placeholder(each.dtype, each.shape) for each in given]
        outputs = build(whole, leaves)
    tables = {name: each for name, each in whole.items() if name not in arrays}
    found = [(name, op) for name, table in tables.items() for op in gathers.find(table, [*whole.values()])]
    rows = [op.outputs[0] for _, op in found]
    ids = of_graph(graph, leaves, [op.inputs[1] for _, op in found], pruned=True).copy(given, "ids") if found else []

    def look_up(name: str, given: Sequence[Tensor], wanted: Tensor) -> Tensor:
        looked_up = tf.numpy_function(lambda *ids: read(name, *(ids or [None])), given, tf.float32)
        return tf.cast(tf.ensure_shape(looked_up, wanted.shape), wanted.dtype)

    looked_up = [look_up(name, [each], op.outputs[0]) for (name, op), each in zip(found, ids, strict=True)]
    others = [name for name in tables if name not in {name for name, _ in found}]
    dense = {**arrays, **{name: look_up(name, [], whole[name]) for name in others}}
    template = of_graph(graph, [*(whole[name] for name in dense), *leaves, *rows], outputs, pruned=True)
    return template.copy([*dense.values(), *given, *looked_up], "computed"), graph
