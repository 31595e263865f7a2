"""Which replicas take part in a run with parameter servers, as the first parameter server knows it.

Workers may come and go during a run. A vector has a number for each listed replica: the global step of its last
contribution, or ABSENT. A replica writes its own number when it contributes, pauses or leaves; the chief reads them
all (`trainer.training.watch.replica_monitor`).
"""

from dataclasses import dataclass

from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Tensor, Variable

ABSENT = -(2**63)
"""The number of a replica that has not contributed yet, or has left."""
PAUSED = ABSENT + 1
"""That of a replica which waits for a lease."""


@dataclass(frozen=True)
class Membership:
    """The ops of one replica."""

    last_steps: Tensor
    """int64 [replicas]: for each replica, the global step of its last contribution, or ABSENT."""
    reset: Operation
    """Makes every replica absent. The chief runs it before the others start; those that train contribute again."""
    leave: Operation
    """Makes this replica absent."""
    pause: Operation
    """Lets the others go on without this replica until its next contribution."""
    _variable: Variable
    _device: str
    _index: int

    @classmethod
    def create(cls, replicas: int, index: int, device: str) -> "Membership":
        """Add the ops of the replica with this index to the default graph. All replicas share the vector by name."""
        with tf1.device(device):
            variable = vector("last_steps", replicas, ABSENT)
            leave, pause = set_element(variable, index, ABSENT), set_element(variable, index, PAUSED)
            return cls(variable.read_value(), variable.initializer, leave, pause, variable, device, index)

    def contributed(self, step: Tensor) -> Operation:
        """Add an op after the current control dependencies: this replica has contributed to this global step."""
        with tf1.device(self._device):
            return set_element(self._variable, self._index, step)


def vector(name: str, replicas: int, value: int) -> Variable:
    """Add a variable int64 [replicas]. Its name has their number, as servers may keep that of another one."""
    initial = tf.fill([replicas], tf.constant(value, tf.int64))
    return tf1.get_variable(f"{name}_of_{replicas}", initializer=initial, trainable=False, use_resource=True)


def set_element(variable: Variable, index: int, step: Tensor | int) -> Operation:
    """Add the op that sets one element of a vector of int64."""
    return tf.raw_ops.ResourceScatterUpdate(
        resource=variable.handle, indices=tf.constant(index), updates=tf.cast(step, tf.int64)
    )
