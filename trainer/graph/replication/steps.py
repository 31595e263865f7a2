"""Steps that apply what they learn themselves, unrolled in the graph."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from trainer.graph.optimizer import Optimizer
from trainer.graph.parameters import Shard
from trainer.graph.replication import GradientFunction, StepOutputs
from trainer.tensorflow import tf


def take(
    shards: Sequence[Shard],
    compute_gradients: GradientFunction,
    optimizer: Optimizer,
    numbers: Iterable[int],
    ready: Sequence[Any] | None = None,
) -> Iterator[tuple[list[Any], StepOutputs]]:
    """Add the ops of one step after another, each of which reads the parameters after the one before has updated them.

    Args:
        shards: Where the parameters are.
        compute_gradients: Gives the gradients.
        optimizer: Applies them.
        numbers: Of the batches of these steps in their call.
        ready: For each shard the op that must be done before the first step reads it, if there is one.

    Yields:
        After each step the ops that are done when each shard is updated, and what was learnt.
    """
    before = [[op] for op in ready] if ready else [[] for _ in shards]
    for number in numbers:
        values, updates = [], []
        for shard, done in zip(shards, before, strict=True):
            with tf.control_dependencies(done):  # of its own device alone: no other parameter server is waited for
                value, count = shard.read()
            values.append(value)
            updates.append(count)
        outputs = compute_gradients(values, number)
        applied = optimizer.apply(shards, updates, outputs.gradients)
        before = [[op] for op in applied]
        yield applied, outputs
