"""The interface of optimizers on shards of the flat parameters, and what all of them do: clipping and counting.

Clipping by global norm: Pascanu, Mikolov and Bengio, 2013.
Staleness-aware learning rate: Zhang, Gupta, Lian and Liu, "Staleness-aware Async-SGD for Distributed Deep Learning",
2016.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

from trainer.config import Settings
from trainer.shards.parameters import Rows, Shard
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Tensor, Variable

BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class Optimizer(ABC):
    """Adds the ops of updates."""

    settings: Settings
    shared: bool
    """Whether replicas update the shards asynchronously, so that a gradient can be stale."""
    scale: Variable = None
    """float32 variable that multiplies the learning rate; None if that cannot change."""

    @classmethod
    def create(cls, settings: Settings, shared: bool, device: str, scaled: bool, **more: Any) -> Self:
        """The optimizer for these settings. With `scaled`, its learning rate may change; that is on this device."""
        if not scaled:
            return cls(settings, shared, **more)
        with tf1.device(device):
            scale = tf1.get_variable("learning_rate_scale", initializer=1.0, trainable=False, use_resource=True)
            return cls(settings, shared, scale, **more)

    @property
    def variables(self) -> list[Variable]:
        """The variables of the optimizer that are not in the shards."""
        return [] if self.scale is None else [self.scale]

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """Names of the slot vectors of each shard, all with the shard's size."""

    @property
    @abstractmethod
    def slot_values(self) -> Mapping[str, float]:
        """The initial values of slots that are not 0."""

    def apply(
        self, shards: Sequence[Shard], updates: Sequence[Tensor], gradients: Sequence[Tensor], rows: Sequence[Rows]
    ) -> list[Operation]:
        """Add the ops of one update of all shards, each on the device of its shard.

        Args:
            shards: The shards to update.
            updates: int64 scalar for each shard: its update count when the parameters were read.
            gradients: float32 for each shard: the gradients of its trainable parameters, then the differences to add
                to the others, and then the gradients of the rows.
            rows: The rows of each shard that have a gradient.

        Returns:
            For each shard, an op that completes when the shard is updated and the update is counted.
        """
        return [self._apply(*each) for each in zip(shards, updates, gradients, rows, strict=True)]

    @property
    @abstractmethod
    def global_clipnorm(self) -> float | None:
        """The largest norm of the whole gradient; None does not clip it."""

    def clip(self, shards: Sequence[Shard], changes: Sequence[Tensor], rows: Sequence[Rows]) -> Sequence[Tensor]:
        """Clip gradients, in the form of those of `apply`, by their global norm, if the settings say so.

        Each one stays on its device: only norms cross from one to another.
        """
        limit = self.global_clipnorm
        if limit is None:
            return changes
        halves, parts = [], []
        for shard, change, own in zip(shards, changes, rows, strict=True):
            with tf1.device(change.device):
                dense, of_rows = shard.split_rows(change, own)
                gradient, *differences = shard.split(dense)
                halves.append(tf.add_n([tf.nn.l2_loss(each) for each in (gradient, *of_rows)]))
                parts.append((gradient, differences, of_rows))
        with tf1.device(changes[0].device):
            norm = tf.sqrt(2 * tf.add_n(halves))
            scale = limit * tf.minimum(1 / norm, 1 / limit) + (norm - norm)  # NaN for a norm that is not finite
        found = []
        for change, (gradient, differences, of_rows) in zip(changes, parts, strict=True):
            with tf1.device(change.device):
                joined = [gradient * scale, *differences, *(each * scale for each in of_rows)]
                found.append(joined[0] if len(joined) == 1 else tf.concat(joined, axis=0))
        return found

    def _apply(self, shard: Shard, updates: Tensor, change: Tensor, rows: Rows) -> Operation:
        with tf1.device(shard.device):
            change = tf.identity(change)  # on this device, so that control dependencies on it cross no wire
            if shard.accepted_from is not None:
                with tf.control_dependencies([change]):
                    is_accepted = updates >= shard.accepted_from.read_value()
                change = tf.where(is_accepted, change, tf.zeros_like(change))
            dense, of_rows = shard.split_rows(change, rows)
            if shard.accepted_from is not None and rows:  # without a gradient, moments still move a row
                rows = [own[: tf.where(is_accepted, tf.size(own), 0)] for own in rows]
                sizes = [table.dim * tf.size(own) for table, own in zip(shard.tables, rows, strict=True)]
                of_rows = [each[:size] for each, size in zip(of_rows, sizes, strict=True)]
            gradient, *differences = shard.split(dense)
            others = zip(shard.parameters[1:], differences, strict=True)
            applied = [other.assign_add(each, use_locking=True, read_value=False) for other, each in others]
            applied.append(self._update(shard, updates, gradient, rows, of_rows))
            with tf.control_dependencies(applied):
                return shard.updates.assign_add(1, read_value=False)

    @abstractmethod
    def _update(
        self, shard: Shard, updates: Tensor, gradient: Tensor, rows: Rows, of_rows: Sequence[Tensor]
    ) -> Operation:
        """Add the ops that update the trainable parameters, these rows of the tables, and the slots.

        They are on the current device. `of_rows` has the gradients of the rows, flat.
        """

    def _alone(self, shard: Shard, update: Callable[[], Operation]) -> Operation:
        """Add an update during which no other replica updates the shard, or one of the two would be lost.

        Nor does a snapshot read tables meanwhile.
        """
        return shard.alone(update) if self.shared or shard.tables else update()

    def scale_after(self, gradient: Tensor) -> Tensor:
        """The value of `scale` once a gradient is there: it may change while a synchronous update waits for that."""
        with tf.control_dependencies([gradient]):
            return self.scale.read_value()

    def _divide_by_staleness(self, rate: Tensor, shard: Shard, updates: Tensor, gradient: Tensor) -> Tensor:
        """The rate divided by the gradient's staleness: other replicas' updates since the parameters were read."""
        if not (self.shared and self.settings.staleness_aware):
            return rate
        with tf.control_dependencies([gradient]):
            staleness = tf.cast(shard.updates.read_value() - updates, tf.float32)
        return rate / tf.maximum(1.0, staleness)
