"""The model interface: named parameters, and a function from parameters and images to logits.

A model is one Python file with two functions (see `trainer/models/mlp.py`, the shortest example):

    def parameters(image_shape, classes, hidden_units) -> dict[str, Parameter]
    def logits(parameters, images) -> tf.Tensor

A model does not depend on the cluster: `trainer.graph.parameters` places the parameters, and
`trainer.graph.replication` shares them between replicas. TensorFlow is imported only when a graph is built.
"""

import hashlib
import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from trainer.errors import ConfigurationError
from trainer.tensorflow_types import Tensor


@dataclass(frozen=True)
class Parameter:
    """A trainable float32 array, initialized from a normal distribution truncated at two standard deviations."""

    shape: tuple[int, ...]
    stddev: float = 0.0
    """Standard deviation of the initial values; 0 initializes them to 0."""


class Model(Protocol):
    """The two functions of a model file."""

    def parameters(self, image_shape: tuple[int, ...], classes: int, hidden_units: int) -> dict[str, Parameter]:
        """The parameters by name, for images of this shape (without the batch dimension) and this many classes.

        Raises:
            ConfigurationError: the model does not support images of this shape.
        """
        ...

    def logits(self, parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """Unscaled log probabilities, [batch, classes], of images [batch, *image_shape]."""
        ...


def find(name: str) -> Model:
    """The built-in model of this name, or the model in a Python file.

    Raises:
        ConfigurationError: the model or file does not exist, cannot be imported, or lacks one of the two functions.
    """
    known = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if name in known:
        return cast(Model, importlib.import_module(f"trainer.models.{name}"))
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise ConfigurationError(f"model={name!r}, but {', '.join(known)} or the path of a Python file was expected.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"model={name} cannot be imported; name a Python source file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigurationError(f"model={name} cannot be imported: {type(error).__name__}: {error}") from error
    for function in ("parameters", "logits"):
        if not callable(getattr(module, function, None)):
            raise ConfigurationError(
                f"model={name} does not define the function {function}; see trainer/models/mlp.py for an example."
            )
    return cast(Model, module)


def identify(name: str) -> str:
    """A unique identifier of the model: its name, or its file name without the suffix and a digest of the file."""
    path = Path(name)
    return f"{path.stem} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}" if path.suffix == ".py" else name


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss: the mean over the batch of the softmax cross entropy.

    The gradient never vanishes for a wrong prediction. The classic `mnist_replica.py` clips probabilities at 1e-10: an
    example that is wrong with certainty then has a zero gradient, and a run that diverged never recovers.

    Args:
        logits: float32 [batch, classes].
        labels: int32 [batch], each from 0 to classes - 1.

    Returns:
        float32 scalar.
    """
    from trainer.tensorflow import tf

    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """The fraction of examples whose largest logit is that of the label: float32 scalar.

    Args:
        logits: float32 [batch, classes].
        labels: int32 [batch].
    """
    from trainer.tensorflow import tf

    correct = tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels)
    return tf.reduce_mean(tf.cast(correct, tf.float32))
