"""The data of a model file: its functions `train_data` and `test_data`."""

from types import ModuleType
from typing import Any

import numpy as np
import optree
from tensorflow.python.eager import context  # not public API; pipelines run in eager mode, the trainer uses graphs

from trainer.data import pipeline
from trainer.data.arrays import hold_out
from trainer.data.context import DataContext
from trainer.data.datasets import Dataset
from trainer.data.examples import Array, Examples
from trainer.data.fit_arguments import FitArguments
from trainer.data.stream import Stream
from trainer.errors import ConfigurationError
from trainer.tensorflow import tf
from trainer.text import truncate
from trainer.text.reasons import reason

TRAIN, TEST = "train_data", "test_data"


def load(module: ModuleType, name: str, data: DataContext, fit: FitArguments) -> Dataset | None:
    """The data of a model file, also of its `fit_arguments`; None if it has no function `train_data`.

    Raises:
        ConfigurationError: a function fails, or returns something else than examples.
    """
    if not callable(getattr(module, TRAIN, None)):
        return None
    train = _call(TRAIN, module, name, data)
    if callable(getattr(module, TEST, None)):
        test = _call(TEST, module, name, data)
    elif fit.validation_data is not None:
        test = _read(fit.validation_data, f"model={name}: validation_data", None)
    elif isinstance(train, Examples) and len(train) == 1:
        test = train  # it can only be evaluated on what it has seen
    elif isinstance(train, Examples):
        share = fit.validation_split or 0.1
        train, test = hold_out(train, max(1, int(len(train) * share)))
    else:
        raise ConfigurationError(
            f"model={name}: it has no function test_data(context), but train_data() gives a tf.data.Dataset; let "
            "test_data() give the examples to evaluate on."
        )
    if train.signature.structure != test.signature.structure or train.signature.specs != test.signature.specs:
        ours, theirs = (", ".join(map(str, each.signature.specs)) for each in (train, test))
        raise ConfigurationError(
            f"model={name}: an example of train_data() is {ours}, but one of test_data() is {theirs}; let "
            "them be alike."
        )
    return Dataset(TRAIN, train, test)


def _call(function: str, module: ModuleType, name: str, data: DataContext) -> Examples | Stream:
    origin = f"model={name}: {function}()"
    with context.eager_mode():
        try:
            found = getattr(module, function)(data)
        except Exception as error:
            raise ConfigurationError(f"{origin} failed: {reason(error, name)}.") from error
    return _read(found, origin, data if function == TRAIN else None)


def _read(found: Any, origin: str, data: DataContext | None) -> Examples | Stream:
    """The examples in a dataset or in arrays. With `data`, a replica reads its part of a dataset."""
    if isinstance(found, tf.data.Dataset):
        return pipeline.stream(found, data, origin)
    if not isinstance(found, tuple) or len(found) not in (2, 3):
        raise ConfigurationError(
            f"{origin} returned {type(found).__name__}; return a tf.data.Dataset, or arrays (inputs, targets)."
        )
    structure = pipeline.complete(found)
    found_arrays = [np.asarray(each) for each in optree.tree_leaves(structure)]
    texts = [array.flat[0] for array in found_arrays if array.dtype.kind in "OUS" and array.size]
    if texts:
        raise ConfigurationError(
            f"{origin}: numbers were expected, not {truncate(repr(str(texts[0])), 50)}; number labels by "
            "numpy.unique(labels, return_inverse=True)[1], and texts by a lookup."
        )
    try:
        arrays: list[Array] = [pipeline.convert(each) for each in found_arrays]
    except ValueError as error:
        raise ConfigurationError(f"{origin}: {error}.") from None
    if len({len(array) if array.ndim else None for array in arrays}) != 1 or not len(arrays[0]):
        shapes = ", ".join(str(list(array.shape)) for array in arrays)
        raise ConfigurationError(f"{origin}: arrays with the same number of examples were expected, not {shapes}.")
    if not all(np.isfinite(array).all() for array in arrays if array.dtype.kind == "f"):
        raise ConfigurationError(f"{origin}: some values are not finite in float32; replace NaN and infinite values.")
    return Examples(*optree.tree_unflatten(optree.tree_structure(structure), arrays))
