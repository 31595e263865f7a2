"""Flags on parameter servers: words between tasks that share no session.

A flag is a queue whose name all tasks know, and is up while there is something in it. Those who build graphs add its
ops: the server's own life, and the saver's.
"""

from typing import Any

from trainer.tensorflow import tf, tf1

DONE = "run_is_done"
"""Put up by the chief when the run is done: parameter servers may end."""
SAVING = "saving"
"""Up while the chief saves what the parameter server holds, which is not to end before that."""


class SharedEvent:
    """The ops of one flag on one device, in the default graph; each acts anew whenever it is run."""

    def __init__(self, name: str, device: str) -> None:
        with tf1.device(device):
            queue = tf.queue.FIFOQueue(100, tf.bool, shapes=[()], shared_name=name, name=name)
            self._queue, self._device = queue, device

    def set(self) -> Any:
        """Add an op that puts it up; first it is taken down, so that the queue never fills."""
        with tf.control_dependencies([self.clear()]), tf1.device(self._device):
            return self._queue.enqueue(True)

    def clear(self) -> Any:
        """Add an op that takes it down."""
        with tf1.device(self._device):
            return self._queue.dequeue_many(self._queue.size()).op

    def is_set(self) -> Any:
        """Add a bool scalar: whether it is up."""
        with tf1.device(self._device):
            return tf.greater(self._queue.size(), 0)
