"""Asynchronous replication: each replica applies its own gradients as soon as it has them.

The parameters may have moved on since the replica read them; that staleness is the price of never waiting (Dean et
al., "Large Scale Distributed Deep Networks", 2012). A run of N steps may overshoot by one step per further replica.
"""

from collections.abc import Callable
from typing import Any

from trainer.parameters import Variables
from trainer.replication import Replication
from trainer.tensorflow import tf, tf1


def build(variables: Variables, forward: Callable[[dict[str, Any]], tuple[Any, Any]], optimizer: Any) -> Replication:
    """Add the ops of one asynchronous replica to the default graph.

    Args:
        variables: Where the parameters are.
        forward: Gives loss and accuracy on the next batch, from parameters by name.
        optimizer: A `tf.compat.v1.train.Optimizer`.
    """
    reads, parameters = variables.read()
    loss, accuracy = forward(parameters)
    gradients = tf1.gradients(loss, reads)
    applied = optimizer.apply_gradients(zip(gradients, variables.trainable, strict=True), variables.global_step)
    with tf.control_dependencies([applied]):
        step = variables.global_step.read_value()
    return Replication(step, loss, accuracy, join=tf.no_op(), lead=tf.no_op(), update=None)
