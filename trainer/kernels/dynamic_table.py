"""A table that grows, on its server: the ops on it, which row_ops.cc has.

All tasks share it by its name. Rows are found by ids of 64 bits. The initial values of a row follow from its id and the
seed of the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.kernels import library
from trainer.tensorflow_types import Operation, Tensor


@dataclass(frozen=True)
class DynamicTable:
    """Adds ops on a table to the current device."""

    name: str
    """By which tasks share it."""

    def create(
        self,
        dim: int,
        slots: Sequence[float],
        capacity: int,
        admit_after: int,
        expire_after: int,
        initializer: tuple[str, float, float],
        seed: int,
    ) -> Operation:
        """Add the op that makes an empty table, in place of one of this name.

        Args:
            dim: Numbers of a row.
            slots: The initial values of the optimizer's slots.
            capacity: The most rows. When they are in use, the least recently read ones leave.
            admit_after: An id gets a row when it is read for the time with this number, at most 255.
            expire_after: A row leaves that was not read for so long; 0: it does not.
            initializer: See `trainer.models.Growth`.
            seed: See there.
        """
        kind, first, second = initializer
        return library.load().trainer_create_dynamic_table(
            shared_name=self.name,
            dim=dim,
            slots=list(slots),
            capacity=capacity,
            admit_after=admit_after,
            expire_after=expire_after,
            initializer=kind,
            first=first,
            second=second,
            seed=seed,
        )

    def is_there(self) -> Tensor:
        """Add the op that tells whether it is there, bool scalar."""
        return library.load().trainer_has_dynamic_table(shared_name=self.name)

    def read(self, ids: Tensor, now: Tensor) -> Tensor:
        """Add the op that reads the values of rows, flat float32 [u * dim].

        Args:
            ids: int64 [u], each once. Those without a row get one, if they are admitted; if not, they read zeros.
            now: int64 scalar, below 2^31: the time, as `expire_after` counts it.
        """
        return library.load().trainer_read_dynamic_rows(ids, now, shared_name=self.name)

    def changed(self, since: Tensor, period: Tensor) -> Sequence[Tensor]:
        """Add the op that reads the rows that have changed, or left, in a period or later, and begins another one.

        Returns:
            Their numbers, int64 [k], their ids, int64 [k], when they were read, int32 [k], and their values and slots,
            float32 [k, (1 + slots) x dim].
        """
        found = library.load().trainer_changed_dynamic_rows(since, period, shared_name=self.name)
        return [found.numbers, found.ids, found.used, found.values]

    def between(self, start: Tensor, end: Tensor) -> Sequence[Tensor]:
        """Add the op that reads rows by their numbers: what `changed` returns but for these."""
        found = library.load().trainer_dynamic_rows(start, end, shared_name=self.name)
        return [found.ids, found.used, found.values]

    def load(self, ids: Tensor, used: Tensor, values: Tensor) -> Operation:
        """Add the op that puts rows into the table, as `between` reads them."""
        return library.load().trainer_load_dynamic_rows(ids, used, values, shared_name=self.name)

    def counts(self) -> Tensor:
        """Add the op that counts, int64 [5].

        Returns:
            A number above those of all rows, the rows, those that had to leave for others, the period, and the bytes
            that the index of the rows takes.
        """
        return library.load().trainer_count_dynamic_rows(shared_name=self.name)

    def begin(self, period: Tensor) -> Operation:
        """Add the op that begins a period, int32 scalar."""
        return library.load().trainer_begin_dynamic_period(period, shared_name=self.name)
