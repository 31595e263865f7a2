"""Asynchronous replication: each replica applies its own gradients as soon as it has them.

The parameters may have moved on since the replica read them; that staleness is the price of never waiting (Dean et
al., "Large Scale Distributed Deep Networks", 2012). A replica reads them anew for each step, after its own last update.
With parameters that nobody else updates it is plain training: so a single process goes by it as well.
"""

from collections.abc import Sequence

from trainer.graph.optimizer import Optimizer
from trainer.graph.parameters import Shard
from trainer.graph.replication import Execution, GradientFunction, Replication
from trainer.graph.replication.steps import take
from trainer.tensorflow import tf


def build(
    shards: Sequence[Shard], compute_gradients: GradientFunction, optimizer: Optimizer, steps: int
) -> Replication:
    """Add the ops of one asynchronous replica to the default graph.

    Args:
        shards: Where the parameters are.
        compute_gradients: Gives the gradients.
        optimizer: Applies the gradients.
        steps: How many steps a call takes.
    """
    executions = {}
    for number, (applied, outputs) in enumerate(take(shards, compute_gradients, optimizer, range(steps)), start=1):
        if number in (1, steps):
            with tf.control_dependencies(applied):
                executions[number] = Execution(shards[0].updates.read_value(), outputs.loss, outputs.accuracy)
    return Replication(executions, join=tf.no_op(), lead=tf.no_op(), updates={})
