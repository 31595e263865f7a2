"""A model that counts how often it was trained with each example: its parameters are the ledger of a run.

Example n adds 1 to weight n, whatever else its step has, and a checkpoint that is restored takes back what came after
it. The result has the shares of the epochs' examples that were skipped, and that were taken once more:

    trainer launch --model benchmarks/faults/ledger_model.py --epochs 3 --ps 1 --workers 4 --staleness_aware=false

Each step lasts at least STEP_SECONDS: a number for each worker, of which the last one is that of all others, too.
"""

import json
import os
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, EPOCHS = (int(each) for each in os.environ.get("LEDGER", "20000 3").split())
STEP_SECONDS = [float(each) for each in os.environ.get("STEP_SECONDS", "0.025").split()]
WORKER = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)


class Count(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Adds the learning rate to each value, times the examples of it: the smallest gradient is that of one."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a variable."""
        rate, size = keras.ops.cast(learning_rate, variable.dtype), keras.ops.abs(gradient)
        of_one = keras.ops.min(keras.ops.where(size > 0, size, float("inf")))
        self.assign_sub(variable, keras.ops.round(gradient / of_one) * rate)


class Ledger(keras.layers.Layer):  # type: ignore[misc]
    """The weight of each example."""

    def build(self, _: Any) -> None:
        """Make the weights."""
        self.counts = self.add_weight(shape=(EXAMPLES,), initializer="zeros", name="counts")

    def call(self, numbers: Any, training: bool = False) -> Any:
        """The weights of these examples."""
        if training:
            numbers = keras.ops.reshape(tf.numpy_function(_sleep, [numbers], tf.int32), keras.ops.shape(numbers))
        return keras.ops.take(self.counts, numbers, axis=0)


def _sleep(numbers: Any) -> Any:
    time.sleep(STEP_SECONDS[min(WORKER, len(STEP_SECONDS) - 1)])
    return numbers


def skipped(epochs: Any, counted: Any) -> Any:
    """The times that examples were taken less than once an epoch."""
    return keras.ops.maximum(epochs - counted, 0)


def repeated(epochs: Any, counted: Any) -> Any:
    """The times that examples were taken more than once an epoch."""
    return keras.ops.maximum(counted - epochs, 0)


def model() -> keras.Model:
    """The weights."""
    made = keras.Sequential([keras.Input((1,), dtype="int32"), Ledger()])
    made.compile(Count(1.0), loss=lambda _, counted: -counted, metrics=[skipped, repeated])
    return made


def train_data(context: Any) -> tuple[Any, Any]:
    """The numbers of the examples, and how often each is to be taken."""
    return np.arange(EXAMPLES, dtype=np.int32)[:, None], np.full((EXAMPLES, 1), EPOCHS, np.float32)


def test_data(context: Any) -> tuple[Any, Any]:
    """The same, for the metrics."""
    return train_data(context)
