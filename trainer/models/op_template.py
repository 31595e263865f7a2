"""Ops that are built once and copied into graphs: those of a graph without variables, or of a traced function.

TensorFlow's C++ code copies a graph in a fraction of the time that Python needs to build the ops of a gradient. The
copies are plain ops, so they run as fast as ops that Python builds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow.python.eager import context  # not public API; it traces although this package builds graphs

from trainer.tensorflow import tf
from trainer.tensorflow_types import Graph, Tensor


@dataclass(frozen=True)
class OpTemplate:
    """Ops to copy."""

    definition: Any
    """A `GraphDef` without its placeholders."""
    inputs: Sequence[str]
    """Names of the inputs."""
    outputs: Sequence[str]
    """Names of the outputs."""
    origin: Graph
    """The source graph. It owns the Python functions of the ops (`tf.numpy_function`), so keep it while copies run."""

    @property
    def ops(self) -> int:
        """The number of ops of one copy."""
        return len(self.definition.node)

    def copy(self, inputs: Sequence[Tensor], name: str) -> list[Tensor]:
        """Add a copy of the ops to the default graph, on the current device, and return its outputs."""
        used = {name.partition(":")[0] for node in self.definition.node for name in node.input}
        given = {
            name: tensor
            for name, tensor in zip(self.inputs, inputs, strict=True)
            if name.partition(":")[0] in used  # TensorFlow rejects the others
        }
        return list(
            tf.graph_util.import_graph_def(self.definition, input_map=given, return_elements=self.outputs, name=name)
        )


def of_graph(graph: Graph, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> OpTemplate:
    """The template of a graph, all of whose placeholders are inputs."""
    definition = graph.as_graph_def()
    for index in reversed(range(len(definition.node))):
        node = definition.node[index]
        if node.op == "Placeholder":  # a copy maps it to an input
            del definition.node[index]
        elif "_class" in node.attr:  # colocation, perhaps with a placeholder
            del node.attr["_class"]
    return OpTemplate(definition, [each.name for each in inputs], [each.name for each in outputs], graph)


def trace(function: Callable[..., Sequence[Tensor]], *specs: Any) -> OpTemplate:
    """The template of a function of tensors with these `tf.TensorSpec`s, which is traced in eager mode.

    A tensor that the function finds outside of it, such as a table that a layer has made, becomes a constant.

    Raises:
        ValueError: the function uses variables or tables that are not among its arguments.
    """
    with context.eager_mode():
        traced = tf.function(function).get_concrete_function(*specs)
    captured = [(inner, outer) for outer, inner in traced.graph.captures]
    others = [inner for inner, outer in captured if outer.dtype in (tf.resource, tf.variant)]
    if others:
        names = ", ".join(sorted({"/".join(str(each.name).split("/")[:2]) for each in others}))
        raise ValueError(f"it uses tables or variables that are not weights ({names}); move lookups into the data")
    inner_names = {inner.name for inner, _ in captured}
    template = of_graph(traced.graph, [each for each in traced.inputs if each.name not in inner_names], traced.outputs)
    known = {node.name for node in template.definition.node}
    for inner, outer in captured:
        if inner.op.name in known:  # TensorFlow itself makes small ones constants
            continue
        node = template.definition.node.add(op="Const", name=inner.op.name)
        with context.eager_mode():
            value = outer.numpy()
        node.attr["dtype"].type = outer.dtype.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
    return template
