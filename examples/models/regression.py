"""A regression with two inputs: how diabetes progresses within a year, from body measures and from blood tests."""

from typing import Any

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_diabetes

BODY = 4
"""Age, sex, body mass index and blood pressure. The other six columns are blood tests."""


def train_data(context: Any) -> tuple[Any, Any]:
    """The inputs `body` [n, 4] and `blood` [n, 6], standardized, and a measure of progression, [n]."""
    table = load_diabetes()
    columns = (table.data / table.data.std(axis=0)).astype(np.float32)
    return {"body": columns[:, :BODY], "blood": columns[:, BODY:]}, table.target / 100


def model() -> keras.Model:
    """Body measures and blood tests to the progression, in hundreds of its unit."""
    body, blood = layers.Input((BODY,), name="body"), layers.Input((6,), name="blood")
    hidden = [layers.Dense(8, activation="relu")(each) for each in (body, blood)]
    output = layers.Dense(1)(layers.Concatenate()(hidden))
    network = keras.Model({"body": body, "blood": blood}, output)
    network.compile(
        optimizer=keras.optimizers.SGD(0.01, momentum=0.9),
        loss=keras.losses.Huber(),
        metrics=["mae"],
    )
    return network
