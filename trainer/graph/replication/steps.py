"""Unrolls steps in the graph. Each step applies its own gradients."""

from collections.abc import Iterable, Iterator, Sequence

from trainer.graph.optimizer import Optimizer
from trainer.graph.parameters import Shard
from trainer.graph.replication import GradientFunction, StepOutputs
from trainer.tensorflow import tf
from trainer.tensorflow_types import Operation


def unroll(
    shards: Sequence[Shard],
    compute_gradients: GradientFunction,
    optimizer: Optimizer,
    numbers: Iterable[int],
    ready: Sequence[Operation] | None = None,
) -> Iterator[tuple[list[Operation], StepOutputs]]:
    """Add the ops of consecutive steps. Each step reads the parameters after the previous step has updated them.

    Args:
        shards: The parameters.
        compute_gradients: Computes the gradients of a step.
        optimizer: Applies the gradients.
        numbers: Indices of the steps in their execution, which select the batches.
        ready: For each shard, an op that must complete before the first step reads it.

    Yields:
        For each step, one op per shard that completes when the shard is updated, and the outputs of the step.
    """
    before = [[op] for op in ready] if ready else [[] for _ in shards]
    for number in numbers:
        values, updates = [], []
        for shard, dependencies in zip(shards, before, strict=True):
            with tf.control_dependencies(dependencies):  # of this shard only, to not wait for other parameter servers
                value, count = shard.read()
            values.append(value)
            updates.append(count)
        outputs = compute_gradients(values, number)
        clipped = optimizer.clip(shards, outputs.gradients)
        sent = [shard.receive(shard.send(gradient)) for shard, gradient in zip(shards, clipped, strict=True)]
        applied = optimizer.apply(shards, updates, sent)
        before = [[op] for op in applied]
        yield applied, outputs
