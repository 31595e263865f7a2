"""Ops that are built once and copied into graphs: those of a graph without variables, or of a traced function.

TensorFlow's C++ code copies a graph in a fraction of the time that Python needs to build the ops of a gradient. The
copies are plain ops, so they run as fast as ops that Python builds.
"""

import uuid
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

    A tensor that the function finds outside of it becomes a constant, and a lookup table one with the same entries.

    Raises:
        ValueError: the function uses variables that are not among its arguments, or changes a table.
    """
    with context.eager_mode():
        traced = tf.function(function).get_concrete_function(*specs)
    captured = [(inner, outer) for outer, inner in traced.graph.captures]
    definition = traced.graph.as_graph_def()
    tables = {inner.name: found for inner, outer in captured if (found := _read_table(outer, definition))}
    resources = [inner for inner, outer in captured if outer.dtype in (tf.resource, tf.variant)]
    others = [each for each in resources if each.name not in tables]
    if others:
        names = ", ".join(sorted({"/".join(str(each.name).split("/")[:2]) for each in others}))
        raise ValueError(f"it uses variables that are not weights ({names}); make them by add_weight()")
    inner_names = {inner.name for inner, _ in captured}
    template = of_graph(traced.graph, [each for each in traced.inputs if each.name not in inner_names], traced.outputs)
    known = {node.name for node in template.definition.node}
    for inner, outer in captured:
        if inner.op.name in known:  # TensorFlow itself makes small ones constants
            continue
        if inner.name in tables:
            _add_table(template.definition, inner.op.name, *tables[inner.name])
            continue
        with context.eager_mode():
            _add_constant(template.definition, inner.op.name, outer)
    return template


def _read_table(handle: Tensor, definition: Any) -> tuple[Tensor, Tensor] | None:
    """The keys and the values of a lookup table that a graph uses; None if the handle is not that of a table.

    Raises:
        ValueError: the graph changes a table.
    """
    if handle.dtype != tf.resource:
        return None
    nodes = [*definition.node, *(node for each in definition.library.function for node in each.node_def)]
    if any(node.op in ("LookupTableInsertV2", "LookupTableRemoveV2") for node in nodes):
        raise ValueError("it changes a lookup table; fill tables before the training")
    finds = {(each.attr["Tin"].type, each.attr["Tout"].type) for each in nodes if each.op == "LookupTableFindV2"}
    for keys, values in finds:
        try:
            with context.eager_mode():
                found = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=keys, Tvalues=values)
            return found.keys, found.values
        except tf.errors.InvalidArgumentError:  # a table of other types, or a variable
            continue
    return None


def _add_table(definition: Any, name: str, keys: Tensor, values: Tensor) -> None:
    """Add a lookup table that its first use fills. TensorFlow does nothing when it is filled again."""
    with context.eager_mode():
        _add_constant(definition, f"{name}/keys", keys)
        _add_constant(definition, f"{name}/values", values)
    types = {"key": keys.dtype.as_datatype_enum, "value": values.dtype.as_datatype_enum}
    table = definition.node.add(op="HashTableV2", name=f"{name}/table")
    table.attr["shared_name"].s = uuid.uuid4().bytes.hex().encode()
    fill = definition.node.add(op="InitializeTableV2", name=f"{name}/fill")
    fill.input.extend([f"{name}/table", f"{name}/keys", f"{name}/values"])
    for kind, dtype in types.items():
        table.attr[f"{kind}_dtype"].type = dtype
        fill.attr["Tkey" if kind == "key" else "Tval"].type = dtype
    filled = definition.node.add(op="Identity", name=name, input=[f"{name}/table", f"^{name}/fill"])
    filled.attr["T"].type = tf.resource.as_datatype_enum


def _add_constant(definition: Any, name: str, value: Tensor) -> None:
    node = definition.node.add(op="Const", name=name)
    node.attr["dtype"].type = value.dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value.numpy(), value.dtype))
