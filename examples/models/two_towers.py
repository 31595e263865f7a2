"""Retrieval by two towers: a user's vector is near those of the items that the user takes, of 200,000 items.

The other items of a batch are the negative examples. How often an item is among them follows from how often it is
taken, which the loss corrects (Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item
Recommendations", 2019). So the products of the vectors rank all items. The data is made here: users take the item that
fits them best of 50 that they see, popular ones more often.
"""

import functools
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from trainer.layers import ExampleKey
from trainer.losses import InBatchSoftmax

USERS, ITEMS, SEEN, DIM = 100_000, 200_000, 50, 16


def make_data(seed: int, examples: int) -> tuple[Any, Any]:
    """Users and the items that they take, int32 [n] each."""
    truth, random = np.random.default_rng(0), np.random.default_rng(seed)
    of_users, of_items = (truth.normal(size=(rows, 4)).astype("float32") for rows in (USERS, ITEMS))
    users = (random.zipf(1.2, examples) % USERS).astype("int32")
    items = np.empty(examples, "int32")
    for part in np.array_split(np.arange(examples), 100):
        seen = np.exp(np.log(ITEMS + 1) * random.random((len(part), SEEN), "float32")).astype("int32") - 1
        fits = np.einsum("nd,nsd->ns", of_users[users[part]], of_items[seen])
        items[part] = seen[np.arange(len(part)), fits.argmax(axis=1)]
    return users, items


@functools.cache
def training_examples() -> tuple[Any, Any]:
    """2,000,000 users and items."""
    return make_data(1, 2_000_000)


def with_probabilities(users: Any, items: Any) -> tuple[Any, Any]:
    """The examples, and the logarithm of the probability that an example has this item, float32 [n]."""
    counts = 1 + np.bincount(training_examples()[1], minlength=ITEMS)
    return {"user": users, "item": items}, np.log(counts[items] / counts.sum()).astype("float32")


def train_data(context: Any) -> tuple[Any, Any]:
    """The training examples."""
    return with_probabilities(*training_examples())


def test_data(context: Any) -> tuple[Any, Any]:
    """5,000 examples of the same kind."""
    return with_probabilities(*make_data(2, 5_000))


def fit_arguments() -> dict[str, Any]:
    """The items of a batch are the candidates."""
    return {"batch_size": 1000}


def model() -> keras.Model:
    """A user and an item to their vectors, [n, 2, 16], each of length 1."""
    ids = {name: keras.Input((), dtype="int32", name=name) for name in ("user", "item")}
    vectors = []
    for name, rows, vector in (("user", USERS, "query_vector"), ("item", ITEMS, "candidate_vector")):
        x = layers.Embedding(rows, DIM, name=f"of_{name}")(ids[name])
        x = layers.Dense(DIM)(layers.Dense(64, activation="relu")(x))
        vectors.append(layers.UnitNormalization(name=vector)(x))
    network = keras.Model(ids, ExampleKey()([ops.stack(vectors, axis=1), ids["item"]]))
    network.compile(keras.optimizers.Adagrad(0.1, initial_accumulator_value=1e-4), InBatchSoftmax(temperature=0.05))
    return network


def towers(network: keras.Model) -> tuple[keras.Model, keras.Model]:
    """The parts that give the vector of a user, and that of an item."""
    query, candidate = (
        keras.Model(network.input[name], network.get_layer(vector).output)
        for name, vector in (("user", "query_vector"), ("item", "candidate_vector"))
    )
    return query, candidate


def candidates(context: Any) -> Any:
    """All items."""
    return np.arange(ITEMS)
