"""Adam (Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015) on one part of the flat parameters."""

from typing import Any

from trainer.parameters import Part
from trainer.tensorflow import tf, tf1

BETAS = (0.9, 0.999)
EPSILON = 1e-8


def apply(part: Part, updates: Any, gradient: Any, learning_rate: float) -> Any:
    """Add the ops of one update, all of them on the part's own device, in the form that ends the paper's section 2.

    Args:
        part: What to update.
        updates: int64 scalar: the updates that the part had before this one.
        gradient: float32, of the part's size.
        learning_rate: Adam's alpha.

    Returns:
        An op that is done when the part is updated and the update is counted.
    """
    with tf1.device(part.device):
        number = tf.cast(updates + 1, tf.float32)
        applied = tf.raw_ops.ResourceApplyAdam(
            var=part.values.handle,
            m=part.moments[0].handle,
            v=part.moments[1].handle,
            beta1_power=BETAS[0] ** number,
            beta2_power=BETAS[1] ** number,
            lr=learning_rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            epsilon=EPSILON,
            grad=gradient,
            use_locking=True,  # without its lock, an update that another replica makes at the same time can be lost
        )
        with tf.control_dependencies([applied]):
            return part.updates.assign_add(1, read_value=False)
