"""All-reduce: every replica holds all parameters, and applies the same average of all replicas' gradients to them.

The gradients go round a ring (Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of
Workstations", 2009) by the collective ops of TensorFlow that `tf.distribute.MultiWorkerMirroredStrategy` uses too.
Nobody else is needed, and nobody may be missing: an op ends when all replicas have run it.

So all must run the same ops in the same order, each with a key that they share. What one replica alone knows, as the
chief the restored parameters, gets to the others by the same sum, to which they add nothing.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tensorflow.python.ops import collective_ops  # TensorFlow's own strategies are the only other users

from trainer.graph.optimizer import Optimizer
from trainer.graph.parameters import Shard
from trainer.graph.replication import CollectiveGroup, GradientFunction, Replication, StepOutputs, asynchronous
from trainer.tensorflow import tf, tf1

GROUP = 1
"""Key of the group that all replicas are."""


class CollectiveOps:
    """Adds sums over all replicas to the default graph. All replicas must add the same ones in the same order."""

    def __init__(self, replicas: int, leads: bool) -> None:
        """A ring of so many replicas; whether this one is the chief."""
        self._replicas, self._leads = replicas, leads
        self._keys = 0

    def sum(self, value: Any) -> Any:
        """Of all replicas' values."""
        self._keys += 1
        return collective_ops.all_reduce(
            value, self._replicas, GROUP, self._keys, merge_op="Add", final_op="Id", communication_hint="ring"
        )

    def of_the_chief(self, value: Any) -> Any:
        """The chief's value, for all."""
        return self.sum(value if self._leads else tf.zeros_like(value))


def build(
    shards: Sequence[Shard],
    compute_gradients: GradientFunction,
    optimizer: Optimizer,
    steps: int,
    replicas: int,
    leads: bool,
) -> Replication:
    """Add the ops of one of these replicas to the default graph.

    Args:
        shards: Where the parameters are, on this replica's own device.
        compute_gradients: Gives the gradients.
        optimizer: Applies the averages.
        steps: How many steps a call takes.
        replicas: How many replicas there are.
        leads: Whether this one is the chief.
    """
    collectives = CollectiveOps(replicas, leads)
    wanted = tf1.placeholder(tf.int64, [], "wanted_steps")
    collective = CollectiveGroup(wanted, agreed=collectives.of_the_chief(wanted), leave=collectives.sum(tf.zeros([])))
    variables = [variable for shard in shards for variable in shard.variables] + optimizer.variables
    join = [each.assign(collectives.of_the_chief(each.read_value()), read_value=False) for each in variables]

    def learn_together(values: Sequence[Any], number: int) -> StepOutputs:
        outputs = compute_gradients(values, number)
        averages = [collectives.sum(gradient) / replicas for gradient in outputs.gradients]
        return dataclasses.replace(outputs, gradients=averages)

    # With parameters of its own and everybody's gradients, a replica trains as one that is alone.
    alone = asynchronous.build(shards, learn_together, optimizer, steps)
    return dataclasses.replace(alone, join=tf.group(*join), collective=collective)
