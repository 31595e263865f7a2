"""The part on a parameter server of a table that grows: rows for the ids that it has seen."""

from dataclasses import dataclass

from trainer.kernels.dynamic_table import DynamicTable
from trainer.kernels.row_update import RowUpdate
from trainer.models import Growth
from trainer.tensorflow import tf
from trainer.tensorflow_types import Operation, Tensor, Variable

BEGIN_OF_TIME = 1_577_836_800
"""1 January 2020, from which seconds are counted, in 31 bits."""


@dataclass(frozen=True)
class DynamicPart:
    """The rows of a table that grows on one parameter server, which are found by their ids."""

    name: str
    """That of the parameter."""
    dim: int
    """Numbers of a row."""
    rows: int
    """The most rows of this part."""
    growth: Growth
    slots: tuple[float, ...]
    """The initial values of the optimizer's slots."""
    decays: bool
    """Whether weight decay applies."""
    table: DynamicTable
    """The ops on it."""
    run_id: Variable
    """string variable: the run that it belongs to."""

    @property
    def all_variables(self) -> list[Variable]:
        """All variables of this part."""
        return [self.run_id]

    def initialize(self) -> list[Operation]:
        """Add the op that makes the table, without rows."""
        growth = self.growth
        limits = (self.rows, growth.admit_after, growth.expire_after)
        return [self.table.create(self.dim, self.slots, *limits, growth.initializer, growth.seed)]

    def is_initialized(self) -> list[Tensor]:
        """Add the op, bool scalar, that tells whether the table is there."""
        return [self.table.is_there()]

    def read(self, rows: Tensor, updates: Tensor) -> Tensor:
        """Add the op that reads the rows of ids, int64 [u], flat, after this number of updates of the shard, int64."""
        now = tf.cast(tf.timestamp(), tf.int64) - BEGIN_OF_TIME if self.growth.in_seconds else updates
        return self.table.read(rows, now)

    def update(
        self, by_row: RowUpdate, rows: Tensor, gradients: Tensor, rate: Tensor | float, count: Tensor
    ) -> Operation:
        """Add the op that updates the rows of ids by an optimizer, and marks them; see `RowUpdate.add_dynamic`."""
        return by_row.add_dynamic(self.table.name, rows, gradients, rate, count, self.decays)
