"""The graph of a step, copied for each step: its gradients, and the ops that a model may use."""

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
from trainer.models import mlp
from trainer.models.op_template import of_graph
from trainer.models.ops_model import OpsModel
from trainer.shards import parameters as graph_parameters
from trainer.tensorflow import tf, tf1

from .conftest import EXAMPLES, SIZE, pick

PARAMETERS = mlp.parameters((784,), 10, 100)


def own(logits: Callable[[Any, Any], Any]) -> OpsModel:
    functions: Any = SimpleNamespace(logits=logits)
    return OpsModel("own", functions, 100)


def build(logits: Callable[[Any, Any], Any]) -> replica.Replica:
    """The graph of a single process, with executions of one and three steps."""
    settings = Settings(batch_size=SIZE, steps_per_execution=3)
    return replica.build(settings, None, own(logits), PARAMETERS, EXAMPLES, 0, "this run")


def take(found: replica.Replica, steps: int) -> tuple[int, float]:
    """The global step after an execution, and its loss."""
    with tf1.Session(graph=found.graph) as session:
        session.run(found.initialize)
        found.batches.begin(session)
        execution = found.replication.executions[steps]
        feeds = dict(zip(found.batches.feeds(steps), found.batches.take(steps, 0), strict=True))
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


Flat = npt.NDArray[np.float32]


def differentiate(logits: Callable[[Any, Any], Any], vector: Flat, batch: int) -> tuple[Flat, float, float]:
    """The gradient of the flat parameters, the loss and the accuracy on a batch, in a graph of its own."""
    ends = np.cumsum([math.prod(parameter.shape) for parameter in PARAMETERS.values()])
    pieces = np.split(vector, ends[:-1])
    labels = EXAMPLES.targets[pick(batch)]
    with tf.Graph().as_default(), tf1.Session() as session, tf.GradientTape() as tape:
        arrays = {
            name: tf.constant(piece.reshape(parameter.shape))
            for (name, parameter), piece in zip(PARAMETERS.items(), pieces, strict=True)
        }
        tape.watch(arrays)
        scores = logits(arrays, tf.constant(EXAMPLES.inputs[pick(batch)]))
        loss = -tf.reduce_mean(tf.reduce_sum(tf.nn.log_softmax(scores) * tf.one_hot(labels, 10), axis=1))
        gradients = tape.gradient(loss, list(arrays.values()), unconnected_gradients=tf.UnconnectedGradients.ZERO)
        found, loss_value, score_values = session.run([gradients, loss, scores])
    accuracy = np.mean(np.argmax(score_values, axis=1) == labels)
    return np.concatenate([gradient.ravel() for gradient in found]), float(loss_value), float(accuracy)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("logits", [mlp.logits, ignore_images, branch, call_function])
def test_each_copy_has_the_gradients_of_the_model_itself(logits: Callable[[Any, Any], Any], servers: int) -> None:
    """Two copies in one graph, with other parameters and another batch each."""
    layout = graph_parameters.plan(PARAMETERS, servers)
    assert len(layout.shards) == servers
    template = step_graph.make(own(logits), layout, EXAMPLES.signature, SIZE)
    vectors = np.random.default_rng(1).normal(0, 0.1, (2, sum(layout.shards))).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        copies = []
        for batch, vector in enumerate(vectors):
            shards = [tf.constant(shard) for shard in np.split(vector, np.cumsum(layout.shards)[:-1])]
            images, labels = EXAMPLES.inputs[pick(batch)], EXAMPLES.targets[pick(batch)]
            copies.append(template.compute(shards, [tf.constant(images), tf.constant(labels)], ()))
        found = session.run([(list(copy.gradients), copy.loss, copy.metrics["accuracy"]) for copy in copies])
    for batch, (gradients, loss, accuracy) in enumerate(found):
        expected, expected_loss, expected_accuracy = differentiate(logits, vectors[batch], batch)
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(np.concatenate(gradients), expected, rtol=1e-4, atol=1e-6)
        assert (loss, accuracy) == pytest.approx((expected_loss, expected_accuracy), rel=1e-5)


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


def test_a_copy_gives_an_input_that_is_an_output_as_it_is() -> None:
    """As ids of 64 bits, which nothing converts before they are looked up."""
    with tf.Graph().as_default() as graph:
        ids, other = tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.int64, [None])
        template = of_graph(graph, [ids, other], [ids, other + 1, ids])
    with tf.Graph().as_default(), tf1.Session() as session:
        found = template.copy([tf.constant([5], tf.int64), tf.constant([7], tf.int64)], "copy")
        assert [each.tolist() for each in session.run(found)] == [[5], [8], [5]]
