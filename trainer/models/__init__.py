"""What a model is: named parameters, and a function from parameters and images to logits.

A model is one Python file with two functions (see `trainer/models/mlp.py`, the shortest example):

    def parameters(image_shape, classes, hidden_units) -> dict[str, Parameter]
    def logits(parameters, images) -> tf.Tensor

Models know nothing of clusters: where parameters live and how replicas share them is `trainer.graph.parameters`' and
`trainer.graph.replication`'s business. TensorFlow is imported only when a graph is built.
"""

import hashlib
import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from trainer.errors import ConfigurationError


@dataclass(frozen=True)
class Parameter:
    """A float32 array to be learnt, drawn at first from a normal distribution cut off at two deviations."""

    shape: tuple[int, ...]
    stddev: float = 0.0
    """Standard deviation of the initial values; 0 makes them all 0."""


class Model(Protocol):
    """The two functions of a model's file."""

    def parameters(self, image_shape: tuple[int, ...], classes: int, hidden_units: int) -> dict[str, Parameter]:
        """The parameters by name, for images of this shape (without the batch) and this many classes.

        Raises:
            ConfigurationError: the model cannot take images of this shape.
        """
        ...

    def logits(self, parameters: Mapping[str, Any], images: Any) -> Any:
        """Unscaled log probabilities, [batch, classes], of images [batch, *image_shape]."""
        ...


def find(name: str) -> Model:
    """The model of this name, or the one in a Python file.

    Raises:
        ConfigurationError: no such model or file, or the file lacks one of the two functions.
    """
    known = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if name in known:
        return cast(Model, importlib.import_module(f"trainer.models.{name}"))
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise ConfigurationError(f"model: {name!r} is none of {', '.join(known)}, nor a Python file.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"model: {name} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigurationError(f"model: {name} cannot be imported: {type(error).__name__}: {error}") from error
    for function in ("parameters", "logits"):
        if not callable(getattr(module, function, None)):
            raise ConfigurationError(
                f"model: {name} lacks the function {function}; trainer/models/mlp.py has an example."
            )
    return cast(Model, module)


def identify(name: str) -> str:
    """What tells this model from others: its name, or a digest of its file's text, wherever the file lies."""
    path = Path(name)
    return f"{path.stem} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}" if path.suffix == ".py" else name


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The loss: the cross entropy of the logits' softmax, as a mean over the batch.

    Its gradient is whole everywhere. The classic `mnist_replica.py` clips probabilities at 1e-10, so that an example
    that is wrong with certainty has a gradient of zero, and a run that was thrown off never comes back.

    Args:
        logits: float32 [batch, classes].
        labels: int32 [batch], each from 0 to classes - 1.

    Returns:
        float32 scalar.
    """
    from trainer.tensorflow import tf

    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def accuracy(logits: Any, labels: Any) -> Any:
    """The share of examples whose largest logit is the label's: float32 scalar.

    Args:
        logits: float32 [batch, classes].
        labels: int32 [batch].
    """
    from trainer.tensorflow import tf

    correct = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
    return tf.reduce_mean(tf.cast(correct, tf.float32))
