"""The model of `python -m benchmarks.tables`: an embedding of ROWS rows, by OPTIMIZER, both from the environment.

With GROWING its table grows up to so many rows.

The label of an example depends on its 8 ids, which are drawn evenly: no row is more frequent than another.
"""

import os
from typing import Any

import numpy as np

LENGTH, DIM, HIDDEN, EXAMPLES = 8, 32, 64, 20_000
LEARNING_RATE = 0.01


def make_data(rows: int) -> tuple[Any, Any]:
    """Ids, int32 [n, 8], and labels 0 or 1, int32 [n]."""
    ids = np.random.default_rng(0).integers(0, rows, (EXAMPLES, LENGTH)).astype(np.int32)
    return ids, (ids.sum(axis=1) % 2).astype(np.int32)


def train_data(context: Any) -> tuple[Any, Any]:
    """The examples to train on."""
    return make_data(int(os.environ["ROWS"]))


def test_data(context: Any) -> tuple[Any, Any]:
    """A few of the same."""
    ids, labels = train_data(context)
    return ids[:100], labels[:100]


def model() -> Any:
    """8 ids to two logits."""
    import keras
    from keras import layers

    from trainer.layers import DynamicEmbedding

    ids = keras.Input((LENGTH,), dtype="int32")
    table = DynamicEmbedding if os.environ.get("GROWING") else layers.Embedding
    x = layers.Flatten()(table(int(os.environ["ROWS"]), DIM)(ids))
    network = keras.Model(ids, layers.Dense(2)(layers.Dense(HIDDEN, activation="relu")(x)))
    optimizer = getattr(keras.optimizers, os.environ["OPTIMIZER"])(LEARNING_RATE)
    network.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return network
