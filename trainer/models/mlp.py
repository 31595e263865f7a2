"""The network of the classic `mnist_replica.py`: one hidden layer of rectified linear units."""

import math
from collections.abc import Mapping

from trainer.models import Parameter
from trainer.tensorflow import tf
from trainer.tensorflow_types import Tensor


def parameters(image_shape: tuple[int, ...], classes: int, hidden_units: int) -> dict[str, Parameter]:
    """Weights and biases from pixels to hidden units, and from hidden units to classes."""
    pixels = math.prod(image_shape)
    return {
        "hidden/weights": Parameter((pixels, hidden_units), stddev=pixels**-0.5),
        "hidden/biases": Parameter((hidden_units,)),
        "softmax/weights": Parameter((hidden_units, classes), stddev=hidden_units**-0.5),
        "softmax/biases": Parameter((classes,)),
    }


def logits(parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Logits [batch, classes] of images [batch, ...]."""
    pixels = tf.reshape(images, [-1, parameters["hidden/weights"].shape[0]])
    hidden = tf.nn.relu(tf.nn.bias_add(pixels @ parameters["hidden/weights"], parameters["hidden/biases"]))
    return tf.nn.bias_add(hidden @ parameters["softmax/weights"], parameters["softmax/biases"])
