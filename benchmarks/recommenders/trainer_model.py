"""The model file that the trainer reads: a network of networks.py, and the rows of the folder that is given."""

from typing import Any

from benchmarks.recommenders import networks, records
from benchmarks.recommenders.work import given

GIVEN = given()
ABOUT = records.read_about(GIVEN.examples)
EVALUATED = 4096
"""Held-out examples that the trainer itself evaluates; all of them are, after the run, for every program alike."""


def model() -> Any:
    """The network."""
    return networks.build(GIVEN.work, ABOUT.form)


def _names() -> list[str]:
    import keras

    names = networks.names_of(networks.MODELS[GIVEN.work.model](ABOUT.form))
    keras.backend.clear_session()  # so that the layers of the model have the same names as in other programs
    return names


def train_data(context: Any) -> Any:
    """This replica's batches."""
    file, size = GIVEN.examples / records.TRAIN, GIVEN.work.batch_size
    return records.dataset(file, ABOUT.form, _names(), size, context.replica, context.replicas)


def test_data(context: Any) -> Any:
    """A few held-out examples."""
    rows = records.read(GIVEN.examples / records.TEST, ABOUT.form)[:EVALUATED]
    inputs = ABOUT.form.inputs(rows)
    return {name: inputs[name] for name in _names()}, ABOUT.form.targets(rows)
