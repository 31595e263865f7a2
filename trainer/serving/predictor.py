"""A SavedModel that predicts: named arrays in, named arrays out. It checks each array against the signature."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.export import saved_model
from trainer.export.export_folder import DATA, class_names, read_facts
from trainer.tensorflow import tf
from trainer.tensorflow.errors import brief

Array = npt.NDArray[Any]


class BadRequestError(Exception):
    """A request does not fit the model: one sentence that says what was expected."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of the signature. None is a dimension of any size; the first one is the batch."""

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        kind = "string" if self.dtype == object else self.dtype.name
        return f"{kind} {_brackets(['n' if each is None else str(each) for each in self.shape])}"

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels, if the tensor is a batch of images of one size in the trainer's type."""
        match self.shape[1:]:
            case (int(height), int(width), (1 | 3 | 4) as channels) if self.dtype == np.float32:
                return height, width, channels
        return None

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape can be fed."""
        return len(shape) == len(self.shape) and all(
            wanted in (None, given) for wanted, given in zip(self.shape, shape, strict=True)
        )


class Predictor:
    """The signature `serving_default` of a SavedModel. Its calls may come from several threads."""

    def __init__(self, folder: Path) -> None:
        """Load the model of a folder.

        Raises:
            ConfigurationError: the folder has no SavedModel, or none with this signature.
        """
        self.session, self._inputs, outputs = saved_model.load(folder, f"MODEL: the model {folder}")
        with self.session.graph.as_default():
            self._outputs = {name: _plain(each) for name, each in outputs.items()}
        self.inputs = {name: _spec(each) for name, each in self._inputs.items()}
        self.outputs = {name: _spec(each) for name, each in self._outputs.items()}
        self.classes = class_names(folder)
        """The names of the classes, by label; empty if they are not known."""
        self._takes_missing = "plan" in read_facts(folder / DATA)
        """Whether it takes columns as they are, of which values may be missing: null in JSON."""

    def close(self) -> None:
        """Free the memory of the model, which nobody asks any more."""
        self.session.close()

    def predict(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """Predict a batch.

        Args:
            values: For each input an array, or nested lists of numbers.

        Raises:
            BadRequestError: an input is missing or unknown, or has another shape or type.
        """
        if values.keys() != self.inputs.keys():
            raise BadRequestError(f"the inputs are {_names(values)}, but the model takes {_names(self.inputs)}.")
        if self._takes_missing:
            values = {name: _without_null(each, self.inputs[name]) for name, each in values.items()}
        arrays = {name: _convert(name, values[name], spec) for name, spec in self.inputs.items()}
        if len({array.shape[:1] for array in arrays.values()}) > 1:
            sizes = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
            raise BadRequestError(f"the inputs have different numbers of rows: {sizes}.")
        try:
            found = self.session.run(self._outputs, {self._inputs[name]: array for name, array in arrays.items()})
        except tf.errors.InvalidArgumentError as error:  # such as a number of a word that the model does not know
            raise BadRequestError(f"the model cannot use these values: {brief(error).rstrip('.')}.") from None
        return {name: np.asarray(array) for name, array in found.items()}


def _plain(tensor: Any) -> Any:
    """The tensor in a type that JSON and NumPy have."""
    return tf.cast(tensor, tf.float32) if tensor.dtype in (tf.bfloat16, tf.float16) else tensor


def _spec(tensor: Any) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape.as_list()), np.dtype(tensor.dtype.as_numpy_dtype))


def _without_null(value: Any, spec: TensorSpec) -> Any:
    """The values of a column, with what a model takes for a missing one in place of null."""
    missing: Any = "" if spec.dtype == object else np.nan
    return [missing if each is None else each for each in value] if isinstance(value, list) else value


def _convert(name: str, value: Any, spec: TensorSpec) -> Array:
    """The array of an input in the type of the signature."""
    try:
        given = np.asarray(value, object if spec.dtype == object else None)  # NumPy's own type of bytes drops zeros
    except ValueError:  # ragged
        raise BadRequestError(f"{name}: its rows have different shapes, but {spec} was expected.") from None
    if spec.dtype == object:
        return _convert_texts(name, given, spec)
    if given.dtype.kind not in "biuf":
        raise BadRequestError(f"{name}: it has values that are no numbers, but {spec} was expected.")
    _check_shape(name, given, spec)
    with np.errstate(all="ignore"):
        array = given.astype(spec.dtype)
        is_exact = spec.dtype.kind == "f" or np.array_equal(array, given)
    if not is_exact or np.isinf(array).any() > np.isinf(given).any():
        raise BadRequestError(f"{name}: it has values that {spec.dtype.name} cannot hold.")
    return array


def _convert_texts(name: str, given: Array, spec: TensorSpec) -> Array:
    if not all(isinstance(each, (str, bytes)) for each in given.flat):
        raise BadRequestError(f"{name}: it has values that are no texts, but {spec} was expected.")
    _check_shape(name, given, spec)
    return given.astype(object)


def _check_shape(name: str, given: Array, spec: TensorSpec) -> None:
    if not spec.fits(given.shape):
        shape = _brackets(map(str, given.shape))
        raise BadRequestError(f"{name}: its shape is {shape}, but {spec} was expected.")


def _brackets(sizes: Any) -> str:
    return f"[{', '.join(sizes)}]"


def _names(values: Mapping[str, Any]) -> str:
    return ", ".join(sorted(values)) or "none"
