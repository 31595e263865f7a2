"""Ops that read the rows of tables in another way than the model does, as where they are stored."""

from collections.abc import Callable, Mapping, Sequence

from trainer.models import Parameter, gathers
from trainer.models.op_template import of_graph
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Graph, Tensor

LookUp = Callable[[str, Tensor | None, Tensor], Tensor]
"""Adds the ops that read a table by its name and ids [*shape], or all of it without ids. The result has the shape and
the type of the third argument."""


def add(
    build: Callable[[Mapping[str, Tensor], Sequence[Tensor]], Sequence[Tensor]],
    parameters: Mapping[str, Parameter],
    arrays: Mapping[str, Tensor],
    given: Sequence[Tensor],
    look_up: LookUp,
) -> tuple[Sequence[Tensor], Graph]:
    """Add the ops of a function of a model's arrays to the default graph.

    Args:
        build: Adds the ops for all arrays by name and other tensors, and returns their outputs.
        parameters: All the model's parameters, by name.
        arrays: Those that `look_up` does not read.
        given: The other tensors.
        look_up: Reads the others.

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
    ids = of_graph(graph, leaves, [op.inputs[1] for _, op in found]).copy(given, "ids") if found else []
    looked_up = [look_up(name, each, op.outputs[0]) for (name, op), each in zip(found, ids, strict=True)]
    others = [name for name in tables if name not in {name for name, _ in found}]
    dense = {**arrays, **{name: look_up(name, None, whole[name]) for name in others}}
    template = of_graph(graph, [*(whole[name] for name in dense), *leaves, *rows], outputs)
    return template.copy([*dense.values(), *given, *looked_up], "computed"), graph
