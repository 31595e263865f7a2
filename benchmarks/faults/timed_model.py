"""The network `mlp` with steps of a fixed length, so that a run's rate does not depend on the machine's load.

A run under faults needs steps that last, as a large model's do, and cores that are free for what recovers. So each
step sleeps until STEP_SECONDS have passed since the previous one. It reads its parameters first, so that the steps of
an execution sleep one after the other. After SIGUSR1 a replica's steps no longer sleep, so that a run ends soon.
"""

import os
import signal
import threading
import time
from collections.abc import Mapping

from trainer.models import mlp
from trainer.models.mlp import parameters
from trainer.tensorflow import tf
from trainer.tensorflow_types import Tensor

__all__ = ["logits", "parameters"]
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.025"))
_next = 0.0
"""When the next step may go on, by the monotonic clock."""
_is_hurried = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: _is_hurried.set())


def logits(parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Logits [batch, classes] of images [batch, ...]."""
    slept = tf.numpy_function(_sleep, [parameters["softmax/biases"]], tf.float32)
    with tf.control_dependencies([slept]):
        return mlp.logits(parameters, tf.identity(images))


def _sleep(biases: object) -> object:
    global _next
    if _is_hurried.is_set():
        return biases
    now = time.monotonic()
    _next = max(_next + STEP_SECONDS, now)
    time.sleep(_next - now)
    return biases
