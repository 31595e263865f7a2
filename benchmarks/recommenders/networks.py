"""The networks of examples/models by name, with the sizes of the benchmark's examples, and one loss and optimizer."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
from keras import layers

from benchmarks.recommenders.records import Form
from benchmarks.recommenders.work import ADAGRAD_START, DEEPREC, Work

sys.path.append(str(Path(__file__).parents[2] / "examples" / "models"))  # wide_and_deep.py imports dlrm.py by its name

DIM = 16


def factorization(sizes: Mapping[str, int]) -> keras.Model:
    """A rating as a product of vectors of a user and an item, and the deviations of both from the mean."""
    ids = {name: keras.Input((), dtype="int32", name=name) for name in sizes}
    vectors, biases = [], []
    for name, size in sizes.items():
        regularizer = keras.regularizers.L2(2e-5)
        vectors.append(layers.Embedding(size, DIM, embeddings_regularizer=regularizer, name=f"of_{name}")(ids[name]))
        biases.append(layers.Embedding(size, 1, embeddings_initializer="zeros", name=f"bias_of_{name}")(ids[name]))
    product = layers.Dot(axes=1)(vectors)
    rating = layers.Dense(1, kernel_initializer="ones", bias_initializer=keras.initializers.Constant(3.5))(
        layers.Add()([product, *biases])
    )
    return keras.Model(ids, rating)


def _din(form: Form) -> keras.Model:
    import din

    return din.network(form.sizes["user"], form.sizes["item"], form.history)


def _of_clicks(name: str) -> Callable[[Form], keras.Model]:
    def build(form: Form) -> keras.Model:
        return __import__(name).network(form.sizes, form.numbers)

    return build


def _two_towers(form: Form) -> keras.Model:
    import two_towers

    return two_towers.model()


def _deeprec(form: Form) -> keras.Model:
    import dlrm

    return dlrm.network(form.sizes, form.numbers, DIM, **DEEPREC)


MODELS: Mapping[str, Callable[[Form], keras.Model]] = {
    "dlrm": _of_clicks("dlrm"),
    "deepfm": _of_clicks("deepfm"),
    "wide_and_deep": _of_clicks("wide_and_deep"),
    "two_towers": _two_towers,
    "din": _din,
    "dlrm, layers of DeepRec": _deeprec,
    "factorization": lambda form: factorization(form.sizes),
}
LOSSES = {"factorization": "mse"}
"""Others have the cross entropy of clicks; two_towers has its own."""


def build(work: Work, form: Form) -> keras.Model:
    """The compiled network."""
    keras.utils.set_random_seed(0)
    network = MODELS[work.model](form)
    loss: Any = network.loss if work.model == "two_towers" else LOSSES.get(work.model, "binary_crossentropy")
    network.compile(keras.optimizers.Adagrad(work.learning_rate, initial_accumulator_value=ADAGRAD_START), loss)
    return network


def names_of(network: keras.Model) -> list[str]:
    """The names of a network's inputs."""
    return [each.name for each in network.inputs]
