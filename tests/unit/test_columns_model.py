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

pytestmark = pytest.mark.slow
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
    return plan, arrays.inputs(found, plan, "the table")


@pytest.mark.parametrize(
    ("target", "shape"),
    [
        (Target("y", ("no", "yes")), (ROWS, 1)),
        (Target("y", ("a", "b", "c")), (ROWS, 3)),
        (Target("y", (), 1000.0, 50.0), (ROWS, 1)),
    ],
)
def test_it_learns_from_each_kind_of_column_and_is_the_same_when_saved(
    tmp_path: Path, target: Target, shape: tuple[int, ...]
) -> None:
    plan, inputs = plan_of(target)
    assert {each.kind for each in plan.inputs} == {
        "number", "category", "hashed", "text", "date", "vector", "bag",
    }  # fmt: skip
    keras.utils.set_random_seed(0)
    network = columns.model(plan)
    sizes = np.nan_to_num(inputs["Größe / cm"], nan=50.0)
    labels = np.digitize(sizes, [40, 60][: len(target.classes) - 1]) if target.classes else 1000 + 2 * (sizes - 50)
    before = network.evaluate(inputs, labels, verbose=0, return_dict=True)["loss"]
    network.fit(inputs, labels, epochs=15, batch_size=16, verbose=0)
    assert network.evaluate(inputs, labels, verbose=0, return_dict=True)["loss"] < 0.7 * before
    predicted = network.predict(inputs, verbose=0)
    assert predicted.shape == shape
    assert np.isfinite(predicted).all()
    if len(target.classes) > 2:
        np.testing.assert_allclose(predicted.sum(axis=1), 1, atol=1e-5)
    network.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(inputs, verbose=0), predicted, rtol=1e-5, atol=1e-6)


def test_values_that_were_never_seen_and_missing_ones_are_predicted_for() -> None:
    plan, inputs = plan_of(Target("y", ("no", "yes")))
    network = columns.model(plan)
    strange = {name: each[:1].copy() for name, each in inputs.items()}
    for name, each in strange.items():
        each[:] = "never seen" if each.dtype == object else np.inf if name == "count" else np.nan
    assert np.isfinite(network.predict(strange, verbose=0)).all()
