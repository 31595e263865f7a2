"""DeepFM: products of all pairs of ids, as a factorization machine has them, and a network, from the same vectors.

Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction", 2017. The data is that of
dlrm.py.
"""

from collections.abc import Mapping

import keras
from dlrm import NUMBERS, SIZES, compiled, test_data, train_data
from keras import layers, ops

__all__ = ["model", "test_data", "train_data"]
DIM = 16


def network(sizes: Mapping[str, int], numbers: int) -> keras.Model:
    """Numbers and ids to the probability."""
    given = keras.Input((numbers,), name="numbers")
    ids = {name: keras.Input((), dtype="int32", name=name) for name in sizes}
    biases = [
        layers.Embedding(size, 1, embeddings_initializer="zeros", name=f"bias_of_{name}")(ids[name])
        for name, size in sizes.items()
    ]
    rows = [layers.Embedding(size, DIM, name=f"of_{name}")(ids[name]) for name, size in sizes.items()]
    vectors = ops.stack([layers.Dense(DIM)(given), *rows], axis=1)
    square_of_sum = ops.square(ops.sum(vectors, axis=1))
    sum_of_squares = ops.sum(ops.square(vectors), axis=1)
    pairs = ops.sum(square_of_sum - sum_of_squares, axis=-1, keepdims=True) / 2
    deep = layers.Flatten()(vectors)
    for units in (64, 32):
        deep = layers.Dense(units, activation="relu")(deep)
    total = layers.Add()([*biases, pairs, layers.Dense(1)(deep)])
    return keras.Model({"numbers": given, **ids}, layers.Activation("sigmoid")(total))


def model() -> keras.Model:
    """The network for the data of dlrm.py."""
    return compiled(network(SIZES, NUMBERS))
