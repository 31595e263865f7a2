"""The ops of one step (loss, accuracy, gradients), built once and copied for each step of an execution.

TensorFlow's C++ code copies a graph in a fraction of the time that Python needs to build the ops of a gradient. The
copies are plain ops, so they run as fast as ops that Python builds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.data.datasets import Examples
from trainer.graph.parameters import Layout
from trainer.graph.replication import StepOutputs
from trainer.models import Model, accuracy, cross_entropy
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Graph, Tensor


@dataclass(frozen=True)
class GraphTemplate:
    """The graph of one step, to copy."""

    definition: Any
    """A `GraphDef` without its placeholders."""
    inputs: Sequence[str]
    """Names of the inputs: the parameter shards, the images, the labels."""
    outputs: Sequence[str]
    """Names of the outputs: the gradients of the shards, the loss, the accuracy."""
    origin: Graph
    """The source graph. It owns the model's Python functions (`tf.numpy_function`), so keep it while copies run."""

    @property
    def ops(self) -> int:
        """The number of ops of one copy."""
        return len(self.definition.node)

    def copy(self, values: Sequence[Tensor], images: Tensor, labels: Tensor) -> StepOutputs:
        """Add a copy of the ops, on the current device.

        Args:
            values: float32 [n] for each shard of the parameters.
            images: float32 [batch, ...].
            labels: int32 [batch].
        """
        inputs = dict(zip(self.inputs, [*values, images, labels], strict=True))
        *gradients, loss, accuracy = tf.graph_util.import_graph_def(
            self.definition, input_map=inputs, return_elements=self.outputs, name="step_graph"
        )
        return StepOutputs(gradients, loss, accuracy)


def make(model: Model, layout: Layout, examples: Examples, size: int) -> GraphTemplate:
    """Build the template for batches of `size` of these examples."""
    with tf.Graph().as_default() as graph:
        values = [tf1.placeholder(tf.float32, [numbers]) for numbers in layout.shards]
        images = tf1.placeholder(tf.float32, [size, *examples.images.shape[1:]])
        labels = tf1.placeholder(tf.int32, [size])
        arrays = layout.unpack(values)
        # The identity op supports models that use the images in control dependencies or colocation, or not at all; the
        # inputs of a copy do not support these.
        logits = model.logits(arrays, tf.identity(images))
        loss = cross_entropy(logits, labels)
        # Differentiate by the arrays: through `unpack`, gradients of the flat shards are slow sums of padded arrays.
        gradients = tf1.gradients(loss, list(arrays.values()), unconnected_gradients=tf.UnconnectedGradients.ZERO)
        packed = layout.pack(dict(zip(arrays, gradients, strict=True)))
        outputs = [*packed, loss, accuracy(logits, labels)]
    inputs = [*values, images, labels]
    definition = graph.as_graph_def()
    for index in reversed(range(len(definition.node))):
        if definition.node[index].op == "Placeholder":  # a copy maps it to an input
            del definition.node[index]
    return GraphTemplate(definition, [each.name for each in inputs], [each.name for each in outputs], graph)
