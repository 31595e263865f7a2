"""Settings that were given and have no effect."""

from collections.abc import Sequence

import keras
import numpy as np
import pytest

from trainer.config import load_values
from trainer.data.examples import Examples
from trainer.models import Model
from trainer.models.keras_model import KerasModel
from trainer.problem import unused_settings

from .conftest import MLP


def keras_model(is_compiled: bool) -> KerasModel:
    def model() -> keras.Model:
        network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        if is_compiled:
            network.compile(keras.optimizers.SGD(0.1), "mse")
        return network

    made = KerasModel("mine", model, 0, None)
    targets = np.zeros((4, 2), np.float32) if is_compiled else np.zeros(4, np.int32)
    made.parameters(Examples(np.zeros((4, 3), np.float32), targets).signature)
    return made


OF_COMPILE = "the model's compile() has the optimizer SGD; set this there"


@pytest.mark.parametrize(
    ("is_compiled", "given", "said"),
    [
        (True, ["learning_rate"], [f"learning_rate has no effect: {OF_COMPILE}"]),
        (True, ["amsgrad", "weight_decay"], [f"amsgrad, weight_decay have no effect: {OF_COMPILE}"]),
        (True, ["staleness_aware", "batch_size"], []),
        (True, ["hidden_units"], ["hidden_units has no effect: the model's file has its own layers"]),
        (False, ["learning_rate", "global_clipnorm"], []),
        (None, ["learning_rate", "hidden_units"], []),
    ],
)
def test_settings_without_effect_are_said(is_compiled: bool | None, given: Sequence[str], said: Sequence[str]) -> None:
    """Also one that equals its default. None is a model of plain ops."""
    model: Model = MLP if is_compiled is None else keras_model(is_compiled)
    default = {"global_clipnorm": "1", "amsgrad": "true", "staleness_aware": "true", "hidden_units": "100"}
    settings = load_values({name: default.get(name, "0.003" if name != "batch_size" else "10") for name in given})
    assert unused_settings.describe(settings, model) == said
