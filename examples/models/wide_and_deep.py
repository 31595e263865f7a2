"""Wide and deep: a linear part that knows pairs of ids by heart, and a network that generalises, trained together.

Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016. Pairs are hashed into 200,000 numbers, and each has
a row of a table. The data is that of dlrm.py.
"""

import itertools
from collections.abc import Mapping

import keras
from dlrm import NUMBERS, SIZES, compiled, test_data, train_data
from keras import layers, ops

__all__ = ["model", "test_data", "train_data"]
PAIRS = 200_000
DIM = 8


def network(sizes: Mapping[str, int], numbers: int) -> keras.Model:
    """Numbers and ids to the probability. The pairs are those of neighbours."""
    given = keras.Input((numbers,), name="numbers")
    ids = {name: keras.Input((), dtype="int32", name=name) for name in sizes}
    columns = [ops.expand_dims(each, -1) for each in ids.values()]
    crossing = layers.HashedCrossing(PAIRS)
    crossed = ops.concatenate([crossing(pair) for pair in itertools.pairwise(columns)], axis=-1)
    wide = ops.sum(layers.Embedding(PAIRS, 1, embeddings_initializer="zeros", name="of_pairs")(crossed), axis=1)
    rows = [layers.Embedding(size, DIM, name=f"of_{name}")(ids[name]) for name, size in sizes.items()]
    deep = layers.Concatenate()([given, *rows])
    for units in (32, 16):
        deep = layers.Dense(units, activation="relu")(deep)
    output = layers.Activation("sigmoid")(layers.Add()([wide, layers.Dense(1)(deep)]))
    return keras.Model({"numbers": given, **ids}, output)


def model() -> keras.Model:
    """The network for the data of dlrm.py."""
    return compiled(network(SIZES, NUMBERS))
