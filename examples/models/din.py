"""Deep interest network: whether a user wants an item, from those items of the user's history that resemble it.

Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", 2018. The items share one table of 200,000 rows.
The data is made here: a user takes items of a few kinds, and wants an item if the history has others of its kind.
"""

from typing import Any

import keras
import numpy as np
from dlrm import compiled
from keras import layers, ops

USERS, ITEMS, KINDS, LENGTH, DIM = 100_000, 200_000, 500, 20, 16


def make_data(seed: int, examples: int) -> tuple[Any, Any]:
    """Users and items [n], histories [n, 20] with 0 where they are shorter, and 1 for a click: float [n, 1]."""
    truth, random = np.random.default_rng(0), np.random.default_rng(seed)
    kinds_of_users = truth.integers(0, KINDS, (USERS, 3))

    def items_of(kinds: Any) -> Any:
        """An item of each of these kinds; popular ones are more often among them."""
        return 1 + kinds + KINDS * (random.zipf(1.3, kinds.shape) % ((ITEMS - 1) // KINDS))

    users = random.zipf(1.2, examples) % USERS
    liked = kinds_of_users[users]
    history = items_of(np.take_along_axis(liked, random.integers(0, 3, (examples, LENGTH)), axis=1))
    history[np.arange(LENGTH) >= random.integers(1, LENGTH + 1, (examples, 1))] = 0
    is_liked = random.random(examples) < 0.5
    kinds = np.where(is_liked, liked[:, 0], random.integers(0, KINDS, examples))
    seen = ((history > 0) & ((history - 1) % KINDS == kinds[:, None])).sum(axis=1)
    clicked = random.random(examples) < 1 / (1 + np.exp(2 - seen))
    inputs = {"user": users, "item": items_of(kinds), "history": history}
    return {name: each.astype(np.int32) for name, each in inputs.items()}, clicked.astype(np.float32)[:, None]


def train_data(context: Any) -> tuple[Any, Any]:
    """100,000 examples."""
    return make_data(1, 100_000)


def test_data(context: Any) -> tuple[Any, Any]:
    """10,000 examples of the same kind."""
    return make_data(2, 10_000)


def network(users: int, items: int, length: int) -> keras.Model:
    """A user, an item and a history to the probability. Item 0 stands for none."""
    user, item = (keras.Input((), dtype="int32", name=name) for name in ("user", "item"))
    history = keras.Input((length,), dtype="int32", name="history")
    table = layers.Embedding(items, DIM, name="of_item")
    wanted, taken = table(item), table(history)
    repeated = ops.repeat(ops.expand_dims(wanted, 1), length, axis=1)
    pairs = ops.concatenate([repeated, taken, repeated - taken, repeated * taken], axis=-1)
    weights = layers.Dense(1)(layers.Dense(32, activation="relu")(pairs))
    weights *= ops.expand_dims(ops.cast(history > 0, "float32"), -1)
    interest = ops.sum(weights * taken, axis=1)
    x = ops.concatenate(
        [layers.Embedding(users, DIM, name="of_user")(user), wanted, interest, interest * wanted], axis=-1
    )
    for units in (64, 32):
        x = layers.Dense(units, activation="relu")(x)
    output = layers.Dense(1, activation="sigmoid")(x)
    return keras.Model({"user": user, "item": item, "history": history}, output)


def model() -> keras.Model:
    """The network for the data above."""
    return compiled(network(USERS, ITEMS, LENGTH))
