"""A small convolutional network: two convolutions with pooling, then a hidden layer."""

import math
from collections.abc import Mapping

from trainer.errors import ConfigurationError
from trainer.models import Parameter
from trainer.tensorflow import tf
from trainer.tensorflow_types import Tensor

FILTERS = (16, 32)
WINDOW = 5


def parameters(image_shape: tuple[int, ...], classes: int, hidden_units: int) -> dict[str, Parameter]:
    """Two convolutions, each with pooling that halves height and width; then hidden units; then classes."""
    if len(image_shape) != 3 or min(image_shape[:2]) < 4:
        raise ConfigurationError(
            f"model=cnn needs images [height, width, channels] of at least 4 x 4 pixels, but the shape is "
            f"{list(image_shape)}; use model=mlp."
        )
    height, width, channels = image_shape
    features = (height // 4) * (width // 4) * FILTERS[1]
    shapes = {
        "convolution1": (WINDOW, WINDOW, channels, FILTERS[0]),
        "convolution2": (WINDOW, WINDOW, FILTERS[0], FILTERS[1]),
        "hidden": (features, hidden_units),
        "softmax": (hidden_units, classes),
    }
    parameters_by_name = {}
    for name, shape in shapes.items():
        parameters_by_name[f"{name}/weights"] = Parameter(shape, stddev=math.prod(shape[:-1]) ** -0.5)
        parameters_by_name[f"{name}/biases"] = Parameter(shape[-1:])
    return parameters_by_name


def logits(parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Logits [batch, classes] of images [batch, height, width, channels]."""
    features = images
    for name in ("convolution1", "convolution2"):
        features = tf.nn.conv2d(features, parameters[f"{name}/weights"], strides=1, padding="SAME")
        features = tf.nn.relu(tf.nn.bias_add(features, parameters[f"{name}/biases"]))
        features = tf.nn.max_pool2d(features, ksize=2, strides=2, padding="VALID")
    flat = tf.reshape(features, [-1, parameters["hidden/weights"].shape[0]])
    hidden = tf.nn.relu(tf.nn.bias_add(flat @ parameters["hidden/weights"], parameters["hidden/biases"]))
    return tf.nn.bias_add(hidden @ parameters["softmax/weights"], parameters["softmax/biases"])
