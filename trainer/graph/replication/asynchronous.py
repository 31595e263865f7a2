"""Asynchronous replication: each replica applies its own gradients without waiting for other replicas.

Other replicas may update the parameters after a replica has read them, so gradients can be stale (Dean et al., "Large
Scale Distributed Deep Networks", 2012). A replica reads the parameters in each step, after its own previous update.
A single process trains in the same way, without stale gradients.
"""

from collections.abc import Sequence

from trainer.graph.execution import sizes
from trainer.graph.optimizer import Optimizer
from trainer.graph.replication import Execution, Replication, StepFunction
from trainer.graph.replication.membership import Membership
from trainer.graph.replication.steps import unroll
from trainer.shards.parameters import Shard
from trainer.tensorflow import tf, tf1


def build(
    shards: Sequence[Shard],
    make_step: StepFunction,
    optimizer: Optimizer,
    steps: int,
    replicas: int = 1,
    membership: Membership | None = None,
) -> Replication:
    """Add the ops of one asynchronous replica to the default graph.

    Args:
        shards: The parameters.
        make_step: Makes a step.
        optimizer: Applies the gradients.
        steps: Steps per execution.
        replicas: Number of listed replicas.
        membership: Which of them take part; None for a single process.
    """
    executions = {}
    for number, (applied, outputs) in enumerate(unroll(shards, make_step, optimizer, range(steps)), start=1):
        if number in sizes(steps):
            with tf.control_dependencies(applied), tf1.device(shards[0].device):
                step = shards[0].updates.read_value()
                if membership:
                    with tf.control_dependencies([membership.contributed(step)]):
                        step = tf.identity(step)
            executions[number] = Execution(step, outputs.loss, outputs.metrics, outputs.totals)
    return Replication(
        executions,
        join=tf.no_op(),
        lead=membership.reset if membership else tf.no_op(),
        updates={},
        independent_replicas=replicas,
        membership=membership,
    )
