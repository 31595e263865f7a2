"""By which metric the best checkpoint is chosen."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from trainer.checkpoint.score import BestMetric
from trainer.data.examples import Examples
from trainer.errors import ConfigurationError
from trainer.evaluate import best_metric
from trainer.models.keras_model import KerasModel

from .conftest import MLP

BINARY = Examples(np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1], np.int32))


def own(targets: Any, outputs: Any) -> Any:
    return keras.ops.mean(keras.ops.cast(targets, outputs.dtype) - outputs)


def jaccard_error(targets: Any, outputs: Any) -> Any:
    return keras.ops.mean(keras.ops.cast(targets, outputs.dtype) - outputs)


class OwnAUC(keras.metrics.AUC):  # type: ignore[misc]
    """A metric of a user's own."""


def keras_model(loss: Any, metrics: Callable[[], Any] = list, units: int = 1, **more: Callable[[], Any]) -> KerasModel:
    """A model whose parameters were read, compiled with this loss and with what these functions give."""

    def model() -> keras.Model:
        activation = "softmax" if units > 1 else "sigmoid"
        network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units, activation)])
        network.compile("sgd", loss, metrics=metrics() or None, **{name: make() for name, make in more.items()})
        return network

    made = KerasModel("mine", model, 0, None)
    made.parameters(BINARY.signature)
    return made


def auc_and_accuracy() -> list[Any]:
    return ["accuracy", keras.metrics.AUC(name="area")]


@pytest.mark.parametrize(
    ("loss", "metrics", "units", "name", "mode"),
    [
        ("binary_crossentropy", auc_and_accuracy, 1, "area", "max"),
        ("binary_crossentropy", lambda: [OwnAUC(name="own")], 1, "own", "max"),
        ("binary_crossentropy", lambda: ["accuracy"], 1, "accuracy", "max"),
        ("binary_crossentropy", lambda: [keras.metrics.BinaryAccuracy()], 1, "binary_accuracy", "max"),
        ("binary_crossentropy", list, 1, "loss", "min"),
        (keras.losses.BinaryFocalCrossentropy(), auc_and_accuracy, 1, "area", "max"),
        ("mse", auc_and_accuracy, 1, "accuracy", "max"),
        ("mse", lambda: ["mae"], 1, "loss", "min"),
        ("sparse_categorical_crossentropy", list, 2, "accuracy", "max"),
    ],
)
def test_the_loss_and_the_metrics_decide_by_default(
    loss: Any, metrics: Callable[[], Any], units: int, name: str, mode: Any
) -> None:
    assert best_metric.choose(keras_model(loss, metrics, units), None) == BestMetric(name, mode)


def test_a_weighted_metric_counts() -> None:
    model = keras_model("binary_crossentropy", weighted_metrics=lambda: [keras.metrics.AUC(name="auc")])
    assert best_metric.choose(model, None) == BestMetric("auc", "max")


def test_a_model_of_plain_ops_is_chosen_by_its_accuracy() -> None:
    assert best_metric.choose(MLP, None) == BestMetric("accuracy", "max")
    assert best_metric.choose(MLP, "loss").name == "loss"


@pytest.mark.parametrize(
    ("setting", "name", "mode"),
    [
        ("area", "area", "max"),
        ("val_area", "area", "max"),
        ("min:area", "area", "min"),
        ("loss", "loss", "min"),
        ("max:own", "own", "max"),
        ("jaccard_error", "jaccard_error", "min"),
    ],
)
def test_the_setting_decides_before_all_others(setting: str, name: str, mode: Any) -> None:
    model = keras_model("binary_crossentropy", lambda: [*auc_and_accuracy(), own, jaccard_error])
    stopping = keras.callbacks.EarlyStopping(monitor="val_accuracy")
    assert best_metric.choose(model, setting, [stopping]) == BestMetric(name, mode, f"best_metric={setting}")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("auc", r"best_metric=auc: the model measures loss, accuracy, own; name one of them, or let compile\(\) have"),
        ("own", "best_metric=own: it is not known whether larger values of own are better; write max:own or min:own"),
    ],
)
def test_a_setting_that_names_no_metric_or_no_direction_is_refused(setting: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        best_metric.choose(keras_model("mse", lambda: ["accuracy", own]), setting)


@pytest.mark.parametrize(
    ("callbacks", "name", "mode"),
    [
        (["EarlyStopping(monitor='val_accuracy')"], "accuracy", "max"),
        (["EarlyStopping()"], "loss", "min"),
        (["EarlyStopping(monitor='val_own', mode='max')"], "own", "max"),
        (["EarlyStopping(monitor='val_own')"], "area", "max"),  # it cannot tell the direction either
        (["EarlyStopping(monitor='val_absent')"], "area", "max"),
        (["EarlyStopping(monitor='loss')"], "area", "max"),  # of the training batches
        (["ModelCheckpoint('a.keras')"], "area", "max"),  # it saves each epoch
        (["EarlyStopping()", "ModelCheckpoint('a.keras', 'val_accuracy', save_best_only=True)"], "accuracy", "max"),
        (["ReduceLROnPlateau()", "EarlyStopping(monitor='val_accuracy')"], "accuracy", "max"),
        (["ReduceLROnPlateau(monitor='val_accuracy')"], "accuracy", "max"),
        (["TerminateOnNaN()"], "area", "max"),
    ],
)
def test_what_a_callback_monitors_decides_before_the_loss(callbacks: list[str], name: str, mode: Any) -> None:
    model = keras_model("binary_crossentropy", lambda: [*auc_and_accuracy(), own])
    made = [eval(f"keras.callbacks.{each}") for each in callbacks]  # noqa: S307 - of the lines above
    found = best_metric.choose(model, None, made)
    assert (found.name, found.mode) == (name, mode)
    assert bool(found.origin) == (name != "area")


def test_metrics_of_several_outputs_have_their_names() -> None:
    def model() -> keras.Model:
        inputs = keras.Input((3,))
        outputs = {name: keras.layers.Dense(1, "sigmoid", name=name)(inputs) for name in ("a", "b")}
        network = keras.Model(inputs, outputs)
        metrics = {"a": [keras.metrics.AUC(name="auc")], "b": ["mae"]}
        network.compile("sgd", {"a": "binary_crossentropy", "b": "mse"}, metrics=metrics)
        return network

    zeros = np.zeros((4, 1), np.float32)
    made = KerasModel("mine", model, 0, None)
    made.parameters(Examples(zeros.repeat(3, 1), {"a": zeros, "b": zeros}).signature)
    assert best_metric.choose(made, None) == BestMetric("loss", "min")
    assert best_metric.choose(made, "a_auc") == BestMetric("a_auc", "max", "best_metric=a_auc")
    assert best_metric.choose(made, "b_mae") == BestMetric("b_mae", "min", "best_metric=b_mae")


def test_a_value_that_is_not_a_number_is_the_worst() -> None:
    for metric in (BestMetric("auc", "max"), BestMetric("auc", "min")):
        assert metric.key(0.1, {"auc": float("nan")}) < metric.key(0.2, {"auc": 0.1})
        assert metric.key(0.1, {}) < metric.key(0.2, {"auc": 0.1})
