"""Periodic averaging (local SGD): replicas take some steps by themselves, and then average their parameters.

In a round each replica takes so many steps on a copy of its own, of the parameters and of the optimiser's slots; the
average of the copies is what the next round begins with, and the global step rises by the steps of one replica. So one
exchange takes the place of many; what it costs is that replicas drift apart in between (McMahan et al.,
"Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017; Stich, "Local SGD Converges Fast and
Communicates Little", 2019). How to average what belongs to adaptive steps has several answers (Chen, Li and Li, "Toward
Communication Efficient Adaptive Gradient Method", 2020); here all slots are averaged as the parameters are, so that
checkpoints and replicas that join late have a state that is whole.
"""

from collections.abc import Sequence
from typing import Any

from trainer import parameters
from trainer.optimizer import Optimizer
from trainer.parameters import Part
from trainer.replication import Learn, Lesson
from trainer.replication.steps import take
from trainer.replication.synchronous import Exchange
from trainer.tensorflow import tf, tf1


def exchange(parts: Sequence[Part], learn: Learn, optimizer: Optimizer, steps: int, device: str) -> Exchange:
    """The exchange of replicas' own parameters and moments after each round.

    Args:
        parts: Where the parameters are that all replicas begin a round with.
        learn: Gives the gradients.
        optimizer: Takes the steps of a round.
        steps: How many steps a replica takes in a round.
        device: Where this replica has its copy.
    """
    own = [parameters.copy(part, device, optimizer.slots) for part in parts]

    def give(round_number: int, begin: Any) -> tuple[list[Any], Lesson]:
        begun = []
        for part, mine in zip(parts, own, strict=True):
            with tf.control_dependencies([begin]), tf1.device(part.device):
                state, count = _state(part), part.updates.read_value()
            begun.append(_assign(mine, state, count))
        numbers = range(round_number * steps, (round_number + 1) * steps)
        *_, (taken, lesson) = take(own, learn, optimizer, numbers, begun)
        with tf.control_dependencies(taken):
            return [_state(mine) for mine in own], lesson

    def apply(averages: Sequence[Any]) -> list[Any]:
        counts = [part.read()[1] for part in parts]
        return [
            _assign(part, average, count + steps) for part, average, count in zip(parts, averages, counts, strict=True)
        ]

    return Exchange(steps, 1 + len(optimizer.slots), give, apply)


def _state(part: Part) -> Any:
    """A part's values and slots end to end, as they are now."""
    with tf1.device(part.device):
        return tf.concat([each.read_value() for each in (part.values, *part.slots)], axis=0)


def _assign(part: Part, state: Any, updates: Any) -> Any:
    """Give a part this state; an op that is done when it has it, and has counted its updates after that."""
    variables = (part.values, *part.slots)
    with tf1.device(part.device):
        pieces = tf.split(state, len(variables))
        assigned = [each.assign(piece, read_value=False) for each, piece in zip(variables, pieces, strict=True)]
        with tf.control_dependencies(assigned):
            return part.updates.assign(updates, read_value=False)
