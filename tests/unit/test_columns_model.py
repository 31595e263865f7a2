"""The packaged network for columns: what it takes and gives, and that it stays the same when it is saved."""

import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras

from trainer.data.columns import arrays, decide
from trainer.data.columns.choices import Choices
from trainer.data.columns.plan import Plan, Target
from trainer.models import columns
from trainer.tensorflow import tf
from trainer.tensorflow.private import eager_mode

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # of Keras, which saves a model
]
ROWS = 240
START = datetime.datetime(2020, 1, 1, 12)


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """Keras builds and trains a model in eager mode."""
    with eager_mode():
        yield


def table() -> Any:
    """A table with a column of each kind, with missing values, and names as people write them."""
    random = np.random.default_rng(0)
    numbers = random.normal(50, 20, ROWS)
    texts = [f"good service and friendly people {row % 130}" for row in range(ROWS)]
    lists = [["red", "blue", "green"][: row % 4] for row in range(ROWS)]
    return pa.table(
        {
            "Größe / cm": pa.array(numbers, mask=random.random(ROWS) < 0.1),
            "count": pa.array(random.integers(0, 9, ROWS)),
            "is new?": pa.array(random.random(ROWS) < 0.5),
            "city": pa.array([None if row % 17 == 0 else ["Graz", "Wien", "Köln"][row % 3] for row in range(ROWS)]),
            "street": pa.array([f"{row % 110} Hauptstrasse" for row in range(ROWS)]),
            "review": pa.array(texts),
            "since": pa.array([START + datetime.timedelta(hours=31 * row) for row in range(ROWS)], pa.timestamp("us")),
            "position": pa.array([[0.1 * row, 1.0] for row in range(ROWS)]),
            "tags": pa.array(lists),
        }
    )  # fmt: skip


def plan_of(target: Target) -> tuple[Plan, dict[str, Any]]:
    found = table()
    plan = decide.plan(found.append_column(target.name, pa.nulls(ROWS)), target, Choices(), "the table")
    return plan, as_tensors(arrays.inputs(found, plan, "the table"))


def as_tensors(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs as TensorFlow's tensors, which Keras's own loops take texts as."""
    return {name: tf.constant(each.tolist() if each.dtype == object else each) for name, each in inputs.items()}


def test_it_learns_from_each_kind_of_column_and_is_the_same_when_saved(tmp_path: Path) -> None:
    plan, inputs = plan_of(Target("y", ("a", "b", "c")))
    assert {each.kind for each in plan.inputs} == {
        "number", "category", "hashed", "text", "date", "vector", "bag",
    }  # fmt: skip
    keras.utils.set_random_seed(0)
    network = columns.model(plan)
    labels = np.digitize(np.nan_to_num(inputs["Größe _ cm"].numpy(), nan=50.0), [40, 60])
    data = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(16)
    before = network.evaluate(data, verbose=0, return_dict=True)["loss"]
    network.fit(data, epochs=10, shuffle=False, verbose=0)
    assert network.evaluate(data, verbose=0, return_dict=True)["loss"] < 0.7 * before
    predicted = network(inputs).numpy()
    assert predicted.shape == (ROWS, 3)
    np.testing.assert_allclose(predicted.sum(axis=1), 1, atol=1e-5)
    network.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(inputs).numpy(), predicted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("target", "untrained"), [(Target("y", ("no", "yes")), 0.5), (Target("y", (), 1000.0, 50.0), 1000.0)]
)
def test_values_that_were_never_seen_and_missing_ones_are_predicted_for(target: Target, untrained: float) -> None:
    plan, inputs = plan_of(target)
    network = columns.model(plan)
    strange = {name: np.array(each[:1]) for name, each in inputs.items()}
    for name, each in strange.items():
        each[:] = b"never seen" if each.dtype == object else np.inf if name == "count" else np.nan
    np.testing.assert_allclose(network(as_tensors(strange)).numpy(), [[untrained]], rtol=1e-6)


@pytest.mark.parametrize("name", ["city", "review"])
def test_a_table_may_have_texts_only(name: str) -> None:
    found = table().select([name])
    plan = decide.plan(found.append_column("y", pa.nulls(ROWS)), Target("y", ("no", "yes")), Choices(), "the table")
    inputs = as_tensors(arrays.inputs(found, plan, "the table"))
    network = columns.model(plan)
    assert network(inputs, training=True).shape == (ROWS, 1)
