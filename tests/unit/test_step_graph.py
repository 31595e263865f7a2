"""The graph of a step, copied for each step. The tests of replication check the gradients of the copies."""

import gc
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.config import Settings
from trainer.graph import replica
from trainer.models import mlp
from trainer.tensorflow import tf, tf1

from .conftest import EXAMPLES, SIZE

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
