"""Updates of the most used optimizers by one op of TensorFlow: what Keras computes by some twenty ops.

Such an op updates a vector under its lock, so that no update of another replica is lost.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from trainer.tensorflow import tf
from trainer.tensorflow_types import Operation, Tensor, Variable

Update = Callable[[Variable, Sequence[Variable], Tensor, Tensor, Tensor], Operation]
"""Adds an update: the values, the slots, the gradient, the learning rate and the number of the update, from 1 on."""


def of(optimizer: Any) -> Update | None:
    """The update of a Keras optimizer on an array, without weight decay and constraints; None if no op computes it."""
    import keras

    if optimizer.use_ema or optimizer.clipnorm or optimizer.clipvalue:
        return None
    if type(optimizer) in (keras.optimizers.Adam, keras.optimizers.AdamW):
        return partial(adam, betas=(optimizer.beta_1, optimizer.beta_2), epsilon=optimizer.epsilon)
    return _sgd(optimizer) if type(optimizer) is keras.optimizers.SGD else None


def adam(
    values: Variable,
    slots: Sequence[Variable],
    gradient: Tensor,
    rate: Tensor | float,
    number: Tensor,
    betas: tuple[float, float],
    epsilon: float,
) -> Operation:
    """Add an update by Adam. A third slot has AMSGrad's largest second moment."""
    count = tf.cast(number, tf.float32)
    arguments = {
        "var": values.handle,
        "m": slots[0].handle,
        "v": slots[1].handle,
        "beta1_power": betas[0] ** count,
        "beta2_power": betas[1] ** count,
        "lr": rate,
        "beta1": betas[0],
        "beta2": betas[1],
        "epsilon": epsilon,
        "grad": gradient,
        "use_locking": True,
    }
    if len(slots) > 2:
        return tf.raw_ops.ResourceApplyAdamWithAmsgrad(vhat=slots[2].handle, **arguments)
    return tf.raw_ops.ResourceApplyAdam(**arguments)


def _sgd(optimizer: Any) -> Update:
    """Slots: with `momentum`, the sum of the changes."""

    def update(values: Variable, slots: Sequence[Variable], gradient: Tensor, rate: Tensor, _: Tensor) -> Operation:
        if not slots:
            return tf.raw_ops.ResourceApplyGradientDescent(
                var=values.handle, alpha=rate, delta=gradient, use_locking=True
            )
        return tf.raw_ops.ResourceApplyKerasMomentum(
            var=values.handle,
            accum=slots[0].handle,
            lr=rate,
            grad=gradient,
            momentum=optimizer.momentum,
            use_locking=True,
            use_nesterov=optimizer.nesterov,
        )

    return update
