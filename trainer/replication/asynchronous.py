"""Asynchronous replication: each replica applies its own gradients as soon as it has them.

The parameters may have moved on since the replica read them; that staleness is the price of never waiting (Dean et
al., "Large Scale Distributed Deep Networks", 2012). A run of N steps may overshoot by one step per further replica.
"""

from collections.abc import Sequence

from trainer import adam
from trainer.parameters import Part
from trainer.replication import Learn, Replication
from trainer.tensorflow import tf


def build(parts: Sequence[Part], learn: Learn, learning_rate: float) -> Replication:
    """Add the ops of one asynchronous replica to the default graph.

    Args:
        parts: Where the parameters are.
        learn: Gives the gradients.
        learning_rate: Adam's.
    """
    values, updates = zip(*[part.read() for part in parts], strict=True)
    lesson = learn(values)
    applied = [
        adam.apply(part, count, gradient, learning_rate)
        for part, count, gradient in zip(parts, updates, lesson.gradients, strict=True)
    ]
    with tf.control_dependencies(applied):
        step = parts[0].updates.read_value()
    return Replication(step, lesson.loss, lesson.accuracy, join=tf.no_op(), lead=tf.no_op(), update=None)
