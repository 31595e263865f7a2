"""The ops of one step (loss, metrics, gradients), built once and copied for each step of an execution."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainer.data.examples import Signature
from trainer.graph.replication import StepOutputs
from trainer.models import Gather, Model, Parameter
from trainer.models.op_template import OpTemplate, of_graph
from trainer.shards import tables
from trainer.shards.parameters import Layout, Rows
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Tensor


@dataclass(frozen=True)
class StepTemplate:
    """The ops of one step, to copy."""

    template: OpTemplate
    """From the parameter shards, the leaves of a batch, its share, the seed of a model that is random, the state of the
    metrics and what `lookup` gives, to the gradients of the shards, the loss, the metrics and their state."""
    shards: int
    """The number of parameter shards."""
    metrics: Sequence[str]
    """Names of the metrics."""
    is_random: bool
    """Whether a copy needs a seed."""
    is_weighted: bool = False
    """Whether a copy needs the share of the examples of its batch in a full one."""
    counts: int = 0
    """The number of arrays in the state of the metrics that a copy continues; 0 if each begins a new one."""
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
        self,
        values: Sequence[Tensor],
        batch: Sequence[Tensor],
        known: Sequence[Tensor],
        seed: Sequence[int] = (),
        share: Tensor | None = None,
        counts: Sequence[Tensor] = (),
    ) -> StepOutputs:
        """Add a copy of the ops, on the current device.

        Args:
            values: What each shard has sent.
            batch: The leaves of a batch.
            known: What `look_up` has returned for it.
            seed: Determines the random numbers, which differ in each execution of the copy.
            share: The share of the examples of the batch in a full one, if `is_weighted`.
            counts: The state of the metrics before this batch, if the template has `counts`.
        """
        inputs = [*values, *batch, *([share] if self.is_weighted else [])]
        if self.is_random:
            number = int(np.random.default_rng(list(seed)).integers(2**31))
            inputs.append(tf.random.uniform([2], maxval=2**30, dtype=tf.int32, seed=number))
        outputs = self.template.copy([*inputs, *counts, *known], "step_graph")
        gradients, (loss, *others) = outputs[: self.shards], outputs[self.shards :]
        metrics, after = others[: len(self.metrics)], others[len(self.metrics) :]
        return StepOutputs(gradients, loss, dict(zip(self.metrics, metrics, strict=True)), after)


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
    size: int | None,
    ends_with_weight: bool = False,
    is_weighted: bool = False,
    continues_counts: bool = False,
    of_tables: Mapping[str, Parameter] | None = None,
    servers: int = 1,
    batches: int = 1,
) -> StepTemplate:
    """Build the template of a step.

    Args:
        model: The model.
        layout: That of all arrays that are not among the tables.
        signature: That of an example.
        size: The examples of a batch; None if it varies.
        ends_with_weight: Whether each shard's gradients end with the weight of the batch: 1.0, or its share.
        is_weighted: Whether gradients are multiplied by the share of the examples in a full batch.
        continues_counts: Whether a step continues the state of the metrics.
        of_tables: The tables, by name.
        servers: The number of shards, the first ones, that have a part of each table.
        batches: How many batches share the rows of a step.
    """
    of_tables = of_tables or {}
    with tf.Graph().as_default() as graph:
        values = [tf1.placeholder(tf.float32, [numbers]) for numbers in layout.shards]
        batch = [tf1.placeholder(spec.dtype, [size, *spec.shape]) for spec in signature.specs]
        shares = [tf1.placeholder(tf.float32, [])] if is_weighted else []
        seeds = [tf1.placeholder(tf.int32, [2])] if model.is_random else []
        counts = [tf1.placeholder(each.dtype, each.shape) for each in model.no_counts] if continues_counts else []
        whole = {name: tf1.placeholder(tf.float32, each.shape) for name, each in of_tables.items()}
        arrays = layout.unpack(values) | whole
        step = model.step(arrays, batch, seeds[0] if seeds else None, list(of_tables), counts)
        packed: Sequence[Tensor] = layout.pack(step.changes, ends_with_weight)
        gathers = step.gathers
        if shares:
            packed, gathers = _weigh(packed, gathers, shares[0])
        outputs = [*packed, step.loss, *step.metrics.values(), *step.counts]
    inputs = [*values, *batch, *shares, *seeds, *counts]
    lookup, template = None, None
    if of_tables:
        made = tables.make(graph, layout.shards, batch, inputs, outputs, of_tables, gathers, servers, batches)
        lookup, template = made.lookup, made.step
    return StepTemplate(
        template or of_graph(graph, inputs, outputs),
        len(values),
        list(step.metrics),
        model.is_random,
        is_weighted,
        len(counts),
        lookup,
        len(of_tables),
        servers,
    )


def _weigh(
    packed: Sequence[Tensor], gathers: Mapping[str, Sequence[Gather]], weight: Tensor
) -> tuple[Sequence[Tensor], Mapping[str, Sequence[Gather]]]:
    """Gradients, multiplied by a weight. With the weight 0 they are 0, whatever they were."""

    def weighed(gradient: Tensor) -> Tensor:
        return tf.math.multiply_no_nan(gradient, tf.cast(weight, gradient.dtype))

    of_rows = {
        name: [replace(each, gradient=weighed(each.gradient)) for each in found] for name, found in gathers.items()
    }
    return [weighed(each) for each in packed], of_rows
