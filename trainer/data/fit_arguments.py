"""The arguments of `keras.Model.fit` that a model file gives with its function `fit_arguments`, by their names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from trainer.data import functions
from trainer.errors import ConfigurationError
from trainer.tensorflow import tf
from trainer.text import did_you_mean, truncate

NAME = "fit_arguments"
OF_THE_TRAINER = {
    "x": "return it from train_data()",
    "y": "return it from train_data()",
    "sample_weight": "let train_data() return (inputs, targets, weights)",
}
"""Other arguments of `fit`, and what does the same here."""
Count = Annotated[int, Field(ge=1, strict=True)]


@dataclass(frozen=True, kw_only=True)
class FitArguments:
    """What a model file asks for."""

    __pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    epochs: Count | None = None
    steps_per_epoch: Count | None = None
    batch_size: Count | None = None
    callbacks: Any = ()
    """Keras's callbacks: a list after `load`."""
    class_weight: Mapping[Annotated[int, Field(ge=0)], float] | None = None
    """The weight in the loss of examples with each label; that of other labels is 1."""
    validation_data: Any = None
    """What `test_data` returns otherwise."""
    validation_steps: Count | None = None
    """The batches of the held-out split that are evaluated; None evaluates all."""
    validation_split: Annotated[float, Field(gt=0, lt=1)] | None = None
    shuffle: Annotated[bool, Field(strict=True)] = True
    """Whether arrays, and files that are dealt, come in another order in each epoch, or in the order that they have."""
    verbose: Any = None
    """Not used: the log lines of a run do not depend on it."""


def load(module: ModuleType, name: str) -> FitArguments:
    """The arguments that a model file gives; no arguments if it has no function `fit_arguments`.

    Raises:
        ConfigurationError: the function fails, or returns something else.
    """
    if not callable(getattr(module, NAME, None)):
        return FitArguments()
    origin = f"model={name}: {NAME}()"
    found = functions.call(module, NAME, name)
    if not isinstance(found, dict):
        raise ConfigurationError(
            f"{origin} returned {type(found).__name__}; return a dictionary, as in {{'epochs': 3}}."
        )
    found = {key: _plain(value) for key, value in found.items()}
    known = {key: value for key, value in found.items() if key in FitArguments.__annotations__}
    problems = [_why_not(key) for key in found if key not in known]
    try:
        fit = TypeAdapter(FitArguments).validate_python(known)
    except ValidationError as error:
        problems += [_sentence(each) for each in error.errors()]
    if problems:
        raise ConfigurationError(f"{origin}: {'; '.join(problems)}.")
    return replace(fit, callbacks=_callbacks(fit.callbacks, origin))


def _why_not(key: str) -> str:
    if key in OF_THE_TRAINER:
        return f"{key} is not taken: {OF_THE_TRAINER[key]}"
    taken = FitArguments.__annotations__
    return f"{key} is not taken{did_you_mean(key, taken) or ', but ' + ', '.join(taken)}"


def _sentence(problem: Mapping[str, Any]) -> str:
    expected = problem["msg"][0].lower() + problem["msg"][1:]
    return f"{problem['loc'][0]}={truncate(repr(problem['input']), 50)}, but {expected}"


def _plain(value: Any) -> Any:
    """A number of NumPy's or TensorFlow's as one of Python's, also in a dictionary; anything else as it is."""
    if type(value) is dict:
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tf.Tensor) and not value.shape.rank:
        value = value.numpy()
    return value.item() if isinstance(value, np.generic) else value


def _callbacks(given: Any, origin: str) -> list[Any]:
    """Keras's callbacks, also a single one or lists in lists, as `fit` takes them."""
    if not given:
        return []
    import keras

    found = keras.tree.flatten(given)
    for each in found:
        if not isinstance(each, keras.callbacks.Callback):
            what = type(each).__name__
            raise ConfigurationError(f"{origin}: callbacks has {what}; Keras's callbacks were expected.")
    return list(found)
