"""The ops of one step (loss, metrics, gradients), built once and copied for each step of an execution."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.data.examples import Signature
from trainer.graph.parameters import Layout
from trainer.graph.replication import StepOutputs
from trainer.models import Model
from trainer.models.op_template import OpTemplate, of_graph
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Tensor


@dataclass(frozen=True)
class StepTemplate:
    """The ops of one step, to copy."""

    template: OpTemplate
    """From the parameter shards, the leaves of a batch, and the seed of a model that is random, to the gradients of the
    shards, the loss and the metrics."""
    shards: int
    """The number of parameter shards."""
    metrics: Sequence[str]
    """Names of the metrics."""
    is_random: bool
    """Whether a copy needs a seed."""

    def copy(self, values: Sequence[Tensor], batch: Sequence[Tensor], seed: Sequence[int] = ()) -> StepOutputs:
        """Add a copy of the ops, on the current device.

        Args:
            values: float32 [n] for each shard of the parameters.
            batch: The leaves of a batch.
            seed: Determines the random numbers, which differ in each execution of the copy.
        """
        inputs = [*values, *batch]
        if self.is_random:
            number = int(np.random.default_rng(list(seed)).integers(2**31))
            inputs.append(tf.random.uniform([2], maxval=2**30, dtype=tf.int32, seed=number))
        outputs = self.template.copy(inputs, "step_graph")
        gradients, (loss, *metrics) = outputs[: self.shards], outputs[self.shards :]
        return StepOutputs(gradients, loss, dict(zip(self.metrics, metrics, strict=True)))


def make(model: Model, layout: Layout, signature: Signature, size: int, counted: bool = False) -> StepTemplate:
    """Build the template for batches of `size` examples. With `counted`, each shard's gradients end with 1.0."""
    with tf.Graph().as_default() as graph:
        values = [tf1.placeholder(tf.float32, [numbers]) for numbers in layout.shards]
        batch = [tf1.placeholder(spec.dtype, [size, *spec.shape]) for spec in signature.specs]
        seeds = [tf1.placeholder(tf.int32, [2])] if model.is_random else []
        step = model.step(layout.unpack(values), batch, seeds[0] if seeds else None)
        outputs = [*layout.pack(step.changes, counted), step.loss, *step.metrics.values()]
    template = of_graph(graph, [*values, *batch, *seeds], outputs)
    return StepTemplate(template, len(values), list(step.metrics), model.is_random)
