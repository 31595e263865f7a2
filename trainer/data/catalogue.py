"""The catalogue of a retrieval model: what the function `candidates` of a model file returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from trainer.data import functions, pipeline
from trainer.data.context import DataContext
from trainer.data.examples import Array
from trainer.errors import ConfigurationError
from trainer.text import as_text, truncate

FUNCTION = "candidates"


@dataclass(frozen=True)
class Catalogue:
    """All candidates that a query may find."""

    inputs: Mapping[str, Array]
    """Those of the candidate tower, by name, each [n, …]. A candidate tower with one input may have any name."""
    names: Sequence[str] | None = None
    """What people call the candidates, [n]."""

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))


def load(module: ModuleType, name: str, context: DataContext) -> Catalogue:
    """The catalogue of a model file that has the function `candidates`.

    Args:
        module: That of the file.
        name: The file's name, for errors.
        context: What the function gets.

    Raises:
        ConfigurationError: the function fails, or returns something else.
    """
    origin = f"model={name}: {FUNCTION}()"
    found = functions.call(module, FUNCTION, name, context)
    inputs, names = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    arrays = inputs if isinstance(inputs, Mapping) else {"": inputs}
    read = {str(key): _array(each, origin) for key, each in arrays.items()}
    labels = None if names is None else [as_text(each) for each in _array(names, origin).ravel().tolist()]
    sizes = {len(each) for each in read.values()} | ({len(labels)} if labels is not None else set())
    if len(sizes) != 1 or not min(sizes):
        raise ConfigurationError(
            f"{origin} returned arrays of {', '.join(map(str, sorted(sizes)))} candidates; return arrays of the same "
            "number of candidates, or (arrays, names)."
        )
    return Catalogue(read, labels)


def _array(found: Any, origin: str) -> Array:
    try:
        array = np.asarray(found)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.ndim and array.dtype.kind in "OUS" and all(isinstance(each, (str, bytes)) for each in array.flat):
        return np.array([as_text(each) for each in array.ravel().tolist()], object).reshape(array.shape)
    if not array.ndim or array.dtype.kind not in "biuf":
        raise ConfigurationError(
            f"{origin} returned {truncate(repr(found), 50)}; return the inputs of the candidate tower: an array, or a "
            "dictionary of arrays, perhaps with an array of names: (inputs, names)."
        )
    try:
        return pipeline.convert(array)
    except ValueError:  # identifiers of 64 bits
        return array
