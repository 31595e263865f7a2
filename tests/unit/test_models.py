"""The built-in models."""

from typing import Any

import numpy as np
import pytest

from trainer.errors import ConfigurationError
from trainer.models import ModelFunctions, Parameter, cnn, mlp
from trainer.models.ops_model import cross_entropy
from trainer.tensorflow import tf, tf1


@pytest.fixture(params=[mlp, cnn], ids=["mlp", "cnn"])
def model(request: pytest.FixtureRequest) -> ModelFunctions:
    found: ModelFunctions = request.param
    return found


def values_of(parameters: dict[str, Parameter], seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        name: tf.constant(random.normal(0, max(parameter.stddev, 0.1), parameter.shape), tf.float32)
        for name, parameter in parameters.items()
    }


@pytest.mark.parametrize("image_shape", [(28, 28, 1), (8, 12, 3), (5, 7, 1)])
def test_logits_have_a_column_for_each_class(model: ModelFunctions, image_shape: tuple[int, ...]) -> None:
    parameters = model.parameters(image_shape, 7, 11)
    with tf.Graph().as_default(), tf1.Session() as session:
        images = tf1.placeholder(tf.float32, [None, *image_shape])
        logits = model.logits(values_of(parameters), images)
        assert logits.shape.as_list() == [None, 7]
        for count in (1, 5):
            assert session.run(logits, {images: np.ones((count, *image_shape))}).shape == (count, 7)


def test_every_parameter_has_a_gradient(model: ModelFunctions) -> None:
    parameters = model.parameters((8, 8, 1), 4, 6)
    random = np.random.default_rng(1)
    with tf.Graph().as_default(), tf1.Session() as session:
        values = values_of(parameters)
        images = tf.constant(random.random((32, 8, 8, 1)), tf.float32)
        loss = cross_entropy(model.logits(values, images), tf.constant(random.integers(0, 4, 32)))
        gradients = session.run(tf1.gradients(loss, list(values.values())))
    for name, gradient in zip(parameters, gradients, strict=True):
        assert gradient.shape == parameters[name].shape
        assert np.abs(gradient).max() > 0, name


def test_logits_depend_on_the_image(model: ModelFunctions) -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        values = values_of(model.parameters((8, 8, 1), 4, 6))
        first, second = session.run(model.logits(values, tf.random.uniform([2, 8, 8, 1], seed=1)))
    assert not np.allclose(first, second)


def test_the_classic_network_has_the_classic_shapes() -> None:
    shapes = {name: parameter.shape for name, parameter in mlp.parameters((28, 28, 1), 10, 100).items()}
    assert shapes == {
        "hidden/weights": (784, 100),
        "hidden/biases": (100,),
        "softmax/weights": (100, 10),
        "softmax/biases": (10,),
    }


def test_the_classic_network_is_two_layers_of_rectified_linear_units() -> None:
    random = np.random.default_rng(2)
    parameters = mlp.parameters((4,), 3, 5)
    values = {name: random.normal(0, 1, parameter.shape) for name, parameter in parameters.items()}
    images = random.random((6, 4))
    hidden = np.maximum(images @ values["hidden/weights"] + values["hidden/biases"], 0)
    expected = hidden @ values["softmax/weights"] + values["softmax/biases"]
    with tf.Graph().as_default(), tf1.Session() as session:
        tensors = {name: tf.constant(value, tf.float32) for name, value in values.items()}
        assert np.allclose(session.run(mlp.logits(tensors, tf.constant(images, tf.float32))), expected, atol=1e-5)


def test_the_classic_network_accepts_flat_images() -> None:
    assert mlp.parameters((12,), 10, 100)["hidden/weights"].shape == (12, 100)


@pytest.mark.parametrize("image_shape", [(784,), (28, 28), (3, 28, 1), (28, 3, 1)])
def test_the_convolutional_network_rejects_unsupported_shapes(image_shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"model=cnn needs images \[height, width, channels\]"):
        cnn.parameters(image_shape, 10, 100)
