"""Wide and deep: a linear part that knows pairs of ids by heart, and a network that generalises, trained together.

Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016. Pairs are hashed into 200,000 numbers, and each has
a row of a table. The data is that of dlrm.py.
"""

import keras
from dlrm import SIZES, test_data, train_data
from keras import layers, ops

__all__ = ["model", "test_data", "train_data"]
PAIRS = 200_000
DIM = 8


def model() -> keras.Model:
    """Numbers and ids to the probability."""
    numbers = keras.Input((4,), name="numbers")
    ids = {name: keras.Input((), dtype="int32", name=name) for name in SIZES}
    columns = [ops.expand_dims(each, -1) for each in ids.values()]
    pairs = layers.HashedCrossing(PAIRS)
    crossed = ops.concatenate([pairs((columns[0], columns[1])), pairs((columns[1], columns[2]))], axis=-1)
    wide = ops.sum(layers.Embedding(PAIRS, 1, embeddings_initializer="zeros", name="of_pairs")(crossed), axis=1)
    rows = [layers.Embedding(size, DIM, name=f"of_{name}")(ids[name]) for name, size in SIZES.items()]
    deep = layers.Concatenate()([numbers, *rows])
    for units in (32, 16):
        deep = layers.Dense(units, activation="relu")(deep)
    output = layers.Activation("sigmoid")(layers.Add()([wide, layers.Dense(1)(deep)]))
    network = keras.Model({"numbers": numbers, **ids}, output)
    network.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return network
