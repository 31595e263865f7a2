"""A model that counts how often it was trained with each example: its parameters are the ledger of a run.

Example n adds 1 to weight n, whatever other examples its step has, and a checkpoint that is restored takes back what
came after it. Each step lasts at least STEP_SECONDS. A step that has an example twice counts it once.

    trainer launch --model benchmarks/faults/ledger_model.py --epochs 3 --ps 1 --workers 4 --train_dir /tmp/ledger
    python -m benchmarks.faults.ledger /tmp/ledger 3
"""

import os
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

EXAMPLES = int(os.environ.get("LEDGER_EXAMPLES", "20000"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.025"))


class Count(keras.optimizers.Optimizer):
    """Adds the learning rate to each value that has a gradient."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a variable."""
        rate = keras.ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, keras.ops.sign(gradient) * rate)


class Ledger(keras.layers.Layer):
    """The weight of each example."""

    def build(self, shape: Any) -> None:
        """Make the weights."""
        self.counts = self.add_weight(shape=(EXAMPLES,), initializer="zeros", name="counts")

    def call(self, numbers: Any) -> Any:
        """The weights of these examples."""
        slept = tf.numpy_function(_sleep, [numbers], tf.int32, stateful=True)
        return keras.ops.take(self.counts, keras.ops.reshape(slept, keras.ops.shape(numbers)), axis=0)


def _sleep(numbers: Any) -> Any:
    time.sleep(STEP_SECONDS)
    return numbers


def model() -> keras.Model:
    """The weights."""
    made = keras.Sequential([keras.Input((1,), dtype="int32"), Ledger()])
    made.compile(Count(1.0), loss=lambda _, counted: -counted)
    return made


def train_data(_: Any) -> tuple[Any, Any]:
    """The numbers of the examples."""
    numbers = np.arange(EXAMPLES, dtype=np.int32)[:, None]
    return numbers, np.zeros((EXAMPLES, 1), np.float32)


def test_data(_: Any) -> tuple[Any, Any]:
    """Two examples, as a run needs some."""
    return np.zeros((2, 1), np.int32), np.zeros((2, 1), np.float32)
