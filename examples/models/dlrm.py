"""A recommender with large tables: what a user did, from numbers and from three ids with 300,000 possible values.

Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems", 2019. The data is
made here: ids are as frequent as words of a language, and hidden vectors decide which of them go together.

`python examples/models/dlrm.py clicks_parquet` writes it as Parquet files, as a warehouse gives them; then
`trainer launch --model examples/models/dlrm.py --data_dir clicks_parquet` reads these by the names of the inputs.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, ops

SIZES = {"user": 300_000, "item": 200_000, "place": 100_000}
"""How many values each id may have."""
NUMBERS, DIM = 4, 16


def make_data(seed: int, examples: int) -> tuple[Any, Any]:
    """Numbers [n, 4] and an id [n] of each kind by name, and 1 where the user did it, else 0: float [n, 1]."""
    truth, random = np.random.default_rng(0), np.random.default_rng(seed)
    numbers = random.normal(size=(examples, NUMBERS)).astype(np.float32)
    ids = {name: (random.zipf(1.3, examples) % size).astype(np.int32) for name, size in SIZES.items()}
    hidden = {name: truth.normal(size=(size, 3)) for name, size in SIZES.items()}
    user, item, place = (hidden[name][ids[name]] for name in SIZES)
    score = numbers @ truth.normal(size=NUMBERS) + 2 * ((user * item).sum(1) + (item * place).sum(1)) - 1
    did = random.random(examples) < 1 / (1 + np.exp(-score))
    return {"numbers": numbers, **ids}, did.astype(np.float32)[:, None]


def train_data(context: Any) -> tuple[Any, Any]:
    """100,000 examples."""
    return make_data(1, 100_000)


def test_data(context: Any) -> tuple[Any, Any]:
    """10,000 examples of the same kind."""
    return make_data(2, 10_000)


def network(
    sizes: Mapping[str, int], numbers: int, dim: int = DIM, bottom: Sequence[int] = (32,), top: Sequence[int] = (32,)
) -> keras.Model:
    """Numbers and ids to the probability: layers for the numbers, products of all pairs of vectors, more layers."""
    given = keras.Input((numbers,), name="numbers")
    ids = {name: keras.Input((), dtype="int32", name=name) for name in sizes}
    dense = given
    for units in (*bottom, dim):
        dense = layers.Dense(units, activation="relu")(dense)
    rows = [layers.Embedding(size, dim, name=f"of_{name}")(ids[name]) for name, size in sizes.items()]
    vectors = ops.stack([dense, *rows], axis=1)
    products = layers.Flatten()(ops.matmul(vectors, ops.transpose(vectors, (0, 2, 1))))
    x = layers.Concatenate()([dense, products])
    for units in top:
        x = layers.Dense(units, activation="relu")(x)
    return keras.Model({"numbers": given, **ids}, layers.Dense(1, activation="sigmoid")(x))


def compiled(network: keras.Model) -> keras.Model:
    """This network, with a loss of clicks and its AUC."""
    network.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return network


def model() -> keras.Model:
    """The network for the data above."""
    return compiled(network(SIZES, NUMBERS))


def write_parquet(folder: Path) -> None:
    """Write the examples: four files to train on, and one that is held out by its name."""
    import pyarrow as pa
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    for index, (name, examples) in enumerate([("test", 10_000), *((f"part-{n}", 25_000) for n in range(4))]):
        inputs, did = make_data(2 + index, examples)
        numbers = pa.FixedSizeListArray.from_arrays(pa.array(inputs.pop("numbers").reshape(-1)), NUMBERS)
        columns = {"numbers": numbers, **inputs, "label": did[:, 0].astype(np.int32)}
        pa.parquet.write_table(pa.table(columns), folder / f"{name}.parquet")


if __name__ == "__main__":
    write_parquet(Path(sys.argv[1]))
