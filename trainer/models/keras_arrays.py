"""The arrays of a Keras model: its variables by name, as the trainer keeps and moves them, and its saved files.

All arrays are float32, whatever their type in the model. Whole numbers that do not change are constants.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.examples import Array
from trainer.dynamic.by_id import rows_by_id
from trainer.models import own_train_step
from trainer.models.op_template import concrete
from trainer.tensorflow import tf
from trainer.tensorflow.names import scope_name
from trainer.tensorflow.private import eager_mode
from trainer.text.reasons import reason

logger = logging.getLogger(__name__)

FILE = "model.keras"
WEIGHTS = "model.weights.h5"
"""What is written if Keras cannot write a model."""
SEED_STATE = "seed_generator_state"
"""The name of the state of each of Keras's random number generators."""


class KerasArrays:
    """The variables of a Keras model that the trainer has as arrays, and those that are none."""

    def __init__(self, model: Any, inputs: Any, metrics: Collection[Any]) -> None:
        """Sort the variables of a model.

        Args:
            model: The model, whose variables exist.
            inputs: The inputs of a batch.
            metrics: The variables of its metrics, which are no arrays.
        """
        from trainer.dynamic.layer import DynamicEmbedding
        from trainer.models.keras_private import global_seed_generator

        trainable, own = model.trainable_variables, {id(each) for each in metrics}
        others = [each for each in model.non_trainable_variables if id(each) not in own]
        self.seeds = [*(each for each in others if each.name == SEED_STATE), global_seed_generator().state]
        """The states of random number generators."""
        others = [each for each in others if each.name != SEED_STATE]
        changing = _find_changing(model, [each for each in others if not _is_floating(each)], inputs)
        state = [each for each in others if _is_floating(each) or id(each) in changing]
        carried = {id(each) for each in state}
        self.constants = [(each, each.numpy()) for each in others if id(each) not in carried]
        """Whole numbers, truth values and texts, with their values. They do not change."""
        self.variables = _by_name([*trainable, *state])
        """The variables of the arrays by name, the trainable ones first."""
        self.trainable = len(trainable)
        """The number of trainable arrays."""
        self.tables: set[str] = set()
        """The names of the arrays that may be tables."""
        found = [each for each in model._flatten_layers() if isinstance(each, DynamicEmbedding) and each.built]
        layers = {id(each.embeddings): each for each in found}
        self.growing = {name: layers[id(each)] for name, each in self.variables.items() if id(each) in layers}
        """The layers of the arrays that are tables which grow, by name."""
        self.outer: dict[str, Any] = {}
        """TensorFlow's variables that the loss reads and that are no weights of the model, by the names of arrays."""

    @property
    def names(self) -> list[str]:
        """The names of all arrays."""
        return [*self.variables, *self.outer]

    def given(self, values: Sequence[Any]) -> dict[str, Any]:
        """The values of the model's own arrays by name, from those of all arrays."""
        return dict(zip(self.variables, values, strict=False))

    def outer_changes(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """By how much variables that are no weights of the model differ from these values, by the names of arrays."""
        held = _values(self.outer)
        return {name: each - values[name] for name, each in held.items() if not np.array_equal(each, values[name])}

    def dense_values(self) -> dict[str, Array]:
        """The values of the arrays that are no tables, float32, by name."""
        return _values({name: each for name, each in self.variables.items() if name not in self.tables} | self.outer)

    def assign(self, arrays: Mapping[str, Array]) -> None:
        """Give the variables these values. Those of tables that grow have fields: the ids of rows, and their values."""
        with eager_mode():
            for name, variable in (self.variables | self.outer).items():
                if name not in arrays:
                    continue
                if name in self.growing:
                    self.growing[name].set_rows(arrays[name]["id"], arrays[name]["values"])
                    continue
                value = arrays[name] if _is_floating(variable) else arrays[name].round()
                variable.assign(value.astype(tf.as_dtype(variable.dtype).as_numpy_dtype))


def save(model: Any, folder: Path, name: str) -> None:
    """Write a model into a folder, as Keras does. `name` is that of its file, for errors."""
    with eager_mode():
        try:
            with model.distribute_strategy.scope():  # the user's own may have made the variables
                optimizer = model.optimizer if model.compiled else None
                if optimizer and not optimizer.built:  # Keras warns of one that it cannot restore
                    optimizer.build(model.trainable_variables)
                model.save(folder / FILE)
        except Exception as error:  # a layer or a schedule of the user's own may lack get_config
            (folder / FILE).unlink(missing_ok=True)
            model.save_weights(folder / WEIGHTS)
            logger.warning(
                f"{FILE} cannot be written, so the export has the SavedModel and {WEIGHTS}: {reason(error, name)}"
            )


def _is_floating(variable: Any) -> bool:
    return bool(tf.as_dtype(variable.dtype).is_floating)


def _values(variables: Mapping[str, Any]) -> dict[str, Array]:
    with eager_mode():
        return {name: variable.numpy().astype(np.float32) for name, variable in variables.items()}


def _find_changing(model: Any, variables: Sequence[Any], inputs: Any) -> set[int]:
    """The ids of those of these variables that a model sets in training."""
    import keras

    found: set[int] = set()

    def call() -> None:
        given = [(each, tf.convert_to_tensor(each.value)) for each in variables]
        with rows_by_id(), keras.StatelessScope(given, collect_losses=True) as scope:
            model(inputs, training=True)
        found.update(id(each) for each, value in given if scope.get_current_value(each) is not value)

    if variables and own_train_step.has_call(model):
        concrete(call)
    return found


def _by_name(variables: Sequence[Any]) -> dict[str, Any]:
    """The variables by their paths, which may be equal in models of their own classes."""
    found: dict[str, Any] = {}
    for variable in variables:
        path = scope_name(variable.path)
        name, number = path, 1
        while name in found:
            name, number = f"{path}_{number}", number + 1
        found[name] = variable
    return found
