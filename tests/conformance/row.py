"""A row: a model file, and what the trainer does with it."""

from dataclasses import dataclass
from typing import Literal

STEPS = 5
LONG = 60
"""The steps of a row with random numbers."""


@dataclass(frozen=True)
class Row:
    """A model file and what is expected of it."""

    text: str
    """The model file; empty if there is nothing to train."""
    note: str = ""
    """Why there is nothing to train, or what to know about a row that trains."""
    compared: Literal["values", "learning"] = "values"
    """Rows with random numbers are compared in learning."""
    refused: str = ""
    """The sentence of the trainer after the file's name."""
    differs: str = ""
    """What differs from `fit`: a fault that is not mended yet."""
    batch_size: int = 8
    steps: int = STEPS
    tolerance: float = 2e-5
    """Of values, relative to the largest of an array."""
    table_rows: int | None = None
    """The setting; None for its default."""
    tables: tuple[str, ...] = ()
    """The arrays that are tables."""
    quick: bool = False
    """Whether `make test` trains it: one row for each mechanism."""

    @property
    def is_trained(self) -> bool:
        return bool(self.text)


def untrained(reason: str) -> Row:
    """The row of a name that is not a thing to train."""
    return Row("", note=reason)


HEAD = '''\
"""{name}."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, losses, metrics, optimizers


def data(seed):
    random = np.random.default_rng(seed)
    x = {inputs}
    y = {targets}
    return x, y


def train_data(context):
    return data(0)


def test_data(context):
    return data(1)
'''
MODEL = (
    HEAD
    + """

def model():
"""
)
