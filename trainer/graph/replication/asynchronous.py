"""Asynchronous replication: each replica applies its own gradients as soon as it has them.

The parameters may have moved on since the replica read them; that staleness is the price of never waiting (Dean et
al., "Large Scale Distributed Deep Networks", 2012). A replica reads them anew for each step, after its own last update.
With parameters that nobody else updates it is plain training: so a single process goes by it as well.
"""

from collections.abc import Sequence

from trainer.graph.optimizer import Optimizer
from trainer.graph.parameters import Part
from trainer.graph.replication import Call, Learn, Replication
from trainer.graph.replication.steps import take
from trainer.tensorflow import tf


def build(parts: Sequence[Part], learn: Learn, optimizer: Optimizer, steps: int) -> Replication:
    """Add the ops of one asynchronous replica to the default graph.

    Args:
        parts: Where the parameters are.
        learn: Gives the gradients.
        optimizer: Applies the gradients.
        steps: How many steps a call takes.
    """
    calls = {}
    for number, (applied, lesson) in enumerate(take(parts, learn, optimizer, range(steps)), start=1):
        if number in (1, steps):
            with tf.control_dependencies(applied):
                calls[number] = Call(parts[0].updates.read_value(), lesson.loss, lesson.accuracy)
    return Replication(calls, join=tf.no_op(), lead=tf.no_op(), updates={})
