"""The model interface: named arrays, and what a step and a prediction compute from them.

A model is a Python file with a function that returns a Keras model (`trainer/keras_model.py`):

    def model(input_shape, classes) -> keras.Model

or, for models of plain ops, with two functions (see `trainer/models/mlp.py`, the shortest example):

    def parameters(image_shape, classes, hidden_units) -> dict[str, Parameter]
    def logits(parameters, images) -> tf.Tensor

A model does not depend on the cluster: `trainer.graph.parameters` places the arrays, and `trainer.graph.replication`
shares them between replicas. TensorFlow is imported only when a graph is built.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainer.tensorflow_types import Tensor


@dataclass(frozen=True)
class Parameter:
    """A float32 array, initialized from a normal distribution truncated at two standard deviations."""

    shape: tuple[int, ...]
    stddev: float = 0.0
    """Standard deviation of the initial values; 0 initializes them to 0."""
    value: Any = field(default=None, compare=False, repr=False)
    """The initial values, float32 [*shape]; None draws them."""
    trainable: bool = True
    """Whether the optimizer updates it by gradients. Otherwise steps set it themselves, such as a moving average."""


@dataclass(frozen=True)
class StepTensors:
    """What a step computes from one batch."""

    loss: Tensor
    """float32 scalar."""
    accuracy: Tensor
    """float32 scalar."""
    changes: Mapping[str, Tensor]
    """For each array, its gradient, or for an array that is not trainable the difference to add."""


@dataclass(frozen=True)
class Prediction:
    """What a model predicts for a batch, and how good that is."""

    probabilities: Tensor
    """float32 [batch, classes]."""
    loss: Tensor
    """float32 scalar."""
    accuracy: Tensor
    """float32 scalar."""


class Model(Protocol):
    """The two functions of a model file."""

    def parameters(self, image_shape: tuple[int, ...], classes: int, hidden_units: int) -> dict[str, Parameter]:
        """The parameters by name, for images of this shape (without the batch dimension) and this many classes.

        Raises:
            ConfigurationError: the model does not support images of this shape.
        """
        ...

    def logits(self, parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """Unscaled log probabilities, [batch, classes], of images [batch, *image_shape]."""
        ...


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss: the mean over the batch of the softmax cross entropy.

    The gradient never vanishes for a wrong prediction. The classic `mnist_replica.py` clips probabilities at 1e-10: an
    example that is wrong with certainty then has a zero gradient, and a run that diverged never recovers.

    Args:
        logits: float32 [batch, classes].
        labels: int32 [batch], each from 0 to classes - 1.

    Returns:
        float32 scalar.
    """
    from trainer.tensorflow import tf

    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """The fraction of examples whose largest logit is that of the label: float32 scalar.

    Args:
        logits: float32 [batch, classes].
        labels: int32 [batch].
    """
    from trainer.tensorflow import tf

    correct = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
    return tf.reduce_mean(tf.cast(correct, tf.float32))
