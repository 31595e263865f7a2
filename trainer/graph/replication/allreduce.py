"""All-reduce: each replica holds all parameters and applies the average of all replicas' gradients to them.

Gradients are summed by ring all-reduce (Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of
Workstations", 2009), with the collective ops of TensorFlow that `tf.distribute.MultiWorkerMirroredStrategy` uses.
There are no parameter servers. A collective op completes only when all replicas have run it.

All replicas must therefore run the same ops in the same order, each with a shared key. A broadcast from the chief, such
as the restored parameters, is the same sum, to which the other replicas contribute zeros.
"""

import dataclasses
from collections.abc import Sequence

from trainer.graph.device_average import divide_by_weight
from trainer.graph.optimizer import Optimizer
from trainer.graph.replication import CollectiveGroup, Replication, Step, StepFunction, StepOutputs, asynchronous
from trainer.shards.parameters import Shard
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.private import collective_ops
from trainer.tensorflow_types import Tensor, Variable

GROUP = 1
"""Group key of all replicas."""


class CollectiveOps:
    """Adds collective ops to the default graph. All replicas must add the same ops in the same order."""

    def __init__(self, replicas: int, is_chief: bool) -> None:
        """`replicas` is the size of the group."""
        self._replicas, self._is_chief = replicas, is_chief
        self._keys = 0

    def sum(self, value: Tensor) -> Tensor:
        """Add the sum of this value over all replicas."""
        self._keys += 1
        return collective_ops.all_reduce(
            value, self._replicas, GROUP, self._keys, merge_op="Add", final_op="Id", communication_hint="ring"
        )

    def broadcast(self, value: Tensor) -> Tensor:
        """Add the chief's value on all replicas."""
        return self.sum(value if self._is_chief else tf.zeros_like(value))


def build(
    shards: Sequence[Shard],
    make_step: StepFunction,
    optimizer: Optimizer,
    steps: int,
    replicas: int,
    is_chief: bool,
    wire_dtype: str,
    ends_with_weight: bool,
    course: Variable,
) -> Replication:
    """Add the ops of one replica to the default graph.

    Args:
        shards: The parameters, on this replica's device.
        make_step: Makes a step.
        optimizer: Applies the averaged gradients.
        steps: Steps per execution.
        replicas: Number of replicas.
        is_chief: Whether this replica is the chief.
        wire_dtype: The type in which gradients are sent and summed.
        ends_with_weight: Whether the gradients of a step end with their weight.
        course: The chief's course, once a replica has joined.
    """
    collectives = CollectiveOps(replicas, is_chief)
    wanted = tf1.placeholder(tf.int64, [], "wanted_steps")
    agreed = collectives.broadcast(wanted)
    if optimizer.scale is not None:  # a callback of the chief may have changed it
        with tf.control_dependencies([optimizer.scale.assign(collectives.broadcast(optimizer.scale.read_value()))]):
            agreed = tf.identity(agreed)
    collective = CollectiveGroup(wanted, agreed, leave=collectives.sum(tf.zeros([])))
    variables = [variable for shard in shards for variable in shard.variables] + [*optimizer.variables, course]
    join = [each.assign(collectives.broadcast(each.read_value()), read_value=False) for each in variables]

    def make_average_step(number: int) -> Step:
        step = make_step(number)

        def compute(values: Sequence[Tensor]) -> StepOutputs:
            outputs = step.compute(values)
            sums = [collectives.sum(tf.cast(gradient, wire_dtype)) for gradient in outputs.gradients]
            sums = [tf.cast(each, tf.float32) for each in sums]
            if ends_with_weight:
                averages = [divide_by_weight(each, shard.size) for each, shard in zip(sums, shards, strict=True)]
            else:
                averages = [each / replicas for each in sums]
            return dataclasses.replace(outputs, gradients=averages)

        return dataclasses.replace(step, compute=compute)

    # Each replica holds the parameters and the averaged gradients, so it applies them like a single process.
    single = asynchronous.build(shards, make_average_step, optimizer, steps)
    return dataclasses.replace(single, join=tf.group(*join), collective=collective, sum=collectives.sum)
