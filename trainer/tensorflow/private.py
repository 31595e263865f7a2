"""What this package uses of TensorFlow that is not public API.

It is imported from here alone: an import of TensorFlow before `trainer.tensorflow` prints its startup log.
"""

from tensorflow.python.data.experimental.ops import distribute  # tf.distribute's own sharding of datasets
from tensorflow.python.eager.context import eager_mode  # for Keras and files of models: this package builds graphs
from tensorflow.python.framework import ops
from tensorflow.python.ops import collective_ops  # those of tf.distribute

__all__ = ["collective_ops", "distribute", "eager_mode", "ops"]
