"""Early stopping, a lower learning rate on a plateau, and weights of classes, as arguments of `keras.Model.fit`."""

from typing import Any

import keras
from keras import layers


def model(input_shape: tuple[int, ...], classes: int) -> keras.Model:
    """Images to a class, by one hidden layer."""
    network = keras.Sequential(
        [
            layers.Input(input_shape),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(classes),
        ]
    )
    network.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return network


def fit_arguments() -> dict[str, Any]:
    """What `model.fit` would get, beside the data."""
    return {
        "batch_size": 50,
        "epochs": 50,
        "class_weight": {8: 2.0},  # the digit that is read wrong most often
        "callbacks": [
            keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=2),
            keras.callbacks.EarlyStopping(monitor="val_loss", patience=5, restore_best_weights=True),
        ],
    }
