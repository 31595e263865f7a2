"""Steps that apply what they learn themselves, unrolled in the graph."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from trainer.graph.optimizer import Optimizer
from trainer.graph.parameters import Part
from trainer.graph.replication import Learn, Lesson
from trainer.tensorflow import tf


def take(
    parts: Sequence[Part],
    learn: Learn,
    optimizer: Optimizer,
    numbers: Iterable[int],
    ready: Sequence[Any] | None = None,
) -> Iterator[tuple[list[Any], Lesson]]:
    """Add the ops of one step after another, each of which reads the parameters after the one before has updated them.

    Args:
        parts: Where the parameters are.
        learn: Gives the gradients.
        optimizer: Applies them.
        numbers: Of the batches of these steps in their call.
        ready: For each part the op that must be done before the first step reads it, if there is one.

    Yields:
        After each step the ops that are done when each part is updated, and what was learnt.
    """
    before = [[op] for op in ready] if ready else [[] for _ in parts]
    for number in numbers:
        values, updates = [], []
        for part, done in zip(parts, before, strict=True):
            with tf.control_dependencies(done):  # of its own device alone: no other parameter server is waited for
                value, count = part.read()
            values.append(value)
            updates.append(count)
        lesson = learn(values, number)
        applied = optimizer.apply(parts, updates, lesson.gradients)
        before = [[op] for op in applied]
        yield applied, lesson
