"""Local SGD: replicas take several local steps and then average their parameters.

In a round, each replica takes `local_steps` steps on its own copy of the parameters and optimizer slots. The next round
starts from the average of the copies. The global step advances by the steps of one replica. One aggregation replaces
several; in between, the replicas diverge from each other (McMahan et al., "Communication-Efficient Learning of Deep
Networks from Decentralized Data", 2017; Stich, "Local SGD Converges Fast and Communicates Little", 2019).

Adaptive optimizers offer several ways to aggregate their state (Chen, Li and Li, "Toward Communication Efficient
Adaptive Gradient Method", 2020). Here all slots of an optimizer are averaged like the parameters, so that checkpoints
and replicas that join late have a complete state. As in that paper, the largest second moment of the trainer's own
AMSGrad is the maximum of the averages. Replicas compute this maximum themselves from the averages, so they read it only
at the start of an execution.
"""

from collections.abc import Sequence

from trainer.graph.optimizer import Optimizer
from trainer.graph.replication import StepFunction, StepOutputs
from trainer.graph.replication.steps import unroll
from trainer.graph.replication.synchronous import Aggregation
from trainer.shards import parameters
from trainer.shards.parameters import Rows, Shard
from trainer.shards.slots import LARGEST_MOMENT
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Tensor, Variable


def aggregation(
    shards: Sequence[Shard], make_step: StepFunction, optimizer: Optimizer, steps: int, device: str
) -> Aggregation:
    """The aggregation of the replicas' parameters and slots after each round.

    Args:
        shards: The shared parameters, with which all replicas start a round.
        make_step: Makes a step.
        optimizer: Applies the gradients to the local copy.
        steps: Local steps per round.
        device: Device of this replica's local copy.
    """
    local_shards = [parameters.copy(shard, device, optimizer.slots) for shard in shards]
    keeps_largest = LARGEST_MOMENT in optimizer.slots

    def averaged(shard: Shard) -> list[Variable]:
        """The variables of which a round takes the average."""
        return [*shard.parameters, *(shard.slots[:-1] if keeps_largest else shard.slots)]

    def contribution(shard: Shard) -> Tensor:
        """The current values of these variables and 1.0, concatenated."""
        with tf1.device(shard.device):
            return tf.concat([*(each.read_value() for each in averaged(shard)), tf.ones([1])], axis=0)

    largest: dict[str, Tensor] = {}  # second moment of each shard, at the start of the latest round

    def push(round_number: int, starts: Sequence[Tensor]) -> tuple[list[Tensor], Sequence[Rows], StepOutputs]:
        copied = []
        reads_largest = keeps_largest and round_number == 0
        for shard, local_shard, start in zip(shards, local_shards, starts, strict=True):
            with tf.control_dependencies([start]), tf1.device(shard.device):
                variables = [*shard.parameters, *shard.slots] if reads_largest else averaged(shard)
                read, count = _join(variables), shard.updates.read_value()
            with tf1.device(device):
                state = _split(read, variables)
                if keeps_largest and not reads_largest:
                    state.append(tf.maximum(largest[shard.name], state[-1]))
                largest[shard.name] = state[-1]
                copied.append(_assign(local_shard, state, count))
        numbers = range(round_number * steps, (round_number + 1) * steps)
        *_, (applied, outputs) = unroll(local_shards, make_step, optimizer, numbers, copied)
        with tf.control_dependencies(applied):
            return [contribution(local_shard) for local_shard in local_shards], [() for _ in shards], outputs

    def apply(averages: Sequence[Tensor], _: Sequence[Rows], after: Sequence[Sequence[Operation]]) -> list[Operation]:
        applied = []
        for shard, average, ended in zip(shards, averages, after, strict=True):
            with tf.control_dependencies(ended), tf1.device(shard.device):
                count = shard.updates.read_value()
                state = _split(average, averaged(shard))
                if keeps_largest:
                    state.append(tf.maximum(shard.slots[-1].read_value(), state[-1]))
                applied.append(_assign(shard, state, count + steps))
        return applied

    return Aggregation(steps, lambda shard: sum(_sizes(averaged(shard))), push, apply)


def _sizes(variables: Sequence[Variable]) -> list[int]:
    return [int(each.shape[0]) for each in variables]


def _split(joined: Tensor, variables: Sequence[Variable]) -> list[Tensor]:
    return list(tf.split(joined, _sizes(variables)))


def _join(vectors: Sequence[Variable]) -> Tensor:
    return tf.concat([each.read_value() for each in vectors], axis=0)


def _assign(shard: Shard, state: Sequence[Tensor], updates: Tensor) -> Operation:
    """Assign parameters and slots to a shard, then its update count; the returned op completes after both."""
    with tf1.device(shard.device):
        variables = (*shard.parameters, *shard.slots)
        assigned = [each.assign(vector, read_value=False) for each, vector in zip(variables, state, strict=True)]
        with tf.control_dependencies(assigned):
            return shard.updates.assign(updates, read_value=False)
