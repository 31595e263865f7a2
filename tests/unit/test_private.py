"""What the trainer uses of Keras and TensorFlow that is not public API: one test for each name.

A test that fails names what a release has removed or renamed. Then change the code that uses it, or the bound of the
version in pyproject.toml.
"""

from typing import Any

import keras
import numpy as np
import pytest

from trainer.models import keras_private
from trainer.tensorflow import private
from trainer.tensorflow.private import eager_mode

NAMES = [
    *((keras_private, name) for name in keras_private.__all__),
    *((private, name) for name in private.__all__),
    (private.distribute, "_AutoShardDataset"),
    (private.collective_ops, "all_reduce"),
    (private.ops.Graph, "name_scope"),
]


@pytest.mark.parametrize(("owner", "name"), NAMES, ids=[f"{owner.__name__}.{name}" for owner, name in NAMES])
def test_a_private_name_is_there(owner: Any, name: str) -> None:
    assert hasattr(owner, name), f"{owner.__name__} of this release has no {name}"


@pytest.fixture(scope="module")
def model() -> Any:
    """A compiled model that has seen a batch."""
    with eager_mode():
        found = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.1, seed=1), keras.layers.Dense(1)])
        found.compile(keras.optimizers.Adam(0.1, use_ema=True), "mse", metrics=["mae", keras.metrics.AUC()])
        found.train_on_batch(np.zeros((2, 2)), np.zeros((2, 1)))
    return found


ATTRIBUTES = {
    "optimizer": [
        "_get_current_learning_rate",
        "_learning_rate",
        "_trainable_variables",
        "_use_weight_decay",
        "clipnorm",
        "clipvalue",
        "global_clipnorm",
        "gradient_accumulation_steps",
        "use_ema",
        "ema_overwrite_frequency",
    ],
    "model": ["_compile_metrics", "_flatten_layers", "compute_loss", "compute_metrics", "get_metrics_result"],
    "variable": ["_initialize", "_initialize_with_initializer", "_shape", "_value"],
    "metric": ["_direction"],
    "loss": ["_fn_kwargs"],
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in ATTRIBUTES.items() for name in names], ids=str
)
def test_a_private_attribute_is_there(kind: str, name: str, model: Any) -> None:
    owners = {
        "optimizer": model.optimizer,
        "model": model,
        "variable": model.weights[0],
        "metric": keras.metrics.MeanAbsoluteError(),
        "loss": keras.losses.BinaryCrossentropy(from_logits=True),
    }
    assert hasattr(owners[kind], name), f"a {kind} of Keras {keras.__version__} has no {name}"


def test_the_state_of_a_random_number_generator_has_its_name(model: Any) -> None:
    from trainer.models.keras_arrays import SEED_STATE

    assert SEED_STATE in [each.name for each in model.non_trainable_variables]


def test_the_parts_of_a_models_metrics_can_be_told(model: Any) -> None:
    names = [metric.name for each in model.metrics for metric in getattr(each, "metrics", [each])]
    assert "mae" in names
    assert any(name.startswith("auc") for name in names)
