"""What exported models predict for the examples of a held-out split."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.examples import Array, Examples, Signature, named
from trainer.data.stream import Stream
from trainer.errors import ConfigurationError
from trainer.export import saved_model
from trainer.export.export_folder import class_names
from trainer.telemetry import pictures

CHUNK = 1000
"""Examples per session run."""
KEPT = 500
"""The most examples of which the inputs are kept."""
PROBABILITIES = "probabilities"
CHANNELS = (1, 3, 4)
"""Of pictures: grey, RGB, RGBA."""


class SavedModel:
    """A SavedModel that classifies, or predicts a value. A context manager that closes its session."""

    def __init__(self, folder: Path, what: str, takes_values: bool = False) -> None:
        """Load the model of a folder.

        Args:
            folder: It has saved_model.pb.
            what: What errors call the model, such as "A: the model runs/mine".
            takes_values: Whether it may predict a value instead of a class.

        Raises:
            ConfigurationError: it is damaged, or it does not classify.
        """
        self.what = what
        self._session, self._inputs, outputs = saved_model.load(folder, what, {"GPU": 0})
        if PROBABILITIES not in outputs and len(outputs) == 1:
            (self._output,) = outputs.values()
        else:
            self._output = outputs.get(PROBABILITIES)
        shape = [] if self._output is None or self._output.shape.rank is None else self._output.shape.as_list()
        self.classes = (shape[1] or 0) if len(shape) == 2 and shape[1] != 1 else 0
        """The number of classes; 0 if it predicts a value."""
        if not self.classes and not (takes_values and shape in ([None], [None, 1])):
            found = ", ".join(f"{key} {each.shape}" for key, each in outputs.items())
            raise ConfigurationError(
                f"{what} is not a classifier: an output {PROBABILITIES} [n, classes] was expected, not {found}."
            )
        known = class_names(folder)[: self.classes]
        self.has_class_names = bool(known)
        self.class_names = [*known, *map(str, range(len(known), self.classes))]
        """The names of the classes; those without a name have their label."""

    def __enter__(self) -> "SavedModel":
        return self

    def __exit__(self, *error: object) -> None:
        self._session.close()

    def check(self, signature: Signature) -> None:
        """Check that the model takes such examples.

        Raises:
            ConfigurationError: it does not.
        """
        specs = signature.inputs
        if not signature.has_labels:
            raise ConfigurationError("the examples have no class labels; name a data set with labels.")
        fits = len(specs) == len(self._inputs) and all(
            tensor.shape.is_compatible_with([None, *spec.shape]) and tensor.dtype.name == spec.dtype
            for tensor, spec in zip(self._in_order(specs), specs.values(), strict=True)
        )
        if not fits:
            taken = ", ".join(f"{key} {each.dtype.name} {each.shape}" for key, each in self._inputs.items())
            given = ", ".join(f"{key} {spec}" for key, spec in specs.items())
            raise ConfigurationError(
                f"{self.what} takes {taken}, but an example of the data is {given}; name the "
                "data that the model was trained on."
            )
        if signature.classes and signature.classes > self.classes:
            raise ConfigurationError(
                f"{self.what} knows {self.classes} classes, but the data has labels up to "
                f"{signature.classes - 1}; name the data that the model was trained on."
            )

    def picture_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the pictures that the model takes.

        Raises:
            ConfigurationError: it takes something else.
        """
        shapes = [tensor.shape.as_list() if tensor.shape.rank else [] for tensor in self._inputs.values()]
        if len(shapes) == 1 and len(shapes[0]) == 4 and all(shapes[0][1:]) and shapes[0][3] in CHANNELS:
            (tensor,) = self._inputs.values()
            if tensor.dtype.name == "float32":
                return shapes[0][1], shapes[0][2], shapes[0][3]
        taken = ", ".join(f"{key} {each.dtype.name} {each.shape}" for key, each in self._inputs.items())
        raise ConfigurationError(
            f"{self.what} takes {taken}, but images as float32 [n, height, width, channels] "
            "were expected; name a model of images."
        )

    def takes_vectors(self, size: int) -> bool:
        """Whether the model takes one input, of vectors of this size."""
        shapes = [tensor.shape.as_list() if tensor.shape.rank else [] for tensor in self._inputs.values()]
        return shapes == [[None, size]]

    def _in_order(self, specs: Mapping[str, Any]) -> list[Any]:
        """The input tensors in the order of the examples' inputs. A single input may have any name."""
        if len(self._inputs) == 1:
            return [*self._inputs.values()]
        return [self._inputs[name] for name in specs if name in self._inputs]

    def predict(self, inputs: Mapping[str, Array]) -> Array:
        """The probabilities, or logits, of a batch: [n, classes]."""
        feeds = dict(zip(self._in_order(inputs), inputs.values(), strict=True))
        return np.asarray(self._session.run(self._output, feeds))


@dataclass(frozen=True)
class Predictions:
    """What models predict for the held-out split."""

    labels: Array
    """int64 [n]."""
    predicted: Sequence[Array]
    """For each model the class with the largest output, int64 [n]."""
    confidence: Sequence[Array]
    """For each model its output for that class, float64 [n]."""
    images: Mapping[int, Array]
    """The inputs of some examples that not all models have right, by index; empty if they are no pictures."""

    @property
    def right(self) -> list[Array]:
        """For each model whether it has an example right: bool [n]."""
        return [each == self.labels for each in self.predicted]


def predict(models: Sequence[SavedModel], split: Examples | Stream) -> Predictions:
    """Let models predict each example of a split. Keep the pictures of the first KEPT that one of them has wrong.

    Raises:
        ConfigurationError: a model does not take such examples.
    """
    signature = split.signature
    for model in models:
        model.check(signature)
    shape = signature.input_shape
    is_shown = shape is not None and pictures.is_picture(shape)
    labels: list[Array] = []
    outputs: list[list[Array]] = [[] for _ in models]
    images: dict[int, Array] = {}
    seen = 0
    for leaves in _batches(split):
        batch, targets, _ = signature.pack(leaves)
        given = dict.fromkeys(signature.inputs, batch) if is_single(batch) else named(batch, "input")
        found = [model.predict(given) for model in models]
        for each, output in zip(outputs, found, strict=True):
            each.append(np.stack([output.argmax(axis=1), output.max(axis=1)]))
        labels.append(np.asarray(targets, np.int64))
        if is_shown:
            wrong = np.any([output.argmax(axis=1) != targets for output in found], axis=0)
            for index in np.flatnonzero(wrong)[: KEPT - len(images)]:
                images[seen + int(index)] = batch[index]
        seen += len(targets)
    rows = [np.concatenate(each, axis=1) for each in outputs]
    predicted = [each[0].astype(np.int64) for each in rows]
    return Predictions(np.concatenate(labels), predicted, [each[1] for each in rows], images)


def is_single(batch: Any) -> bool:
    """Whether the inputs are one array, and no structure of arrays."""
    return isinstance(batch, np.ndarray)


def _batches(split: Examples | Stream) -> Iterator[Sequence[Array]]:
    if isinstance(split, Stream):
        return split.once(CHUNK)
    starts = range(0, len(split), CHUNK)
    return (split.take(slice(start, start + CHUNK)).arrays for start in starts)
