"""Small Keras classifiers of several kinds, for `benchmarks/keras_modes.py`: the variable KERAS_MODEL names one.

As people write them: with the optimizer and the rate that a single process trains well with.
"""

import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, optimizers

Network = Any


def _cnn_batchnorm(inputs: Network) -> Network:
    hidden = inputs
    for filters in (16, 32):
        hidden = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(filters, 3)(hidden)))
        hidden = layers.MaxPooling2D()(hidden)
    return layers.Dropout(0.3)(layers.Flatten()(hidden))


def _cnn(inputs: Network) -> Network:
    hidden = layers.MaxPooling2D()(layers.Conv2D(16, 3, activation="relu")(inputs))
    return layers.Flatten()(layers.Conv2D(32, 3, activation="relu")(hidden))


def _mlp(inputs: Network) -> Network:
    return layers.Dense(64, activation="relu")(layers.Dense(128, activation="relu")(layers.Flatten()(inputs)))


def _lstm(inputs: Network) -> Network:
    return layers.LSTM(48)(layers.Reshape((28, 28))(inputs))


def _transformer(inputs: Network) -> Network:
    rows = layers.Dense(32)(layers.Reshape((28, 28))(inputs))
    rows = layers.LayerNormalization()(rows + layers.MultiHeadAttention(2, 16)(rows, rows))
    rows = layers.LayerNormalization()(rows + layers.Dense(32)(layers.Dense(64, activation="relu")(rows)))
    return layers.Flatten()(rows)


def _text(inputs: Network) -> Network:
    return layers.GlobalAveragePooling1D()(layers.Embedding(500, 16)(inputs))


MODELS: dict[str, tuple[Callable[[Network], Network], Callable[[], Any]]] = {
    "CNN, batch normalization, dropout; SGD with momentum": (
        _cnn_batchnorm,
        lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    ),
    "CNN; Adam": (_cnn, lambda: optimizers.Adam(0.002)),
    "dense; SGD with momentum": (_mlp, lambda: optimizers.SGD(0.05, momentum=0.9)),
    "LSTM; AdamW": (_lstm, lambda: optimizers.AdamW(0.003)),
    "transformer block; RMSprop": (_transformer, lambda: optimizers.RMSprop(0.001)),
    "text, embedding; Adam": (_text, lambda: optimizers.Adam(0.01)),
}
"""The layers before the last one, and the optimizer."""


def model(input_shape: tuple[int, ...], classes: int) -> keras.Model:
    """The model that the variable names."""
    build, make_optimizer = MODELS[os.environ["KERAS_MODEL"]]
    inputs = layers.Input(input_shape, dtype="int32" if build is _text else "float32")
    network = keras.Model(inputs, layers.Dense(classes)(build(inputs)))
    network.compile(make_optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return network


def train_data(context: Any) -> tuple[Any, Any]:
    """Texts [n, 20] of words by number: each of four classes prefers words of its own."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, 4000)
    prefers = random.random((4000, 20)) < 0.2
    words = np.where(prefers, labels[:, np.newaxis] * 25 + random.integers(0, 25, (4000, 20)), 0)
    return np.where(prefers, words, random.integers(0, 500, (4000, 20))).astype(np.int32), labels
