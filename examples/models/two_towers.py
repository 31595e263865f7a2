"""Retrieval by two towers: a user's vector is near those of the items that the user takes, of 200,000 items.

The other items of a batch are the negative examples. How often an item is among them follows from how popular it is,
which the loss corrects (Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations",
2019). The data is made here: users take the item that fits them best of 50 that they see, popular ones more often.
"""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

USERS, ITEMS, SEEN, DIM = 100_000, 200_000, 50, 16
TEMPERATURE = 0.1


def make_data(seed: int, examples: int) -> tuple[Any, Any]:
    """Users and the items that they take, int32 [n] each, and the logarithms of the items' popularity [n]."""
    truth, random = np.random.default_rng(0), np.random.default_rng(seed)
    of_users, of_items = truth.normal(size=(USERS, 4)), truth.normal(size=(ITEMS, 4))
    popularity = 1 / (1 + np.arange(ITEMS))
    popularity /= popularity.sum()
    users = (random.zipf(1.2, examples) % USERS).astype(np.int32)
    seen = np.searchsorted(np.cumsum(popularity), random.random((examples, SEEN))).clip(max=ITEMS - 1)
    fits = np.einsum("nd,nsd->ns", of_users[users], of_items[seen])
    items = seen[np.arange(examples), fits.argmax(axis=1)].astype(np.int32)
    return {"user": users, "item": items}, np.log(popularity[items]).astype(np.float32)


def train_data(context: Any) -> tuple[Any, Any]:
    """200,000 examples."""
    return make_data(1, 200_000)


def test_data(context: Any) -> tuple[Any, Any]:
    """5,000 examples of the same kind."""
    return make_data(2, 5_000)


def scores(popularity: Any, vectors: Any) -> tuple[Any, Any]:
    """Scores of each user with each item of the batch [n, n], and the number of the item that the user takes [n]."""
    found = ops.matmul(vectors[:, 0], ops.transpose(vectors[:, 1])) / TEMPERATURE
    return found - ops.reshape(popularity, [1, -1]), ops.arange(ops.shape(found)[0])


def is_taken(popularity: Any, vectors: Any) -> Any:
    """The loss [n]: the user takes this item, of those in the batch."""
    found, taken = scores(popularity, vectors)
    return keras.losses.sparse_categorical_crossentropy(taken, found, from_logits=True)


def top_10(popularity: Any, vectors: Any) -> Any:
    """Whether the item is among the ten best of the batch [n]."""
    found, taken = scores(popularity, vectors)
    return keras.metrics.sparse_top_k_categorical_accuracy(taken, found, k=10)


def model() -> keras.Model:
    """A user and an item to their vectors, [n, 2, 16], each of length 1."""
    ids = {name: keras.Input((), dtype="int32", name=name) for name in ("user", "item")}
    vectors = []
    for name, rows in (("user", USERS), ("item", ITEMS)):
        x = layers.Embedding(rows, DIM, name=f"of_{name}")(ids[name])
        vectors.append(layers.UnitNormalization()(layers.Dense(DIM)(layers.Dense(64, activation="relu")(x))))
    network = keras.Model(ids, ops.stack(vectors, axis=1))
    network.compile(keras.optimizers.Adagrad(0.1), is_taken, metrics=[top_10])
    return network
