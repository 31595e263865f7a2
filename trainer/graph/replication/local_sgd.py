"""Periodic averaging (local SGD): replicas take some steps by themselves, and then average their parameters.

In a round each replica takes so many steps on a copy of its own, of the parameters and of the optimiser's slots; the
average of the copies is what the next round begins with, and the global step rises by the steps of one replica. So one
exchange takes the place of many; what it costs is that replicas drift apart in between (McMahan et al.,
"Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017; Stich, "Local SGD Converges Fast and
Communicates Little", 2019). How to average what belongs to adaptive steps has several answers (Chen, Li and Li, "Toward
Communication Efficient Adaptive Gradient Method", 2020); here the moments are averaged as the parameters are, so that
checkpoints and replicas that join late have a state that is whole. AMSGrad's largest second moment is, as there, the
largest of the averages; replicas know these too, and read it only at the begin of a call.
"""

from collections.abc import Sequence
from typing import Any

from trainer.graph import parameters
from trainer.graph.optimizer import LARGEST_MOMENT, MOMENTS, Optimizer
from trainer.graph.parameters import Shard
from trainer.graph.replication import GradientFunction, StepOutputs
from trainer.graph.replication.steps import take
from trainer.graph.replication.synchronous import Aggregation
from trainer.tensorflow import tf, tf1


def aggregation(
    shards: Sequence[Shard], compute_gradients: GradientFunction, optimizer: Optimizer, steps: int, device: str
) -> Aggregation:
    """The exchange of replicas' own parameters and moments after each round.

    Args:
        shards: Where the parameters are that all replicas begin a round with.
        compute_gradients: Gives the gradients.
        optimizer: Takes the steps of a round.
        steps: How many steps a replica takes in a round.
        device: Where this replica has its copy.
    """
    own = [parameters.copy(shard, device, optimizer.slots) for shard in shards]
    keeps_largest = LARGEST_MOMENT in optimizer.slots
    largest: dict[str, Any] = {}  # second moment of each shard, at the begin of the latest round

    def push(round_number: int, begin: Any) -> tuple[list[Any], StepOutputs]:
        begun = []
        reads_largest = keeps_largest and round_number == 0
        for shard, mine in zip(shards, own, strict=True):
            with tf.control_dependencies([begin]), tf1.device(shard.device):
                wanted = [shard.values, *(shard.slots if reads_largest else shard.slots[: len(MOMENTS)])]
                read, count = _join(wanted), shard.updates.read_value()
            with tf1.device(device):
                state = tf.split(read, len(wanted))
                if keeps_largest and not reads_largest:
                    state.append(tf.maximum(largest[shard.name], state[-1]))
                largest[shard.name] = state[-1]
                begun.append(_assign(mine, state, count))
        numbers = range(round_number * steps, (round_number + 1) * steps)
        *_, (taken, outputs) = take(own, compute_gradients, optimizer, numbers, begun)
        with tf.control_dependencies(taken):
            return [_averaged(mine) for mine in own], outputs

    def apply(averages: Sequence[Any]) -> list[Any]:
        counts = [shard.read()[1] for shard in shards]
        applied = []
        for shard, average, count in zip(shards, averages, counts, strict=True):
            with tf1.device(shard.device):
                state = tf.split(average, 1 + len(MOMENTS))
                if keeps_largest:
                    state.append(tf.maximum(shard.slots[-1].read_value(), state[-1]))
                applied.append(_assign(shard, state, count + steps))
        return applied

    return Aggregation(steps, 1 + len(MOMENTS), push, apply)


def _averaged(shard: Shard) -> Any:
    """What is averaged of a shard, end to end, as it is now: its values and moments."""
    with tf1.device(shard.device):
        return _join([shard.values, *shard.slots[: len(MOMENTS)]])


def _join(vectors: Sequence[Any]) -> Any:
    return tf.concat([each.read_value() for each in vectors], axis=0)


def _assign(shard: Shard, state: Sequence[Any], updates: Any) -> Any:
    """Give a shard these values and slots; an op that is done when it has them, and then has counted its updates."""
    with tf1.device(shard.device):
        variables = (shard.values, *shard.slots)
        assigned = [each.assign(vector, read_value=False) for each, vector in zip(variables, state, strict=True)]
        with tf.control_dependencies(assigned):
            return shard.updates.assign(updates, read_value=False)
