"""What a batch teaches, copied for each step: that copies learn right is seen in the tests of replication."""

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
    """A single process's graph, with a single step and calls of three."""
    settings = Settings(batch_size=SIZE, steps_per_execution=3)
    return replica.build(settings, None, SimpleNamespace(logits=logits), PARAMETERS, EXAMPLES, 0, "this run")


def take(found: replica.Replica, steps: int) -> tuple[int, float]:
    """The global step after a call, and its loss."""
    with tf1.Session(graph=found.graph) as session:
        session.run(found.initialize)
        found.batches.begin(session)
        execution = found.replication.executions[steps]
        feeds = dict(zip(found.batches.feeds, found.batches.take(steps), strict=True))
        step, loss = session.run([execution.step, execution.loss], feeds)
    return int(step), float(loss)


def standardizes(parameters: Any, images: Any) -> Any:
    squares = tf.image.per_image_standardization(tf.reshape(images, [SIZE, 28, 28, 1]))
    return mlp.logits(parameters, tf.image.random_flip_left_right(squares))


def waits(parameters: Any, images: Any) -> Any:
    with tf.control_dependencies([images]):
        return mlp.logits(parameters, tf.debugging.assert_all_finite(images, "images"))


def sees_nothing(parameters: Any, images: Any) -> Any:
    return tf.zeros([images.shape[0], 10]) + parameters["softmax/biases"]


def branches(parameters: Any, images: Any) -> Any:
    return tf.cond(
        tf.reduce_mean(images) > 0, lambda: mlp.logits(parameters, images), lambda: sees_nothing(parameters, images)
    )


def calls_a_function(parameters: Any, images: Any) -> Any:
    return tf.function(mlp.logits)(parameters, images)


@pytest.mark.parametrize("logits", [standardizes, waits, sees_nothing, branches, calls_a_function])
def test_a_model_may_do_what_tensorflow_can(logits: Callable[[Any, Any], Any]) -> None:
    found = build(logits)
    for steps in (1, 3):
        step, loss = take(found, steps)
        assert step == steps
        assert math.isfinite(loss)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_model_may_call_python(steps: int) -> None:
    seen = []

    def logits(parameters: Any, images: Any) -> Any:
        def look(images: Any) -> Any:
            seen.append(images.shape)
            return images

        looked_at = tf.numpy_function(look, [images], tf.float32)
        looked_at.set_shape(images.shape)
        return mlp.logits(parameters, looked_at)

    found = build(logits)
    gc.collect()  # TensorFlow itself knows Python functions by weak references only
    assert take(found, steps)[0] == steps
    assert seen == [(SIZE, 784)] * steps
