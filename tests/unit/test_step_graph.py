"""The graph of a step, copied for each step. The tests of replication check what strategies do with its gradients."""

import gc
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trainer.config import Settings
from trainer.graph import replica, step_graph
from trainer.graph.parameters import plan
from trainer.models import mlp
from trainer.tensorflow import tf, tf1

from .conftest import EXAMPLES, SIZE, Values, assert_close, pick

PARAMETERS = mlp.parameters((784,), 10, 100)


def build(logits: Callable[[Any, Any], Any]) -> replica.Replica:
    """The graph of a single process, with executions of one and three steps."""
    settings = Settings(batch_size=SIZE, steps_per_execution=3)
    return replica.build(settings, None, SimpleNamespace(logits=logits), PARAMETERS, EXAMPLES, 0, "this run")


def take(found: replica.Replica, steps: int) -> tuple[int, float]:
    """The global step after an execution, and its loss."""
    with tf1.Session(graph=found.graph) as session:
        session.run(found.initialize)
        found.batches.begin(session)
        execution = found.replication.executions[steps]
        feeds = dict(zip(found.batches.feeds, found.batches.take(steps), strict=True))
        step, loss = session.run([execution.step, execution.loss], feeds)
    return int(step), float(loss)


def gradients_by_hand(arrays: Values, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Values:
    """Backpropagation through the two layers, in NumPy."""
    hidden = images @ arrays["hidden/weights"] + arrays["hidden/biases"]
    activations = np.maximum(hidden, 0)
    logits = activations @ arrays["softmax/weights"] + arrays["softmax/biases"]
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    errors = (exponentials / exponentials.sum(axis=1, keepdims=True) - np.eye(10)[labels]) / len(labels)
    hidden_errors = errors @ arrays["softmax/weights"].T * (hidden > 0)
    return {
        "hidden/weights": images.T @ hidden_errors,
        "hidden/biases": hidden_errors.sum(axis=0),
        "softmax/weights": activations.T @ errors,
        "softmax/biases": errors.sum(axis=0),
    }


@pytest.mark.parametrize("shards", [1, 3])
def test_each_copy_computes_the_gradients_of_its_batch(shards: int) -> None:
    layout = plan(PARAMETERS, shards)
    template = step_graph.make(mlp, layout, EXAMPLES, SIZE)
    random = np.random.default_rng(1)
    arrays = {name: random.normal(0, 0.1, each.shape).astype(np.float32) for name, each in PARAMETERS.items()}
    with tf.Graph().as_default(), tf1.Session() as session:
        values = layout.pack({name: tf.constant(array) for name, array in arrays.items()})
        batches = [(EXAMPLES.images[pick(number)], EXAMPLES.labels[pick(number)]) for number in range(2)]
        copies = [template.copy(values, *map(tf.constant, batch)) for batch in batches]
        found = session.run([layout.unpack(copy.gradients) for copy in copies])
    for gradients, (images, labels) in zip(found, batches, strict=True):
        assert_close(gradients, gradients_by_hand(arrays, images, labels))


def standardize(parameters: Any, images: Any) -> Any:
    squares = tf.image.per_image_standardization(tf.reshape(images, [SIZE, 28, 28, 1]))
    return mlp.logits(parameters, tf.image.random_flip_left_right(squares))


def control_dependency(parameters: Any, images: Any) -> Any:
    with tf.control_dependencies([images]):
        return mlp.logits(parameters, tf.debugging.assert_all_finite(images, "images"))


def ignore_images(parameters: Any, images: Any) -> Any:
    return tf.zeros([images.shape[0], 10]) + parameters["softmax/biases"]


def branch(parameters: Any, images: Any) -> Any:
    return tf.cond(
        tf.reduce_mean(images) > 0, lambda: mlp.logits(parameters, images), lambda: ignore_images(parameters, images)
    )


def call_function(parameters: Any, images: Any) -> Any:
    return tf.function(mlp.logits)(parameters, images)


@pytest.mark.parametrize("logits", [standardize, control_dependency, ignore_images, branch, call_function])
def test_a_model_may_use_any_tensorflow_op(logits: Callable[[Any, Any], Any]) -> None:
    found = build(logits)
    for steps in (1, 3):
        step, loss = take(found, steps)
        assert step == steps
        assert math.isfinite(loss)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_model_may_call_python_functions(steps: int) -> None:
    seen = []

    def logits(parameters: Any, images: Any) -> Any:
        def record(images: Any) -> Any:
            seen.append(images.shape)
            return images

        recorded = tf.numpy_function(record, [images], tf.float32)
        recorded.set_shape(images.shape)
        return mlp.logits(parameters, recorded)

    found = build(logits)
    gc.collect()  # TensorFlow keeps only weak references to Python functions
    assert take(found, steps)[0] == steps
    assert seen == [(SIZE, 784)] * steps
