"""Unrolls steps in the graph. Each step applies its own gradients."""

from collections.abc import Iterable, Iterator, Sequence

from trainer.graph.optimizer import Optimizer
from trainer.graph.replication import StepFunction, StepOutputs
from trainer.shards.parameters import Shard
from trainer.tensorflow import tf
from trainer.tensorflow_types import Operation


def unroll(
    shards: Sequence[Shard],
    make_step: StepFunction,
    optimizer: Optimizer,
    numbers: Iterable[int],
    ready: Sequence[Operation] | None = None,
) -> Iterator[tuple[list[Operation], StepOutputs]]:
    """Add the ops of consecutive steps. Each step reads the parameters after the previous step has updated them.

    Args:
        shards: The parameters.
        make_step: Makes a step.
        optimizer: Applies the gradients.
        numbers: Indices of the steps in their execution, which select the batches.
        ready: For each shard, an op that must complete before the first step reads it.

    Yields:
        For each step, one op per shard that completes when the shard is updated, and the outputs of the step.
    """
    before = [[op] for op in ready] if ready else [[] for _ in shards]
    for number in numbers:
        step = make_step(number)
        values, updates = [], []
        for shard, rows, dependencies in zip(shards, step.rows, before, strict=True):
            with tf.control_dependencies(dependencies):  # of this shard only, to not wait for other parameter servers
                value, count = shard.read(rows)
            values.append(value)
            updates.append(count)
        outputs = step.compute(values)
        clipped = optimizer.clip(shards, outputs.gradients, step.rows)
        sent = [shard.receive(shard.send(gradient)) for shard, gradient in zip(shards, clipped, strict=True)]
        applied = optimizer.apply(shards, updates, sent, step.rows)
        before = [[op] for op in applied]
        yield applied, outputs
