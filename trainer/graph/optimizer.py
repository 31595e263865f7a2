"""The update of a step: Adam and what keeps it stable, on the shards of the flat parameters.

Adam is by Kingma and Ba ("Adam: A Method for Stochastic Optimization", 2015), in the form that ends their section 2.
When gradients vanish late in a run, its second moment decays, and one batch can then throw the parameters far off.
AMSGrad (Reddi, Kale and Kumar, "On the Convergence of Adam and Beyond", 2018) divides by the largest second moment so
far, which never decays. Weight decay is decoupled (Loshchilov and Hutter, 2019), clipping is by the norm of the whole
gradient (Pascanu, Mikolov and Bengio, 2013), and a stale gradient counts less (Zhang, Gupta, Lian and Liu,
"Staleness-aware Async-SGD for Distributed Deep Learning", 2016).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.config import Settings
from trainer.graph.parameters import Shard
from trainer.tensorflow import tf, tf1

BETAS = (0.9, 0.999)
MOMENTS = ("Adam", "Adam_1")
"""The slots of Adam, by the names that TensorFlow's own optimiser gives them in checkpoints."""
LARGEST_MOMENT = "vhat"
"""The slot of AMSGrad, likewise."""


@dataclass(frozen=True)
class Optimizer:
    """Adds the ops of updates, as the settings say."""

    settings: Settings
    shared: bool
    """Whether replicas update the shards each on its own, so that a gradient may be stale."""
    scale: Any = None
    """float32 variable by which the learning rate is multiplied, where the run may be rolled back; else None."""
    scale_now: Any = None
    """Its value, read once in each run of the session."""

    @classmethod
    def create(cls, settings: Settings, shared: bool, device: str) -> "Optimizer":
        """The optimiser of these settings, and its variable on this device, where it needs one."""
        if settings.on_divergence != "restore":
            return cls(settings, shared)
        with tf1.device(device):
            scale = tf1.get_variable("learning_rate_scale", initializer=1.0, trainable=False, use_resource=True)
            return cls(settings, shared, scale, scale.read_value())

    @property
    def variables(self) -> list[Any]:
        """All variables beside those of the shards."""
        return [] if self.scale is None else [self.scale]

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the vectors that each shard has beside its values, each of the shard's size."""
        return (*MOMENTS, LARGEST_MOMENT) if self.settings.amsgrad else MOMENTS

    def apply(self, shards: Sequence[Shard], updates: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Add the ops of one update of all shards, each on its shard's own device.

        Args:
            shards: What to update.
            updates: int64 scalar of each shard: the updates that it had when the parameters were read.
            gradients: float32 [n] of each shard.

        Returns:
            For each shard an op that is done when it is updated and the update is counted.
        """
        return [
            self._apply(shard, count, gradient)
            for shard, count, gradient in zip(shards, updates, self._clip(gradients), strict=True)
        ]

    def _clip(self, gradients: Sequence[Any]) -> Sequence[Any]:
        limit = self.settings.global_clipnorm
        return gradients if limit is None else tf.clip_by_global_norm(gradients, limit)[0]

    def _apply(self, shard: Shard, updates: Any, gradient: Any) -> Any:
        with tf1.device(shard.device):
            gradient = tf.identity(gradient)  # here, so that what waits for it needs no message of its own
            if shard.accepted_from is not None:
                with tf.control_dependencies([gradient]):
                    is_accepted = updates >= shard.accepted_from.read_value()
                gradient = tf.where(is_accepted, gradient, tf.zeros_like(gradient))
            rate = self._weighted(self.rate(updates), shard, updates, gradient)
            decayed = []
            if self.settings.weight_decay:
                with tf.control_dependencies([gradient]):
                    decay = rate * self.settings.weight_decay * shard.values.read_value()
                    decayed.append(shard.values.assign_sub(decay, read_value=False, use_locking=True))
            number = tf.cast(updates + 1, tf.float32)
            arguments = {
                "var": shard.values.handle,
                "m": shard.slots[0].handle,
                "v": shard.slots[1].handle,
                "beta1_power": BETAS[0] ** number,
                "beta2_power": BETAS[1] ** number,
                "lr": rate,
                "beta1": BETAS[0],
                "beta2": BETAS[1],
                "epsilon": self.settings.epsilon,
                "grad": gradient,
                "use_locking": True,  # without its lock, an update that another replica makes meanwhile can be lost
            }
            with tf.control_dependencies(decayed):
                if self.settings.amsgrad:
                    applied = tf.raw_ops.ResourceApplyAdamWithAmsgrad(vhat=shard.slots[2].handle, **arguments)
                else:
                    applied = tf.raw_ops.ResourceApplyAdam(**arguments)
            with tf.control_dependencies([applied]):
                return shard.updates.assign_add(1, read_value=False)

    def rate(self, step: Any) -> Any:
        """The learning rate of the update after this global step: a float, or a float32 scalar where it changes."""
        settings = self.settings
        base = settings.learning_rate * (1.0 if self.scale is None else self.scale_now)
        if settings.learning_rate_schedule == "constant" and not settings.warmup_steps:
            return base
        step = tf.cast(step, tf.float32)
        warmup = settings.warmup_steps
        left = 1 - tf.clip_by_value((step - warmup) / max(1, settings.train_steps - warmup), 0.0, 1.0)
        share = {
            "constant": tf.ones_like(left),
            "linear": left,
            "cosine": 0.5 - 0.5 * tf.cos(math.pi * left),
        }[settings.learning_rate_schedule]
        risen = tf.minimum(1.0, (step + 1) / warmup) if warmup else 1.0
        return base * risen * share

    def _weighted(self, rate: Any, shard: Shard, updates: Any, gradient: Any) -> Any:
        """The rate, divided by the gradient's staleness: the updates that others have made since it was read."""
        if not (self.shared and self.settings.staleness_aware):
            return rate
        with tf.control_dependencies([gradient]):
            staleness = tf.cast(shard.updates.read_value() - updates, tf.float32)
        return rate / tf.maximum(1.0, staleness)
