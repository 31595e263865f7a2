"""An exported model that classifies, or predicts values, and what such models predict for a held-out split."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.examples import Array, ArraySpec, Examples, Signature, named
from trainer.data.stream import Stream
from trainer.errors import ConfigurationError
from trainer.export import saved_model
from trainer.export.export_folder import DATA, LOGIT, OUTPUT, PROBABILITIES, PROBABILITY, class_names, read_facts
from trainer.results.predictions import Predictions
from trainer.telemetry import pictures
from trainer.tensorflow.batch_memory import fitting

PREDICTION = "prediction"
"""What the only output of a model that predicts values is called."""
CHUNK = 1000
"""Examples per session run, at most."""
KEPT = 500
"""The most examples of which the inputs are kept."""
CHANNELS = (1, 3, 4)
"""Of pictures: grey, RGB, RGBA."""


class SavedModel:
    """A SavedModel that classifies, or predicts values. A context manager that closes its session."""

    def __init__(self, folder: Path, what: str, takes_values: bool = False, threshold: float = 0.5) -> None:
        """Load the model of a folder.

        Args:
            folder: It has saved_model.pb.
            what: What errors call the model, such as "A: the model runs/mine".
            takes_values: Whether it may predict values instead of a class.
            threshold: The probability of the second of two classes above which it is predicted.

        Raises:
            ConfigurationError: it is damaged, or it does not classify.
        """
        self.what, self._threshold = what, threshold
        self._session, self.inputs, outputs = saved_model.load(folder, what, {"GPU": 0})
        only = next(iter(outputs.values())) if len(outputs) == 1 else outputs.get(PROBABILITIES)
        shape = [] if only is None or only.shape.rank is None else only.shape.as_list()
        facts, last = read_facts(folder / DATA), "" if only is None else _last_op(only)
        is_sigmoid = last == "Sigmoid" and (not takes_values or len(class_names(folder)) == 2)
        self._is_binary = shape in ([None], [None, 1]) and (facts.get(OUTPUT) in (PROBABILITY, LOGIT) or is_sigmoid)
        self._gives_logit = facts.get(OUTPUT) == LOGIT
        # An export of the trainer without probabilities predicts values; another program's may have any names.
        has_values = takes_values and bool(facts) and PROBABILITIES not in outputs and last != "Softmax"
        classes = 0 if len(shape) != 2 or shape[1] == 1 or has_values else shape[1] or 0
        self.classes = 2 if self._is_binary else classes
        """The number of classes; 0 if it predicts values."""
        self._outputs: Mapping[str, Any] = outputs if len(outputs) > 1 and not self.classes else {PREDICTION: only}
        """What it predicts, by the names of columns."""
        if not self.classes:
            self._check_values(outputs, takes_values)
        self.batch_size = fitting(self._session.graph, CHUNK)
        """Examples per session run."""
        known = class_names(folder)[: self.classes]
        self.has_class_names = bool(known)
        self.class_names = [*known, *map(str, range(len(known), self.classes))]
        """The names of the classes; those without a name have their label."""

    def _check_values(self, outputs: Mapping[str, Any], takes_values: bool) -> None:
        """Raise an error if values are not taken, or if the number of those of an example is not known."""
        found = ", ".join(f"{key} {each.shape}" for key, each in outputs.items())
        if not takes_values:
            raise ConfigurationError(
                f"{self.what} is not a classifier: an output {PROBABILITIES} [n, classes], or one probability of the "
                f"second of two classes, was expected, not {found}."
            )
        if not all(each.shape.rank and None not in each.shape.as_list()[1:] for each in outputs.values()):
            raise ConfigurationError(
                f"{self.what} gives {found}, but outputs [n, …] with a fixed number of values for each example were "
                "expected; let the layers give such shapes."
            )

    @property
    def value_names(self) -> list[str]:
        """The names of the numbers that it predicts: those of outputs, with the places in an array, as `output_0_3`."""
        sizes = {name: each.shape.as_list()[1:] for name, each in self._outputs.items()}
        return [
            "_".join([name, *map(str, place)])
            for name, size in sizes.items()
            for place in (np.ndindex(*size) if size != [1] else [()])
        ]

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
        _, targets, _ = signature.pack(signature.specs)
        if not isinstance(targets, ArraySpec) or targets.shape not in ((), (1,), (self.classes,)):
            raise ConfigurationError("the examples have no class labels; name a data set with labels.")
        fits = len(specs) == len(self.inputs) and all(
            tensor.shape.is_compatible_with([None, *spec.shape]) and tensor.dtype.name == spec.dtype
            for tensor, spec in zip(self._in_order(specs), specs.values(), strict=True)
        )
        if not fits:
            taken = ", ".join(f"{key} {each.dtype.name} {each.shape}" for key, each in self.inputs.items())
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

    @property
    def takes_pictures(self) -> bool:
        """Whether its only input is a picture."""
        return self._picture_shape() is not None

    def _picture_shape(self) -> tuple[int, int, int] | None:
        shapes = [tensor.shape.as_list() if tensor.shape.rank else [] for tensor in self.inputs.values()]
        if len(shapes) == 1 and len(shapes[0]) == 4 and all(shapes[0][1:]) and shapes[0][3] in CHANNELS:
            (tensor,) = self.inputs.values()
            if tensor.dtype.name == "float32":
                return shapes[0][1], shapes[0][2], shapes[0][3]
        return None

    def picture_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the pictures that the model takes.

        Raises:
            ConfigurationError: it takes something else.
        """
        if found := self._picture_shape():
            return found
        taken = ", ".join(f"{key} {each.dtype.name} {each.shape}" for key, each in self.inputs.items())
        raise ConfigurationError(
            f"{self.what} takes {taken}, but images as float32 [n, height, width, channels] "
            "were expected; name a model of images."
        )

    def _in_order(self, specs: Mapping[str, Any]) -> list[Any]:
        """The input tensors in the order of the examples' inputs. A single input may have any name."""
        if len(self.inputs) == 1:
            return [*self.inputs.values()]
        return [self.inputs[name] for name in specs if name in self.inputs]

    def predict(self, inputs: Mapping[str, Array]) -> Array:
        """The probabilities, or logits, of a batch, [n, classes]; or its values, [n, k]."""
        given = zip(self._in_order(inputs), inputs.values(), strict=True)
        feeds = {tensor: self._filled(tensor, each) for tensor, each in given}
        with saved_model.errors(self.what):
            arrays = [np.asarray(each) for each in self._session.run(list(self._outputs.values()), feeds)]
        if not self.classes:
            return np.concatenate([each.reshape(len(each), -1) for each in arrays], axis=1)
        (found,) = arrays
        if not self._is_binary:
            return found.reshape(len(found), -1)
        second = found.reshape(-1).astype(np.float64)
        if self._gives_logit:
            second = 0.5 * (1 + np.tanh(second / 2))
        return np.stack([1 - second, second], axis=1).astype(np.float32)

    def _filled(self, tensor: Any, array: Array) -> Array:
        """Lists with the length that the model takes: shorter ones are filled, as those of the training were."""
        length = tensor.shape.as_list()[1] if tensor.shape.rank == 2 else None
        if not length or array.ndim != 2 or array.shape[1] == length:
            return array
        if array.shape[1] > length:
            raise ConfigurationError(
                f"{self.what} takes lists of up to {length} elements, but one has {array.shape[1]}; shorten it, or "
                "train on lists of that length."
            )
        found = np.full((len(array), length), "" if array.dtype == object else 0, array.dtype)
        found[:, : array.shape[1]] = array
        return found

    def classify(self, outputs: Array) -> Array:
        """The predicted classes, int64 [n], from what `predict` gives."""
        if self.classes == 2 and self._threshold != 0.5:
            return (outputs[:, 1] > self._threshold).astype(np.int64)
        return np.asarray(outputs.argmax(axis=1))


def _last_op(output: Any) -> str:
    """The type of the op that computes an output."""
    op = output.op
    while op.type in ("Identity", "Cast"):
        op = op.inputs[0].op
    return str(op.type)


def labels_of(targets: Array, classes: int) -> Array:
    """Labels as int64 [n]: whole numbers of any type, each by itself or in an array of one, or one of several as 1.

    Raises:
        ConfigurationError: they are no labels, or a label is not below the number of classes.
    """
    if targets.ndim == 2 and targets.shape[1] == classes and classes > 1:
        is_one = (targets.max(axis=1) == 1) & (targets.sum(axis=1) == 1)
        labels, is_label = targets.argmax(axis=1), bool(is_one.all())
    else:
        flat = targets.reshape(-1)
        labels = flat.astype(np.int64)
        is_label = bool((labels == flat).all()) and not (labels < 0).any()
    if not is_label:
        raise ConfigurationError("the examples have no class labels; name a data set with labels.")
    if labels.size and labels.max() >= classes:
        raise ConfigurationError(
            f"the model knows {classes} classes, but the data has labels up to {labels.max()}; name the data that the "
            "model was trained on."
        )
    return np.asarray(labels, np.int64)


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
    for leaves in _batches(split, min(model.batch_size for model in models)):
        batch, targets, _ = signature.pack(leaves)
        own = labels_of(np.asarray(targets), models[0].classes)
        given = dict.fromkeys(signature.inputs, batch) if is_single(batch) else named(batch, "input")
        classes = []
        for model, each in zip(models, outputs, strict=True):
            output = model.predict(given)
            classes.append(model.classify(output))
            loss = log_loss(output, own)
            each.append(np.stack([classes[-1], output.max(axis=1), loss, output[:, 1]]))
        labels.append(own)
        if is_shown:
            wrong = np.any([each != own for each in classes], axis=0)
            for index in np.flatnonzero(wrong)[: KEPT - len(images)]:
                images[seen + int(index)] = batch[index]
        seen += len(own)
    rows = [np.concatenate(each, axis=1) for each in outputs]
    predicted = [each[0].astype(np.int64) for each in rows]
    scores = [each[3] for each in rows] if models[0].classes == 2 else []
    return Predictions(
        np.concatenate(labels), predicted, [each[1] for each in rows], [each[2] for each in rows], scores, images
    )


def log_loss(probabilities: Array, labels: Array) -> Array:
    """The negative logarithm of the probability of each label, float64 [n].

    Probabilities are kept from 0 by the precision of their type, and those of an example are divided by their sum, as
    scikit-learn does.

    Args:
        probabilities: [n, classes].
        labels: int64 [n].
    """
    least = np.finfo(probabilities.dtype).eps
    kept = np.clip(probabilities.astype(np.float64), least, 1 - least)
    return np.asarray(np.log(kept.sum(axis=1)) - np.log(kept[np.arange(len(labels)), labels]))


def is_single(batch: Any) -> bool:
    """Whether the inputs are one array, and no structure of arrays."""
    return isinstance(batch, np.ndarray)


def _batches(split: Examples | Stream, size: int) -> Iterator[Sequence[Array]]:
    if isinstance(split, Stream):
        return split.once(size)
    starts = range(0, len(split), size)
    return (split.take(slice(start, start + size)).arrays for start in starts)
