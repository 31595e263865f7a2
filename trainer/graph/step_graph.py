"""The ops of one step (loss, accuracy, gradients), built once and copied for each step of an execution."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.data.datasets import Examples
from trainer.graph.parameters import Layout
from trainer.graph.replication import StepOutputs
from trainer.keras_model import KerasModel
from trainer.models import Model, StepTensors, accuracy, cross_entropy
from trainer.op_template import OpTemplate, of_graph
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Tensor


@dataclass(frozen=True)
class StepTemplate:
    """The ops of one step, to copy."""

    template: OpTemplate
    """From the parameter shards, the images, the labels, and the seed of a model that is random, to the gradients of
    the shards, the loss and the accuracy."""
    is_random: bool
    """Whether a copy needs a seed."""

    def copy(self, values: Sequence[Tensor], images: Tensor, labels: Tensor, seed: Sequence[int] = ()) -> StepOutputs:
        """Add a copy of the ops, on the current device.

        Args:
            values: float32 [n] for each shard of the parameters.
            images: float32 [batch, ...].
            labels: int32 [batch].
            seed: Determines the random numbers, which differ in each execution of the copy.
        """
        inputs = [*values, images, labels]
        if self.is_random:
            number = int(np.random.default_rng(list(seed)).integers(2**31))
            inputs.append(tf.random.uniform([2], maxval=2**30, dtype=tf.int32, seed=number))
        *gradients, loss, accuracy = self.template.copy(inputs, "step_graph")
        return StepOutputs(gradients, loss, accuracy)


def make(model: Model | KerasModel, layout: Layout, examples: Examples, size: int) -> StepTemplate:
    """Build the template for batches of `size` of these examples."""
    with tf.Graph().as_default() as graph:
        values = [tf1.placeholder(tf.float32, [numbers]) for numbers in layout.shards]
        images = tf1.placeholder(tf.float32, [size, *examples.images.shape[1:]])
        labels = tf1.placeholder(tf.int32, [size])
        arrays = layout.unpack(values)
        is_random = isinstance(model, KerasModel) and model.is_random
        seeds = [tf1.placeholder(tf.int32, [2])] if is_random else []
        if isinstance(model, KerasModel):
            step = model.step(arrays, images, labels, seeds[0] if seeds else None)
        else:
            step = _step(model, arrays, images, labels)
        outputs = [*layout.pack(step.changes), step.loss, step.accuracy]
    inputs = [*values, images, labels, *seeds]
    return StepTemplate(of_graph(graph, inputs, outputs), is_random)


def _step(model: Model, arrays: Mapping[str, Tensor], images: Tensor, labels: Tensor) -> StepTensors:
    """Add the ops of a step of a model of plain ops."""
    # The identity op supports models that use the images in control dependencies or colocation, or not at all; the
    # inputs of a copy do not support these.
    logits = model.logits(arrays, tf.identity(images))
    loss = cross_entropy(logits, labels)
    # Differentiate by the arrays: through `unpack`, gradients of the flat shards are slow sums of padded arrays.
    gradients = tf1.gradients(loss, list(arrays.values()), unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return StepTensors(loss, accuracy(logits, labels), dict(zip(arrays, gradients, strict=True)))
