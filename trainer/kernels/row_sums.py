"""What collects the contributions of replicas to the rows of a table in a synchronous round.

Contributions are marked with the step at which they were computed, and those to earlier rounds are dropped, as by
TensorFlow's accumulators.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from trainer.kernels import library
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Tensor, Variable


class RowSums(Protocol):
    """The sums of a table. Its ops are added to the current device, that of the table."""

    def add(self, rows: Tensor, gradients: Tensor, weight: Tensor, step: Tensor) -> Operation:
        """Add the op of a contribution at this step: rows int64 [u], each once, gradients [u * dim], and its weight."""
        ...

    def take(self) -> tuple[Tensor, Tensor]:
        """Add the ops that end a round: its rows, int64 [u], and their averages, float32 [u * dim]."""
        ...

    def start(self, step: Tensor) -> Operation:
        """Add the op that starts a round at this step."""
        ...

    def empty(self) -> Operation:
        """Add the op that drops all contributions."""
        ...


def check(kept: Variable) -> Operation:
    """Add the op that fails unless all replicas have the same sums: else those of some would be lost.

    Args:
        kept: bool variable, which the chief initializes with `are_kept`.
    """
    return tf1.Assert(tf.equal(kept.read_value(), are_kept()), [library.DIFFERENT])


def are_kept() -> bool:
    """Whether the sums of this task are by the ops in C++."""
    return library.load() is not None


def create(name: str, rows: int, dim: int) -> RowSums:
    """Add the sums of a table to the default graph, on the current device. All tasks share them by their name.

    Args:
        name: The name.
        rows: Those of the table.
        dim: Numbers of a row.
    """
    if ops := library.load():
        return _Kept(ops, name, dim)
    accumulator = tf1.SparseConditionalAccumulator(
        tf.float32, [rows + 1, dim], shared_name=name, name=name, reduction_type="SUM"
    )
    return _Accumulated(accumulator, rows, dim)


@dataclass(frozen=True)
class _Kept:
    """By the ops in C++."""

    ops: Any
    name: str
    dim: int

    def add(self, rows: Tensor, gradients: Tensor, weight: Tensor, step: Tensor) -> Operation:
        return self.ops.trainer_add_to_row_sums(rows, gradients, weight, step, shared_name=self.name, dim=self.dim)

    def take(self) -> tuple[Tensor, Tensor]:
        return tuple(self.ops.trainer_take_row_sums(shared_name=self.name))

    def start(self, step: Tensor) -> Operation:
        return self.ops.trainer_start_row_sums(step, shared_name=self.name)

    def empty(self) -> Operation:
        return self.take()[0].op


@dataclass(frozen=True)
class _Accumulated:
    """By a `SparseConditionalAccumulator`. The last row of a contribution has its weight."""

    accumulator: Any
    rows: int
    dim: int

    def add(self, rows: Tensor, gradients: Tensor, weight: Tensor, step: Tensor) -> Operation:
        order = tf.argsort(rows)  # an accumulator merges sorted rows
        values = tf.gather(tf.reshape(gradients, [-1, self.dim]), order)
        ids = tf.concat([tf.gather(rows, order), [self.rows]], axis=0)
        values = tf.concat([values, tf.fill([1, self.dim], weight)], axis=0)
        return self.accumulator.apply_grad(ids, values, local_step=step)

    def take(self) -> tuple[Tensor, Tensor]:
        found = self.accumulator.take_indexed_slices_grad(1)
        averages = tf.math.divide_no_nan(found.values[:-1], found.values[-1:])
        return found.indices[:-1], tf.reshape(averages, [-1])

    def start(self, step: Tensor) -> Operation:
        return self.accumulator.set_global_step(step)

    def empty(self) -> Operation:
        """It adds something first, so that the take does not block."""
        added = self.accumulator.apply_grad([self.rows], tf.ones([1, self.dim]), local_step=tf.int64.max)
        with tf.control_dependencies([added]):
            return self.accumulator.take_indexed_slices_grad(1).values.op
