"""The loss and the metrics of an epoch: sums over its batches, which the chief reads at its end.

A vector has the state of all metrics, one array after the other, then the sum of the losses of all examples, then the
number of these. With one learner, each step continues the state, as in Keras's `fit`. Several learners begin each step
with a state of its own, and the vector is the sum of the states, as with `tf.distribute`.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer.data.examples import Array
from trainer.graph.replication import StepOutputs
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Tensor, Variable


@dataclass(frozen=True)
class Totals:
    """The sums of an epoch."""

    vector: Variable
    """float32 variable [n + 2]."""
    value: Tensor
    """Its value."""
    reset: Operation
    """Begins an epoch."""
    taken: Tensor
    """float32 placeholder [n + 2]: the vector at the end of an epoch."""
    begin_next: Operation
    """Begins the next epoch, with what was added after `taken` was read."""
    is_running: bool
    """Whether there is one learner."""
    no_counts: Sequence[Array]
    """The state of the metrics before the first batch."""
    begun: npt.NDArray[np.float32]
    """The vector at the begin of an epoch."""

    @classmethod
    def create(cls, no_counts: Sequence[Array], device: str, is_running: bool) -> "Totals":
        """Add the vector to the default graph, on this device."""
        begun = np.concatenate([*(each.astype(np.float32).ravel() for each in no_counts), np.zeros(2, np.float32)])
        with tf1.device(device):
            vector = tf1.get_variable("totals", initializer=begun, trainable=False, use_resource=True)
            taken = tf1.placeholder(tf.float32, begun.shape)
            rest = vector.initializer if is_running else vector.assign_add(begun - taken, read_value=False)
        return cls(vector, vector.read_value(), vector.initializer, taken, rest, is_running, no_counts, begun)

    def split(self, vector: Tensor) -> list[Tensor]:
        """The state of the metrics in a vector."""
        sizes = [each.size for each in self.no_counts]
        starts = itertools.accumulate(sizes, initial=0)
        return [
            tf.cast(tf.reshape(vector[start : start + size], each.shape), each.dtype)
            for start, size, each in zip(starts, sizes, self.no_counts, strict=False)
        ]

    def after(self, before: Tensor | None, outputs: StepOutputs, examples: Tensor) -> Tensor:
        """The vector after a batch of this many examples, which count; before it, None is the begin of an execution."""
        flat = [tf.cast(tf.reshape(each, [-1]), tf.float32) for each in outputs.counts]
        own = tf.concat([*flat, [tf.math.multiply_no_nan(outputs.loss, examples), examples]], axis=0)
        if self.is_running:
            assert before is not None  # noqa: S101 - an execution begins with the vector
            kept = tf.concat([tf.zeros([int(own.shape[0]) - 2]), before[-2:]], axis=0)
            return own + kept
        added = tf.math.multiply_no_nan(own - self.begun, tf.cast(examples > 0, tf.float32))
        return added if before is None else before + added

    def add(self, vector: Tensor) -> Operation:
        """Add the op that follows an execution."""
        with tf1.device(self.vector.device):
            if self.is_running:
                return self.vector.assign(vector, read_value=False)
            return self.vector.assign_add(vector, read_value=False, use_locking=True)

    def parse(self, vector: npt.NDArray[np.float32]) -> tuple[list[Array], float, float]:
        """The state of the metrics, the mean loss, and the number of examples, of the value of a vector."""
        counts, start = [], 0
        for each in self.no_counts:
            counts.append(vector[start : start + each.size].reshape(each.shape).astype(each.dtype))
            start += each.size
        loss, examples = map(float, vector[-2:])
        return counts, loss / examples if examples else math.nan, examples
