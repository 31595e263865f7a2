"""Parameters of which a traced step reads only some rows, by their ids: tables, such as those of embeddings.

The graph tells them, not the layers: a parameter is a table if its only consumers are gathers along its first axis,
with ids that no parameter and no random number determines. So `keras.ops.take` is as good as an `Embedding`, and an
embedding that is also read in another way, such as by its regularizer, is none.
"""

from collections.abc import Collection, Sequence

from trainer.tensorflow import tf
from trainer.tensorflow_types import Operation, Tensor


def find(table: Tensor, others: Collection[Tensor]) -> Sequence[Operation]:
    """The gathers that read a parameter, perhaps in another type, in the order of their creation.

    Args:
        table: The parameter, [rows, dim], an input of a graph.
        others: The inputs of the graph that must not determine the ids: parameters, and the seed.

    Returns:
        Nothing if anything else reads the parameter, or if one of `others` determines the ids.
    """
    found: list[Operation] = []
    pending = [(table, op) for op in table.consumers()]
    while pending:
        read, op = pending.pop(0)
        if op.type in ("Identity", "Cast") and not op.outputs[0].consumers():
            continue
        if op.type == "Cast" and op.outputs[0].dtype.is_floating:  # as in a model with mixed precision
            pending += [(op.outputs[0], each) for each in op.outputs[0].consumers()]
            continue
        axis = tf.get_static_value(op.inputs[2]) if op.type == "GatherV2" else None
        if axis != 0 or op.inputs[0] is not read or op.get_attr("batch_dims"):
            return []
        found.append(op)
    names = {each.op.name for each in others}
    return [] if any(_inputs_of(op.inputs[1]) & names for op in found) else found


def source(tensor: Tensor) -> Tensor:
    """The tensor of which this one is the same value under other names, perhaps after effects of other ops."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _inputs_of(tensor: Tensor) -> set[str]:
    """The names of the inputs of the graph on which a tensor depends."""
    seen: set[str] = set()
    found: set[str] = set()
    pending = [tensor.op]
    while pending:
        op = pending.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        if op.type == "Placeholder":
            found.add(op.name)
        pending += [each.op for each in op.inputs] + list(op.control_inputs)
    return found
