"""The ops of one step (loss, metrics, gradients), built once and copied for each step of an execution."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.data.examples import Signature
from trainer.graph import tables
from trainer.graph.parameters import Layout, Rows
from trainer.graph.replication import StepOutputs
from trainer.models import Model, Parameter
from trainer.models.op_template import OpTemplate, of_graph
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Tensor


@dataclass(frozen=True)
class StepTemplate:
    """The ops of one step, to copy."""

    template: OpTemplate
    """From the parameter shards, the leaves of a batch, the seed of a model that is random and what `lookup` gives, to
    the gradients of the shards, the loss and the metrics."""
    shards: int
    """The number of parameter shards."""
    metrics: Sequence[str]
    """Names of the metrics."""
    is_random: bool
    """Whether a copy needs a seed."""
    lookup: OpTemplate | None = None
    """From the leaves of the batches of a step to the rows of tables that it needs of each shard, and more inputs of
    `template` for each batch. None without tables."""
    tables: int = 0
    """The number of tables."""
    servers: int = 0
    """The number of shards, the first ones, that have a part of each table."""

    def look_up(
        self, batches: Sequence[Sequence[Tensor]], devices: Sequence[str]
    ) -> tuple[Sequence[Rows], Sequence[Sequence[Tensor]]]:
        """Add the ops that find the rows of a step with these batches, on the current device.

        Args:
            batches: The leaves of each batch.
            devices: Those of the shards.

        Returns:
            The rows of each shard, and for each batch what `compute` needs to know.
        """
        if not self.lookup:
            return [() for _ in devices], [() for _ in batches]
        found = self.lookup.copy([leaf for batch in batches for leaf in batch], "lookup")
        rows, known = found[: self.tables * self.servers], found[self.tables * self.servers :]
        each = len(known) // len(batches)
        sent = [_send(rows[number :: self.servers], device) for number, device in enumerate(devices[: self.servers])]
        return (
            [*sent, *[() for _ in devices[self.servers :]]],
            [known[number * each : (number + 1) * each] for number in range(len(batches))],
        )

    def compute(
        self, values: Sequence[Tensor], batch: Sequence[Tensor], known: Sequence[Tensor], seed: Sequence[int] = ()
    ) -> StepOutputs:
        """Add a copy of the ops, on the current device.

        Args:
            values: What each shard has sent.
            batch: The leaves of a batch.
            known: What `look_up` has returned for it.
            seed: Determines the random numbers, which differ in each execution of the copy.
        """
        inputs = [*values, *batch]
        if self.is_random:
            number = int(np.random.default_rng(list(seed)).integers(2**31))
            inputs.append(tf.random.uniform([2], maxval=2**30, dtype=tf.int32, seed=number))
        outputs = self.template.copy([*inputs, *known], "step_graph")
        gradients, (loss, *metrics) = outputs[: self.shards], outputs[self.shards :]
        return StepOutputs(gradients, loss, dict(zip(self.metrics, metrics, strict=True)))


def _send(rows: Sequence[Tensor], device: str) -> Rows:
    """The rows of each table on the device of a shard, which get there in one message."""
    if len(rows) < 2:
        with tf1.device(device):
            return [tf.identity(each) for each in rows]
    sizes = tf.stack([tf.size(each, tf.int64) for each in rows])
    message = tf.concat([sizes, *rows], axis=0)
    with tf1.device(device):
        message = tf.identity(message)
        return list(tf.split(message[len(rows) :], message[: len(rows)], num=len(rows)))


def make(
    model: Model,
    layout: Layout,
    signature: Signature,
    size: int,
    counted: bool = False,
    of_tables: Mapping[str, Parameter] | None = None,
    servers: int = 1,
    batches: int = 1,
) -> StepTemplate:
    """Build the template for batches of `size` examples. With `counted`, each shard's gradients end with 1.0.

    The layout has all arrays that are not among the tables, of which the first `servers` shards have parts, and of
    which `batches` batches share the rows of a step.
    """
    of_tables = of_tables or {}
    with tf.Graph().as_default() as graph:
        values = [tf1.placeholder(tf.float32, [numbers]) for numbers in layout.shards]
        batch = [tf1.placeholder(spec.dtype, [size, *spec.shape]) for spec in signature.specs]
        seeds = [tf1.placeholder(tf.int32, [2])] if model.is_random else []
        whole = {name: tf1.placeholder(tf.float32, each.shape) for name, each in of_tables.items()}
        arrays = layout.unpack(values) | whole
        step = model.step(arrays, batch, seeds[0] if seeds else None, list(of_tables))
        outputs = [*layout.pack(step.changes, counted), step.loss, *step.metrics.values()]
    inputs = [*values, *batch, *seeds]
    if not of_tables:
        return StepTemplate(of_graph(graph, inputs, outputs), len(values), list(step.metrics), model.is_random)
    dims = {name: each.shape[1] for name, each in of_tables.items()}
    made = tables.make(graph, layout.shards, batch, inputs, outputs, dims, step.gathers, servers, batches)
    metrics, count = list(step.metrics), len(of_tables)
    return StepTemplate(made.step, len(values), metrics, model.is_random, made.lookup, count, servers)
