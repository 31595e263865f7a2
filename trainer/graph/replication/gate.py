"""The gate at which replicas wait for the chief, whose callbacks may set what all train with.

After a step that hooks follow, each replica notes that it has arrived, when its sums of the epoch are added. The chief
calls the hooks once all have that took the step, and then notes the step too, so that the others go on.
"""

from dataclasses import dataclass

from trainer.graph.replication.membership import set_element, vector
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Tensor, Variable

NOWHERE = -1
"""Where a replica is that has not noted a step yet."""


@dataclass(frozen=True)
class Gate:
    """The ops of one replica."""

    reached: Tensor
    """int64 [replicas]: the global step that each has noted last; the first one is the chief."""
    step: Tensor
    """int64 scalar: the placeholder for the step of `note`."""
    note: Operation
    """Notes this step for this replica."""
    variable: Variable
    """Its initializer closes the gate: the chief runs it before the others start."""

    @classmethod
    def create(cls, replicas: int, index: int, device: str) -> "Gate":
        """Add the ops of the replica with this index to the default graph. All replicas share the vector by name."""
        with tf1.device(device):
            variable = vector("hooks_reached", replicas, NOWHERE)
            step = tf1.placeholder(tf.int64, [])
            return cls(variable.read_value(), step, set_element(variable, index, step), variable)
