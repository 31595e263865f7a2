"""A recommender of one table, with steps of a fixed length: the probability that an item is clicked.

The table has 200,000 rows, so a checkpoint has 26 MB, of which few rows change between two.
"""

import os
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.025"))
ROWS, WIDTH, EXAMPLES = 200_000, 16, 100_000


class Timed(keras.layers.Layer):  # type: ignore[misc]
    """Passes its input on after some time."""

    def call(self, values: Any, training: bool = False) -> Any:
        """The same values."""
        if not training:
            return values
        return tf.reshape(tf.numpy_function(_sleep, [values], values.dtype), tf.shape(values))


def _sleep(values: Any) -> Any:
    time.sleep(STEP_SECONDS)
    return values


def model() -> keras.Model:
    """The table, and a layer on it."""
    made = keras.Sequential(
        [
            keras.Input((1,), dtype="int32"),
            Timed(),
            keras.layers.Embedding(ROWS, WIDTH),
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    made.compile(keras.optimizers.Adagrad(0.1), loss="binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return made


def train_data(context: Any) -> tuple[Any, Any]:
    """Items of the popularity of a Zipf law, and whether they were clicked: each has a probability of its own."""
    return _clicks(EXAMPLES, 1)


def test_data(context: Any) -> tuple[Any, Any]:
    """Other clicks on the same items."""
    return _clicks(10_000, 2)


def _clicks(count: int, seed: int) -> tuple[Any, Any]:
    choice = np.random.default_rng(seed)
    items = choice.zipf(1.2, count) % ROWS
    probability = np.random.default_rng(0).random(ROWS)[items]
    return items[:, None].astype(np.int32), (choice.random(count) < probability).astype(np.float32)[:, None]
