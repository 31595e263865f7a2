"""The trainer's own optimizer, of models that no compile() gives one: Adam with optional AMSGrad, decay and schedule.

Adam: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, in the form at the end of section 2. When
gradients vanish late in a run, its second moment decays, and a single batch can then cause a very large update.
AMSGrad: Reddi, Kale and Kumar, "On the Convergence of Adam and Beyond", 2018. It divides by the largest second moment
so far, which never decays.
Decoupled weight decay: Loshchilov and Hutter, 2019.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainer.graph import fused_update
from trainer.graph.optimizer import Optimizer
from trainer.models.op_template import OpTemplate, trace
from trainer.shards.parameters import Rows, Shard, ShardArray, join_arrays, split_arrays
from trainer.shards.slots import LARGEST_MOMENT, MOMENTS
from trainer.tensorflow import tf
from trainer.tensorflow_types import Operation, Tensor

BETAS = (0.9, 0.999)


@dataclass(frozen=True)
class AdamOptimizer(Optimizer):
    """Adds the updates that the settings of the run describe. It has no tables."""

    last_step: Callable[[], Tensor] | None = None
    """Adds the last global step, at which a schedule ends; None if that is `train_steps`."""

    @property
    def slots(self) -> tuple[str, ...]:
        return (*MOMENTS, LARGEST_MOMENT) if self.settings.amsgrad else MOMENTS

    @property
    def slot_values(self) -> Mapping[str, float]:
        return {}

    @property
    def global_clipnorm(self) -> float | None:
        return self.settings.global_clipnorm

    def _update(
        self, shard: Shard, updates: Tensor, gradient: Tensor, rows: Rows, of_rows: Sequence[Tensor]
    ) -> Operation:
        rate = self._divide_by_staleness(self.rate(updates, gradient), shard, updates, gradient)
        decayed = []
        if self.settings.weight_decay:
            with tf.control_dependencies([gradient]):
                decay = rate * self.settings.weight_decay * shard.values.read_value()
                decayed.append(shard.values.assign_sub(decay, read_value=False, use_locking=True))

        def update() -> Operation:
            return fused_update.adam(
                shard.values, shard.slots, gradient, rate, updates + 1, BETAS, self.settings.epsilon
            )

        def update_constrained() -> Operation:
            with tf.control_dependencies([update()]):
                (constrained,) = _constraints(shard.arrays).copy([shard.values.read_value()], "constraints")
            return shard.values.assign(constrained, read_value=False)

        with tf.control_dependencies(decayed):
            return self._alone(shard, update_constrained) if shard.is_constrained else update()

    def rate(self, step: Tensor, gradient: Tensor) -> Tensor:
        """The learning rate of the update by a gradient after this global step: a float if constant, else a scalar."""
        settings = self.settings
        base = settings.learning_rate * (1.0 if self.scale is None else self.scale_after(gradient))
        if settings.learning_rate_schedule == "constant" and not settings.warmup_steps:
            return base
        step = tf.cast(step, tf.float32)
        warmup = settings.warmup_steps
        last = tf.cast(self.last_step() if self.last_step else settings.train_steps, tf.float32)
        remaining = 1 - tf.clip_by_value((step - warmup) / tf.maximum(1.0, last - warmup), 0.0, 1.0)
        decay = {
            "constant": tf.ones_like(remaining),
            "linear": remaining,
            "cosine": 0.5 - 0.5 * tf.cos(math.pi * remaining),
        }[settings.learning_rate_schedule]
        warmup_factor = tf.minimum(1.0, (step + 1) / warmup) if warmup else 1.0
        return base * warmup_factor * decay


@functools.cache
def _constraints(arrays: tuple[ShardArray, ...]) -> OpTemplate:
    """The ops that apply the constraints of these arrays to the vector that consists of them."""

    def constrain(vector: Tensor) -> list[Tensor]:
        pieces = zip(split_arrays(vector, arrays), arrays, strict=True)
        return [join_arrays([each.constraint(piece) if each.constraint else piece for piece, each in pieces])]

    return trace(constrain, tf.TensorSpec([sum(math.prod(each.shape) for each in arrays)], tf.float32))
