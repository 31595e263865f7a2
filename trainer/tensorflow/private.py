"""What this package uses of TensorFlow that is not public API.

It is imported from here alone: an import of TensorFlow before `trainer.tensorflow` prints its startup log.
"""

import contextlib
from collections.abc import Iterator

from tensorflow.python.data.experimental.ops import distribute  # tf.distribute's own sharding of datasets
from tensorflow.python.eager import context  # what a user's file has set
from tensorflow.python.eager.context import eager_mode  # for Keras and files of models: this package builds graphs
from tensorflow.python.framework import ops
from tensorflow.python.ops import collective_ops  # those of tf.distribute

__all__ = ["collective_ops", "distribute", "eager_mode", "ops", "without_op_callbacks"]


@contextlib.contextmanager
def without_op_callbacks() -> Iterator[None]:
    """Build ops as they are, also where a model's file has called `tf.debugging.enable_check_numerics`."""
    found = list(context.context().op_callbacks)
    for each in found:
        context.context().remove_op_callback(each)
    try:
        yield
    finally:
        for each in found:
            context.context().add_op_callback(each)
