"""A small text classifier: is a line English prose or Python code? Its data is Python's own documentation and code."""

import pydoc_data.topics
import sysconfig
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

VOCABULARY = 5000
LENGTH = 24
"""Words per line; longer lines are cut, shorter ones filled with 0."""


def train_data(context: Any) -> tuple[Any, Any]:
    """Numbers of words, int [n, LENGTH], and labels [n]: 0 for prose, 1 for code."""
    prose = [line for topic in pydoc_data.topics.topics.values() for line in topic.splitlines()]
    library = Path(sysconfig.get_path("stdlib"))
    files = [library / f"{name}.py" for name in ("argparse", "ast", "datetime", "inspect", "pathlib", "typing")]
    code = [line for file in files if file.exists() for line in file.read_text(encoding="utf-8").splitlines()]
    lines = [(words, label) for label, text in enumerate((prose, code)) for line in text if (words := line.split())]
    numbers = np.zeros((len(lines), LENGTH), np.int32)
    for row, (words, _) in zip(numbers, lines, strict=True):
        row[: len(words)] = [1 + sum(map(ord, word)) % (VOCABULARY - 1) for word in words[:LENGTH]]
    return numbers, np.array([label for _, label in lines])


def model() -> keras.Model:
    """Numbers of words [LENGTH] to the probability of code."""
    network = keras.Sequential(
        [
            layers.Input((LENGTH,), dtype="int32"),
            layers.Embedding(VOCABULARY, 16),
            layers.SpatialDropout1D(0.2),
            layers.Conv1D(32, 3, padding="same", activation="relu"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    network.compile(
        optimizer=keras.optimizers.Adam(0.003),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    return network
