"""Tables on the parameter servers: large parameters of which a step reads and changes only some rows.

Row i of a table is row i // n of server i % n, so that frequent ids, which are often the smallest, are spread over all
of them. A step sends each server the ids of the rows that it needs, each once, and gets the rows with the dense
parameters; their gradients, summed for each row, return with the dense gradient. So a step costs what it touches, and
not what the table has. A server never reads a table as a whole except for a checkpoint: after the first update of rows
TensorFlow copies a variable for each read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.models import Gather, Parameter
from trainer.models.op_template import OpTemplate, cut, of_graph
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Graph, Tensor, Variable


@dataclass(frozen=True)
class TablePart:
    """The rows of a table on one parameter server."""

    name: str
    """That of the parameter."""
    dim: int
    """Numbers of a row."""
    values: Variable
    """float32 variable [n, dim]."""
    slots: tuple[Variable, ...]
    """float32 variables [n, dim]: the optimizer slots."""
    decays: bool
    """Whether weight decay applies."""

    @property
    def variables(self) -> list[Variable]:
        """All variables of this part."""
        return [self.values, *self.slots]


def create(
    parameters: Mapping[str, Parameter], devices: Sequence[str], slots: Mapping[str, float]
) -> list[tuple[TablePart, ...]]:
    """Add the variables of tables to the default graph, and return the parts on each of these devices.

    Args:
        parameters: The tables by name, with their initial values.
        devices: Devices of the parameter servers.
        slots: Names of the optimizer's slots, and their initial values.
    """
    count = len(devices)

    def part(name: str, parameter: Parameter, server: int) -> TablePart:
        rows, dim = parameter.shape
        shape = [len(range(server, rows, count)), dim]
        with tf1.device("/device:CPU:0"):  # of the chief
            initial = tf.numpy_function(lambda: parameter.value[server::count], [], tf.float32)
        initial = tf.ensure_shape(initial, shape)

        def variable(kind: str, value: Tensor) -> Variable:
            return tf1.get_variable(f"table_{server}_of_{count}/{name}/{kind}", initializer=value, use_resource=True)

        with tf1.device(devices[server]):
            made = [variable(slot, tf.fill(shape, value)) for slot, value in slots.items()]
            return TablePart(name, dim, variable("values", initial), tuple(made), parameter.decays)

    return [tuple(part(name, each, server) for name, each in parameters.items()) for server in range(count)]


@dataclass(frozen=True)
class TableOps:
    """The ops of a step that find the rows it needs and that compute with them, to copy."""

    lookup: OpTemplate
    """From the leaves of a batch to, for each table, the rows of each server, the places of these among all rows, and
    the positions of the looked-up ids among them."""
    step: OpTemplate
    """From what each server sends, the leaves of a batch, the seed and the places and positions, to the gradients for
    each server, the loss and the metrics."""


def make(
    graph: Graph,
    sizes: Sequence[int],
    batch: Sequence[Tensor],
    inputs: Sequence[Tensor],
    gathers: Mapping[str, Sequence[Gather]],
    outputs: Sequence[Tensor],
) -> TableOps:
    """Build the ops of a step with tables.

    Args:
        graph: The graph of a step that reads its tables as a whole.
        sizes: Elements of the dense parameters on each server.
        batch: The leaves of the batch in that graph.
        inputs: The shards of its dense parameters, the leaves and the seed.
        gathers: The lookups in it by table.
        outputs: The gradients of the shards, and others.
    """
    flat = [gather for of_table in gathers.values() for gather in of_table]
    ids = of_graph(graph, batch, [gather.ids for gather in flat], pruned=True)
    rows, gradients = [gather.rows for gather in flat], [gather.gradient for gather in flat]
    inner = cut(of_graph(graph, [*inputs, *rows], [*outputs, *gradients]), rows)
    lengths = [len(of_table) for of_table in gathers.values()]
    lookup = _lookup(ids, batch, lengths, len(sizes))
    dims = [of_table[0].rows.shape[-1] for of_table in gathers.values()]
    return TableOps(lookup, _step(inner, sizes, inputs[len(sizes) :], dims, lengths, rows))


def _lookup(ids: OpTemplate, batch: Sequence[Tensor], lengths: Sequence[int], servers: int) -> OpTemplate:
    """The ops that find the rows."""
    with tf.Graph().as_default() as graph:
        leaves = [tf1.placeholder(each.dtype, each.shape) for each in batch]
        found = [tf.cast(tf.reshape(each, [-1]), tf.int64) for each in ids.copy(leaves, "ids")]
        outputs: list[Tensor] = []
        for of_table in _grouped(found, lengths):
            unique, positions = tf.unique(tf.concat(of_table, axis=0))
            rows, places = [unique], [tf.range(tf.size(unique))]
            if servers > 1:
                owners = tf.cast(unique % servers, tf.int32)
                rows = tf.dynamic_partition(unique // servers, owners, servers)
                places = tf.dynamic_partition(places[0], owners, servers)
            outputs += [*rows, *places, positions]
    return of_graph(graph, leaves, outputs)


def _step(
    inner: OpTemplate,
    sizes: Sequence[int],
    others: Sequence[Tensor],
    dims: Sequence[int],
    lengths: Sequence[int],
    rows: Sequence[Tensor],
) -> OpTemplate:
    """The ops that compute with the rows.

    Args:
        inner: From dense parameters, batch, seed and looked-up rows to gradients of dense parameters, others, and the
            gradients of the rows.
        sizes: Elements of the dense parameters on each server.
        others: Tensors like the leaves of the batch, and the seed.
        dims: Numbers of a row of each table.
        lengths: Lookups in each table.
        rows: Tensors like the looked-up rows.
    """
    servers = range(len(sizes))
    with tf.Graph().as_default() as graph:
        messages = [tf1.placeholder(tf.float32, [None]) for _ in sizes]
        given = [tf1.placeholder(each.dtype, each.shape) for each in others]
        dense, left = [], []
        for message, size in zip(messages, sizes, strict=True):
            values = message[:size]
            values.set_shape([size])
            dense.append(values)
            left.append(message[size:])
        places, positions, pulled = [], [], []
        looked_up = _grouped(rows, lengths)
        for dim, of_table in zip(dims, looked_up, strict=True):
            own = [tf1.placeholder(tf.int32, [None]) for _ in sizes]
            received = []
            for server in servers:
                end = tf.size(own[server]) * dim
                received.append(tf.reshape(left[server][:end], [-1, dim]))
                left[server] = left[server][end:]
            table = received[0] if len(sizes) == 1 else tf.dynamic_stitch(own, received)
            place = tf1.placeholder(tf.int32, [None])
            parts = tf.split(place, [_size(each) for each in of_table])
            pulled += [
                tf.reshape(tf.gather(table, part), each.shape) for part, each in zip(parts, of_table, strict=True)
            ]
            places.append(own)
            positions.append(place)
        outputs = inner.copy([*dense, *given, *pulled], "step")
        changes, others_out = outputs[: len(sizes)], outputs[len(sizes) : len(outputs) - len(rows)]
        gradients = _grouped(outputs[len(outputs) - len(rows) :], lengths)
        sent: list[list[Tensor]] = [[change] for change in changes]
        for dim, of_table, own, place in zip(dims, gradients, places, positions, strict=True):
            joined = tf.concat([tf.reshape(each, [-1, dim]) for each in of_table], axis=0)
            count = tf.add_n([tf.size(each) for each in own])
            summed = tf.math.unsorted_segment_sum(joined, place, count)
            for server in servers:
                part = summed if len(sizes) == 1 else tf.gather(summed, own[server])
                sent[server].append(tf.reshape(part, [-1]))
        inputs = [*messages, *given]
        for own, place in zip(places, positions, strict=True):
            inputs += [*own, place]
        return of_graph(graph, inputs, [*(tf.concat(parts, axis=0) for parts in sent), *others_out])


def _size(rows: Tensor) -> int:
    """The lookups of which these are the rows, [*shape, dim]."""
    return int(rows.shape[:-1].num_elements())


def _grouped(values: Sequence[Tensor], lengths: Sequence[int]) -> list[Sequence[Tensor]]:
    """Consecutive parts of a sequence, of these lengths."""
    found, start = [], 0
    for length in lengths:
        found.append(values[start : start + length])
        start += length
    return found
