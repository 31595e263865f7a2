"""What a batch teaches: made as a graph of its own once, and copied into a replica's graph for each step of a call.

Copying is done by TensorFlow's C++ code, in a fraction of the time that it takes Python to make the ops of a gradient.
The copies are plain ops, so they run as fast as if each had been made by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.data.datasets import Examples
from trainer.graph.parameters import Layout
from trainer.graph.replication import StepOutputs
from trainer.models import Model, accuracy, cross_entropy
from trainer.tensorflow import tf, tf1


@dataclass(frozen=True)
class GraphTemplate:
    """The graph to copy."""

    definition: Any
    """A `GraphDef` without its placeholders."""
    inputs: Sequence[str]
    """The names of what goes in: of the parameters' shards, of the images and of the labels."""
    outputs: Sequence[str]
    """The names of what comes out: of the gradients of the shards, of the loss and of the accuracy."""
    origin: Any
    """The graph that it was made in. A model's Python functions (`tf.numpy_function`) live only as long as that does,
    so who runs copies keeps it."""

    @property
    def ops(self) -> int:
        """How many it takes."""
        return len(self.definition.node)

    def copy(self, values: Sequence[Any], images: Any, labels: Any) -> StepOutputs:
        """Add the ops that learn from a batch, at parameters given by their shards, on the device in force.

        Args:
            values: float32 [n] of each shard of the parameters.
            images: float32 [batch, ...].
            labels: int32 [batch].
        """
        given = dict(zip(self.inputs, [*values, images, labels], strict=True))
        *gradients, loss, right = tf.graph_util.import_graph_def(
            self.definition, input_map=given, return_elements=self.outputs, name="lesson"
        )
        return StepOutputs(gradients, loss, right)


def make(model: Model, layout: Layout, examples: Examples, size: int) -> GraphTemplate:
    """The pattern for batches of this size of these examples."""
    with tf.Graph().as_default() as graph:
        values = [tf1.placeholder(tf.float32, [numbers]) for numbers in layout.shards]
        images = tf1.placeholder(tf.float32, [size, *examples.images.shape[1:]])
        labels = tf1.placeholder(tf.int32, [size])
        arrays = layout.unpack(values)
        # A model may wait for its images, be placed beside them, or leave them alone: no copy does that with an input.
        logits = model.logits(arrays, tf.identity(images))
        loss = cross_entropy(logits, labels)
        # By the arrays and not by the flat shards: through the unpacking, gradients are slow sums of padded arrays.
        gradients = tf1.gradients(loss, list(arrays.values()), unconnected_gradients=tf.UnconnectedGradients.ZERO)
        packed = layout.pack(dict(zip(arrays, gradients, strict=True)))
        outputs = [*packed, loss, accuracy(logits, labels)]
    inputs = [*values, images, labels]
    definition = graph.as_graph_def()
    for number in reversed(range(len(definition.node))):
        if definition.node[number].op == "Placeholder":  # a copy has the real thing in its place
            del definition.node[number]
    return GraphTemplate(definition, [each.name for each in inputs], [each.name for each in outputs], graph)
