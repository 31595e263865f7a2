"""Events on parameter servers, with which tasks that share no session signal each other.

An event is a queue with a name that all tasks share. It is set while the queue is not empty. The parameter server and
the saver add its ops to their graphs.
"""

from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Operation, Tensor

DONE = "run_is_done"
"""The chief sets it when the run is done; parameter servers then exit."""
SAVING = "saving"
"""Set while the chief saves the variables of the parameter server, which must not exit during the save."""

LEAVING = "leaving"
"""A parameter server sets it when it is told to end. The chief clears it when it has saved what is there."""


class SharedEvent:
    """The ops of one event on one device, in the default graph. Each op can run repeatedly."""

    def __init__(self, name: str, device: str) -> None:
        with tf1.device(device):
            queue = tf.queue.FIFOQueue(100, tf.bool, shapes=[()], shared_name=name, name=name)
            self._queue, self._device = queue, device

    def set(self) -> Operation:
        """Add an op that sets the event. It clears the event first, so that the queue never fills."""
        with tf.control_dependencies([self.clear()]), tf1.device(self._device):
            return self._queue.enqueue(True)

    def clear(self) -> Operation:
        """Add an op that clears the event."""
        with tf1.device(self._device):
            return self._queue.dequeue_many(self._queue.size()).op

    def is_set(self) -> Tensor:
        """Add a bool scalar: whether the event is set."""
        with tf1.device(self._device):
            return tf.greater(self._queue.size(), 0)
