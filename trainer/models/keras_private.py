"""What this package uses of Keras that is not public API, but for attributes of its objects.

It is imported inside of functions: Keras takes a third of a task's start, and a model without it needs none.
tests/unit/test_private.py has a test for each name and attribute. pyproject.toml bounds Keras's version.
"""

from keras._tf_keras import keras as tf_keras  # with the old backend functions, as tensorflow itself has it
from keras.src.backend import Variable  # to patch: the one of `keras` is an alias
from keras.src.backend.tensorflow.optimizer import TFOptimizer  # whose methods need real variables
from keras.src.optimizers.base_optimizer import BaseOptimizer  # those for all backends
from keras.src.random.seed_generator import global_seed_generator  # of random functions without a seed

__all__ = ["BaseOptimizer", "TFOptimizer", "Variable", "global_seed_generator", "tf_keras"]
