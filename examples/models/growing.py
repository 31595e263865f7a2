"""Clicks on items that appear and go: tables that grow with the ids that they see, and forget those that are gone.

Each day 2,000 items appear, and after twenty days they are gone. An item's id is a text, a user's a whole number of 64
bits; there is no vocabulary. What was learned on some days is tried on the day after them.
"""

import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import layers

from trainer.layers import DynamicEmbedding

USERS, ITEMS_A_DAY, DAYS_OF_ITEM, DIM = 20_000, 2_000, 20, 8
DAYS, CLICKS_A_DAY, BATCH = 25, 20_000, 100


def normal(names: Any, salt: int) -> Any:
    """Normal numbers which whole numbers determine: [n] to [n]."""
    with np.errstate(over="ignore"):
        bits = (names.astype(np.uint64) + np.uint64(salt << 40)) * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
    first, second = (bits >> np.uint64(40)) + 0.5, (bits & np.uint64(2**24 - 1)) + 0.5
    return np.sqrt(-2 * np.log(first / 2**24)) * np.cos(2 * np.pi * second / 2**24)


def clicks(day: int, seed: int, examples: int) -> tuple[dict[str, Any], Any]:
    """Users, int64 [n], and items, texts [n], and 1 for a click, float32 [n, 1]."""
    random = np.random.default_rng((day, seed))
    users = random.zipf(1.2, examples) % USERS
    ages = random.zipf(1.5, examples) % DAYS_OF_ITEM  # newer items are more often seen
    items = (day - ages + DAYS_OF_ITEM) * ITEMS_A_DAY + random.zipf(1.2, examples) % ITEMS_A_DAY
    liking = normal(users, 1) + 1.5 * normal(items, 2) + normal(users, 3) * normal(items, 4)
    clicked = random.random(examples) < 1 / (1 + np.exp(-liking))
    ids = {"user": users * 1_000_003 + 2**40, "item": np.char.add("item-", items.astype(str)).astype(object)}
    return ids, clicked.astype(np.float32)[:, None]


def train_data(context: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Batches, one day after the other; each replica has clicks of its own, a share of those of the day."""
    count = CLICKS_A_DAY // context.replicas
    for day in range(DAYS):
        ids, clicked = clicks(day, context.replica, count)
        for start in range(0, count, BATCH):
            part = slice(start, start + BATCH)
            yield {name: each[part] for name, each in ids.items()}, clicked[part]


def test_data(context: Any) -> tuple[dict[str, Any], Any]:
    """Clicks of the last day, which nobody has trained on."""
    return clicks(DAYS, 1_000_000, 20_000)


def embedded(ids: Any, name: str, capacity: int, expire_steps: int | None = None) -> Any:
    """The embeddings of ids; with HASHED=1 by a fixed table, in which some ids share a row."""
    if os.environ.get("HASHED") == "1":
        return layers.Embedding(capacity, DIM, name=name)(layers.Hashing(capacity)(ids))
    return DynamicEmbedding(capacity, DIM, expire_steps=expire_steps, name=name)(ids)


def model() -> keras.Model:
    """A user and an item to the probability of a click."""
    user, item = keras.Input((), dtype="int64", name="user"), keras.Input((), dtype="string", name="item")
    of_user, of_item = embedded(user, "of_user", 20_000), embedded(item, "of_item", 40_000, expire_steps=4_000)
    x = layers.concatenate([of_user, of_item, of_user * of_item])
    for units in (32, 16):
        x = layers.Dense(units, activation="relu")(x)
    made = keras.Model({"user": user, "item": item}, layers.Dense(1, activation="sigmoid")(x))
    made.compile(keras.optimizers.Adagrad(0.05), "binary_crossentropy", metrics=["auc"])
    return made
