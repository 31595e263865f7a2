"""The Keras model of section models: a small convolutional network with batch normalization, on images [784]."""

import keras
from keras import layers

from benchmarks.learning import CLASSES, PIXELS
from trainer.config import Settings


def model() -> keras.Model:
    """Images [n, 784] to logits [n, 10]."""
    network = keras.Sequential(
        [
            layers.Input((PIXELS,)),
            layers.Reshape((28, 28, 1)),
            layers.Conv2D(16, 3, strides=2, padding="same"),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Conv2D(32, 3, strides=2, padding="same"),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )
    network.compile(
        optimizer=keras.optimizers.Adam(Settings().learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return network
