"""Ops that are built once and copied into graphs: those of a graph without variables, or of a traced function.

TensorFlow's C++ code copies a graph in a fraction of the time that Python needs to build the ops of a gradient. The
copies are plain ops, so they run as fast as ops that Python builds.
"""

import functools
import logging
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.tensorflow import tf, tf1
from trainer.tensorflow.names import any_scope
from trainer.tensorflow.private import eager_mode
from trainer.tensorflow_types import Graph, Tensor, Variable


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
        of_input = dict(zip(self.inputs, inputs, strict=True))
        used = {name.partition(":")[0] for node in self.definition.node for name in node.input}
        given = {name: each for name, each in of_input.items() if name.partition(":")[0] in used}  # others are rejected
        computed = [name for name in self.outputs if name not in of_input]
        copied = tf.graph_util.import_graph_def(self.definition, input_map=given, return_elements=computed, name=name)
        found = iter(copied)
        return [of_input[each] if each in of_input else next(found) for each in self.outputs]


def of_graph(graph: Graph, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> OpTemplate:
    """The template of what outputs need of a graph, without its inputs: its placeholders, and perhaps other tensors."""
    definition = graph.as_graph_def()
    needed = _needed(definition, {each.op.name for each in outputs}, {each.op.name for each in inputs})
    for index in reversed(range(len(definition.node))):
        node = definition.node[index]
        if node.op == "Placeholder" or node.name not in needed:  # a copy maps it to an input
            del definition.node[index]
            continue
        if "_class" in node.attr:  # colocation, perhaps with a placeholder
            del node.attr["_class"]
        if node.device:  # that of this process, as of a Python function; a copy is on the device of its task
            place = tf1.DeviceSpec.from_string(node.device)
            node.device = tf1.DeviceSpec(device_type=place.device_type, device_index=place.device_index).to_string()
    return OpTemplate(definition, [each.name for each in inputs], [each.name for each in outputs], graph)


def _needed(definition: Any, outputs: Collection[str], inputs: Collection[str]) -> set[str]:
    """The names of the nodes that these outputs need to be computed from these inputs."""
    nodes = {node.name: node for node in definition.node}
    found: set[str] = set()
    pending = [*outputs]
    while pending:
        name = pending.pop()
        if name not in found and name not in inputs:
            found.add(name)
            pending += [each.removeprefix("^").partition(":")[0] for each in nodes[name].input]
    return found


def concrete(function: Callable[..., Any], *specs: Any) -> Any:
    """The `tf.ConcreteFunction` of a function of tensors with these specs, without AutoGraph, as in Keras's `fit`."""
    with eager_mode(), any_scope():
        return tf.function(function, autograph=False).get_concrete_function(*specs)


def trace(
    function: Callable[..., Sequence[Tensor]], *specs: Any, variables: Sequence[tuple[Variable, int]] = ()
) -> OpTemplate:
    """The template of a function of tensors with these `tf.TensorSpec`s, which is traced in eager mode.

    A tensor that the function finds outside of it becomes a constant. A lookup table becomes one with the same entries,
    and a variable one with the same value.

    Args:
        function: The function.
        specs: Those of its tensors.
        variables: Variables that the function finds outside of it, each with the number of the input, float32, that has
            its value.

    Raises:
        ValueError: the function changes a table or a variable that is not among its arguments.
    """
    traced = concrete(function, *specs)
    captured = [(inner, outer) for outer, inner in traced.graph.captures]
    held = _Held.of(traced.graph.as_graph_def()) if any(outer.dtype == tf.resource for _, outer in captured) else None
    inner_names = {inner.name for inner, _ in captured}
    template = of_graph(traced.graph, [each for each in traced.inputs if each.name not in inner_names], traced.outputs)
    known = {node.name for node in template.definition.node}
    given = [(variable.handle, template.inputs[number].partition(":")[0]) for variable, number in variables]
    for inner, outer in captured:
        if inner.op.name in known:  # TensorFlow itself makes small ones constants
            continue
        with eager_mode():
            if held and outer.dtype == tf.resource:
                source = next((name for handle, name in given if handle is outer), None)
                held.add(template.definition, inner.op.name, outer, source)
            else:
                _add_constant(template.definition, inner.op.name, outer)
    return template


logger = logging.getLogger(__name__)

CHANGES = (
    "LookupTableInsertV2",
    "LookupTableRemoveV2",
    "AssignVariableOp",
    "AssignAddVariableOp",
    "AssignSubVariableOp",
)
"""Ops that change a table or a variable."""


@dataclass(frozen=True)
class _Held:
    """What the lookup tables and variables hold that a traced function finds outside of it."""

    entries: Sequence[tuple[int, int]]
    """The types of the keys and of the values of each lookup in the function."""

    @classmethod
    def of(cls, definition: Any) -> "_Held":
        """That of the function with this graph.

        Raises:
            ValueError: it changes them.
        """
        nodes = [*definition.node, *(node for each in definition.library.function for node in each.node_def)]
        if changing := [node.name for node in nodes if node.op in CHANGES]:
            raise ValueError(
                f"{changing[0]} changes a table or a variable that is not a weight; fill tables before the training, "
                "and make variables by add_weight()"
            )
        finds = [node.attr for node in nodes if node.op == "LookupTableFindV2"]
        return cls(sorted({(each["Tin"].type, each["Tout"].type) for each in finds}))

    def add(self, definition: Any, name: str, handle: Tensor, source: str | None) -> None:
        """Add a table or a variable, which each use fills.

        It has the same content; a variable with a `source`, the name of a node, has the value of that.
        """
        for keys, values in self.entries:
            if not _has_types(handle, keys, values):
                continue
            found = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=keys, Tvalues=values)
            _add_constant(definition, f"{name}/keys", found.keys)
            _add_constant(definition, f"{name}/values", found.values)
            made = _add_node(definition, "HashTableV2", f"{name}/held", [], key_dtype=keys, value_dtype=values)
            _add_node(
                definition,
                "InitializeTableV2",
                f"{name}/fill",
                [f"{name}/held", f"{name}/keys", f"{name}/values"],
                Tkey=keys,
                Tval=values,
            )
            break
        else:
            dtype = tf.as_dtype(handle._handle_data.shape_and_type[0].dtype)
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            if source:
                types = {"SrcT": tf.float32.as_datatype_enum, "DstT": dtype.as_datatype_enum}
                _add_node(definition, "Cast", f"{name}/value", [source], **types)
            else:
                _say_constant(name)
                _add_constant(definition, f"{name}/value", value)
            made = _add_node(definition, "VarHandleOp", f"{name}/held", [], dtype=dtype.as_datatype_enum)
            made.attr["shape"].shape.CopyFrom(value.shape.as_proto())
            _add_node(
                definition,
                "AssignVariableOp",
                f"{name}/fill",
                [f"{name}/held", f"{name}/value"],
                dtype=dtype.as_datatype_enum,
            )
        made.attr["shared_name"].s = uuid.uuid4().hex.encode()
        _add_node(definition, "Identity", name, [f"{name}/held", f"^{name}/fill"], T=tf.resource.as_datatype_enum)


def _has_types(handle: Tensor, keys: int, values: int) -> bool:
    """Whether this is a table with keys and values of these types. An export with others would end the process."""
    nothing, default = (tf.zeros(shape, tf.as_dtype(each)) for shape, each in (([0], keys), ([], values)))
    try:
        tf.raw_ops.LookupTableFindV2(table_handle=handle, keys=nothing, default_value=default)
    except tf.errors.InvalidArgumentError:
        return False
    return True


@functools.cache
def _say_constant(name: str) -> None:
    logger.info(f"the variable that {name} reads is not a weight of the model, so its value stays as it is")


def _add_node(definition: Any, op: str, name: str, inputs: Sequence[str], **types: int) -> Any:
    """Add a node with these attributes, which are types."""
    node = definition.node.add(op=op, name=name, input=inputs)
    for key, value in types.items():
        node.attr[key].type = value
    return node


def _add_constant(definition: Any, name: str, value: Tensor) -> None:
    node = definition.node.add(op="Const", name=name)
    node.attr["dtype"].type = value.dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value.numpy(), value.dtype))
