"""Asynchronous replication: each replica applies its own gradients as soon as it has them.

The parameters may have moved on since the replica read them; that staleness is the price of never waiting (Dean et
al., "Large Scale Distributed Deep Networks", 2012). A replica reads them anew for each step, after its own last update.
"""

from collections.abc import Sequence
from typing import Any

from trainer import adam
from trainer.parameters import Part
from trainer.replication import Call, Learn, Replication
from trainer.tensorflow import tf


def build(parts: Sequence[Part], learn: Learn, learning_rate: float, steps: int) -> Replication:
    """Add the ops of one asynchronous replica to the default graph.

    Args:
        parts: Where the parameters are.
        learn: Gives the gradients.
        learning_rate: Adam's.
        steps: How many steps a call takes.
    """
    calls = {}
    applied: list[list[Any]] = [[] for _ in parts]
    for number in range(steps):
        values, updates = [], []
        for part, before in zip(parts, applied, strict=True):
            with tf.control_dependencies(before):  # of its own parameter server alone: no other one is waited for
                value, count = part.read()
            values.append(value)
            updates.append(count)
        lesson = learn(values, number)
        applied = [
            [adam.apply(part, count, gradient, learning_rate)]
            for part, count, gradient in zip(parts, updates, lesson.gradients, strict=True)
        ]
        if number + 1 in (1, steps):
            with tf.control_dependencies([each for done in applied for each in done]):
                calls[number + 1] = Call(parts[0].updates.read_value(), lesson.loss, lesson.accuracy)
    return Replication(calls, join=tf.no_op(), lead=tf.no_op(), updates={})
