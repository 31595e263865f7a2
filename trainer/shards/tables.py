"""Tables on the parameter servers: large parameters of which a step reads and changes only some rows.

Row i of a table is row i // n of server i % n, so that frequent ids, which are often the smallest, are spread over all
of them. A step sends each server the ids of the rows that it needs, each once, and gets the rows with the dense
parameters; their gradients, summed for each row, return with the dense gradient. So a step costs what it touches, and
not what the table has. A server never reads a table as a whole except for a checkpoint: after the first update of rows
TensorFlow copies a variable for each read.

A table that grows has rows for the ids that it has seen: id i is on server i modulo n, which finds its row.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.kernels import row_ops
from trainer.kernels.dynamic_table import DynamicTable
from trainer.kernels.row_update import RowUpdate
from trainer.models import Gather, Parameter
from trainer.models.op_template import OpTemplate, of_graph
from trainer.shards.dynamic_part import DynamicPart
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Graph, Operation, Tensor, Variable

TABLE_ROWS = "table_rows"
"""The name of the ops that read rows of tables, for errors."""


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
    periods: Variable
    """int32 variable [n]: the period of the last update of each row, 0 for none."""
    period: Variable
    """int32 variable: the present period; see `trainer.checkpoint.table_saver`."""
    run_id: Variable
    """string variable: the run that it belongs to."""

    @property
    def rows(self) -> int:
        """How many there are."""
        return int(self.values.shape[0])

    @property
    def variables(self) -> list[Variable]:
        """The values, and the slots."""
        return [self.values, *self.slots]

    @property
    def all_variables(self) -> list[Variable]:
        """All variables of this part."""
        return [*self.variables, self.periods, self.period, self.run_id]

    def initialize(self) -> list[Operation]:
        """Add the ops that it needs beside those that initialize its variables."""
        return []

    def is_initialized(self) -> list[Tensor]:
        """Add the ops, bool scalars, that tell whether these have run."""
        return []

    def read(self, rows: Tensor, updates: Tensor) -> Tensor:
        """Add the op that reads rows, int64 [u], flat, after this number of updates of the shard, int64."""
        return join_rows(self.values, rows)

    def update(
        self, by_row: RowUpdate, rows: Tensor, gradients: Tensor, rate: Tensor | float, count: Tensor
    ) -> Operation:
        """Add the op that updates these rows by an optimizer, and marks them; see `RowUpdate.add`."""
        period = self.period.read_value()
        return by_row.add(self.values, self.slots, self.periods, period, rows, gradients, rate, count, self.decays)

    def mark(self, rows: Tensor) -> Operation:
        """Add the op that marks these rows, int64 [u], as updated in the present period."""
        period = tf.fill(tf.shape(rows), self.period.read_value())
        return tf.raw_ops.ResourceScatterUpdate(resource=self.periods.handle, indices=rows, updates=period)


Part = TablePart | DynamicPart


def join_rows(variable: Variable, rows: Tensor) -> Tensor:
    """Add the op that reads these rows of a variable [n, dim], flat."""
    return tf.reshape(variable.sparse_read(rows, name=TABLE_ROWS), [-1])


def create(
    parameters: Mapping[str, Parameter], devices: Sequence[str], slots: Mapping[str, float], run: str
) -> list[tuple[Part, ...]]:
    """Add the variables of tables to the default graph, and return the parts on each of these devices.

    Args:
        parameters: The tables by name, with their initial values.
        devices: Devices of the parameter servers.
        slots: Names of the optimizer's slots, and their initial values.
        run: Unique identifier of the run.
    """
    count = len(devices)

    def part(name: str, parameter: Parameter, server: int) -> Part:
        rows, dim = parameter.shape
        shape = [len(range(server, rows, count)), dim]
        prefix = f"table_{server}_of_{count}/{name}"

        def variable(kind: str, value: Tensor) -> Variable:
            return tf1.get_variable(f"{prefix}/{kind}", initializer=value, use_resource=True)

        if growth := parameter.growth:
            with tf1.device(devices[server]):
                of_run = variable("run_id", tf.constant(run))
            initial = tuple(slots.values())
            return DynamicPart(
                name, dim, max(1, rows // count), growth, initial, parameter.decays, DynamicTable(prefix), of_run
            )
        given = None if parameter.value is None else _given(parameter, shape, server, count)
        with tf1.device(devices[server]):
            initial = _draw(parameter, shape, server) if given is None else given
            made = [variable(slot, tf.fill(shape, value)) for slot, value in slots.items()]
            values, marks = variable("values", initial), tf.zeros(shape[:1], tf.int32)
            periods, period = variable("periods", marks), variable("period", tf.zeros([], tf.int32))
            of_run = variable("run_id", tf.constant(run))
            return TablePart(name, dim, values, tuple(made), parameter.decays, periods, period, of_run)

    return [tuple(part(name, each, server) for name, each in parameters.items()) for server in range(count)]


def _draw(parameter: Parameter, shape: Sequence[int], server: int) -> Tensor:
    """Draw the initial values of a part, on the current device."""
    (drawn,) = parameter.draw.template(tuple(shape), server).copy([], "draw")
    return drawn


def _given(parameter: Parameter, shape: Sequence[int], server: int, servers: int) -> Tensor:
    """The initial values of a part, from the memory of the process that builds the graph, on whose device it is."""
    with tf1.device("/device:CPU:0"):
        given = tf.numpy_function(lambda: parameter.value[server::servers], [], tf.float32)
        return tf.ensure_shape(given, shape)


@dataclass(frozen=True)
class TableOps:
    """The ops of a step that find the rows it needs and that compute with them, to copy."""

    lookup: OpTemplate
    """From the leaves of one batch after the other to the rows of each server that they need, for one table after the
    other, and what `step` needs to know about them, for one batch after the other."""
    step: OpTemplate
    """From what each server sends, the leaves of a batch, the seed and the second part of `lookup`, to the gradients
    for each server, the loss and the metrics."""


def make(
    graph: Graph,
    sizes: Sequence[int],
    batch: Sequence[Tensor],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    tables: Mapping[str, Parameter],
    gathers: Mapping[str, Sequence[Gather]],
    servers: int,
    batches: int = 1,
) -> TableOps:
    """Build the ops of a step with tables.

    Args:
        graph: The graph of a step that reads its tables as a whole.
        sizes: Elements of the dense parameters in each shard.
        batch: The leaves of the batch in that graph.
        inputs: The shards of its dense parameters, the leaves and the seed.
        outputs: The gradients of the shards, and others.
        tables: The tables by name.
        gathers: The lookups in each.
        servers: The number of shards, the first ones, that have a part of each table.
        batches: How many batches share what is read.
    """
    by_table = [gathers[name] for name in tables]
    flat = [gather for of_table in by_table for gather in of_table]
    rows, gradients = [gather.rows for gather in flat], [gather.gradient for gather in flat]
    ids = of_graph(graph, batch, [gather.ids for gather in flat])
    inner = of_graph(graph, [*inputs, *rows], [*outputs, *gradients])
    pairs = [*zip(tables.values(), by_table, strict=True)]
    lookups = [(table.shape[1], [gather.rows.dtype for gather in of_table]) for table, of_table in pairs]
    kinds = [(len(of_table), table.growth is not None) for table, of_table in pairs]
    lookup = _lookup(ids, batch, kinds, servers, batches)
    return TableOps(lookup, _step(inner, sizes, inputs[len(sizes) :], lookups, servers))


def _lookup(
    ids: OpTemplate, batch: Sequence[Tensor], kinds: Sequence[tuple[int, bool]], servers: int, batches: int
) -> OpTemplate:
    """The ops that find the rows of some batches. `kinds` has the lookups in each table, and whether it grows.

    The outputs are for each table the rows of each server, int64 [u], or the ids of one that grows; then for each
    batch, and in it for each table, the places of these among all of its rows, int32 [u] for each server, and where
    they are looked up, int32 like the ids of each lookup.
    """
    with tf.Graph().as_default() as graph:
        leaves = [[tf1.placeholder(each.dtype, each.shape) for each in batch] for _ in range(batches)]
        found = [ids.copy(each, "ids") for each in leaves]
        sent: list[Tensor] = []
        known: list[list[Tensor]] = [[] for _ in leaves]
        firsts = itertools.accumulate([count for count, _ in kinds], initial=0)
        for first, (count, grows) in zip(firsts, kinds, strict=False):
            own = [each for of_batch in found for each in of_batch[first : first + count]]
            flat = [tf.cast(tf.reshape(each, [-1]), tf.int64) for each in own]
            unique, positions = row_ops.distinct(tf.concat(flat, axis=0))
            rows, places = [unique], [tf.range(tf.size(unique))]
            if servers > 1:
                owners = tf.cast(unique % servers, tf.int32)
                rows = tf.dynamic_partition(unique if grows else unique // servers, owners, servers)
                places = tf.dynamic_partition(places[0], owners, servers)
            parts = tf.split(positions, tf.stack([tf.size(each) for each in flat]), num=len(flat))
            shaped = [tf.reshape(part, tf.shape(each)) for part, each in zip(parts, own, strict=True)]
            sent += rows
            for number, of_batch in enumerate(known):
                of_batch += [*places, *shaped[number * count : (number + 1) * count]]
    given = [leaf for of_batch in leaves for leaf in of_batch]
    return of_graph(graph, given, [*sent, *(each for of_batch in known for each in of_batch)])


def _step(
    inner: OpTemplate,
    sizes: Sequence[int],
    others: Sequence[Tensor],
    lookups: Sequence[tuple[int, Sequence[Any]]],
    servers: int,
) -> OpTemplate:
    """The ops that compute with the rows.

    Args:
        inner: From dense parameters, batch, seed and looked-up rows to gradients of dense parameters, others, and the
            gradients of the rows.
        sizes: Elements of the dense parameters in each shard.
        others: Tensors like the leaves of the batch, and the seed.
        lookups: For each table the numbers of a row, and for each lookup the type in which the model reads it.
        servers: The number of shards, the first ones, that have a part of each table.
    """
    total = sum(len(types) for _, types in lookups)
    with tf.Graph().as_default() as graph:
        messages = [tf1.placeholder(tf.float32, [None]) for _ in sizes]
        given = [tf1.placeholder(each.dtype, each.shape) for each in others]
        known = [
            ([tf1.placeholder(tf.int32, [None]) for _ in range(servers)], [tf1.placeholder(tf.int32) for _ in types])
            for _, types in lookups
        ]
        dense: list[Tensor] = []
        received: list[list[Tensor]] = [[] for _ in lookups]
        for server, (message, size) in enumerate(zip(messages[:servers], sizes[:servers], strict=True)):
            ends = [tf.size(places[server]) * dim for (dim, _), (places, _) in zip(lookups, known, strict=True)]
            first, *parts = tf.split(message, tf.stack([size, *ends]), num=1 + len(ends))
            dense.append(tf.ensure_shape(first, [size]))
            for (dim, _), own, part in zip(lookups, received, parts, strict=True):
                own.append(tf.reshape(part, [-1, dim]))
        dense += [tf.ensure_shape(each, [size]) for each, size in zip(messages[servers:], sizes[servers:], strict=True)]
        pulled: list[Tensor] = []
        for (_, types), (places, positions), own in zip(lookups, known, received, strict=True):
            rows = own[0] if servers == 1 else tf.dynamic_stitch(places, own)
            pulled += [tf.cast(tf.gather(rows, each), dtype) for each, dtype in zip(positions, types, strict=True)]
        outputs = inner.copy([*dense, *given, *pulled], "step")
        rest = len(outputs) - total
        changes, measured, gradients = outputs[: len(sizes)], outputs[len(sizes) : rest], outputs[rest:]
        sent = [[change] for change in changes]
        for (dim, types), (places, positions) in zip(lookups, known, strict=True):
            own, gradients = gradients[: len(types)], gradients[len(types) :]
            summed = row_ops.sums(own, positions, tf.add_n([tf.size(each) for each in places]), dim)
            for server, place in enumerate(places):
                part = summed if servers == 1 else tf.gather(summed, place)
                sent[server].append(tf.reshape(part, [-1]))
        inputs = [*messages, *given, *(each for places, positions in known for each in (*places, *positions))]
        return of_graph(graph, inputs, [*(tf.concat(parts, axis=0) for parts in sent), *measured])
