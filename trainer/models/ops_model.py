"""A model of plain ops: the two functions of its file as a `Model`, which learns to classify images."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.examples import Array, Signature
from trainer.errors import ConfigurationError
from trainer.models import ACCURACY, ModelFunctions, Parameter, Prediction, StepTensors
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Tensor

MEAN, STDDEV = "input/mean", "input/stddev"
"""The arrays of a model that standardizes its input."""


class OpsModel:
    """The model whose functions a built-in module or a file has."""

    optimizer: Any = None
    is_random = False
    no_counts: Sequence[Array] = (np.zeros((), np.float32), np.zeros((), np.float32))
    """The examples that were right, and all examples."""

    def __init__(
        self, name: str, functions: ModelFunctions, hidden_units: int, standardized: Array | None = None
    ) -> None:
        """Prepare the model.

        Args:
            name: That of the module or the file, for errors.
            functions: Those of the module or the file.
            hidden_units: For `functions.parameters`.
            standardized: The inputs to train on, float32 [n, …], if the functions get inputs minus their mean, and
                divided by their standard deviation. None if they get them as they are.
        """
        self._name, self._functions, self._hidden_units = name, functions, hidden_units
        self._classes = 0
        self._constants: dict[str, Parameter] = {} if standardized is None else _moments(standardized)

    @property
    def fixed_batch(self) -> int | None:
        return None

    @property
    def untrained_loss(self) -> float | None:
        return math.log(self._classes)

    def parameters(self, signature: Signature, first: Sequence[Array] = ()) -> dict[str, Parameter]:
        shape, inputs = signature.input_shape, signature.specs[0]
        if not shape or None in shape or inputs.dtype != "float32" or not signature.classes or len(signature.specs) > 2:
            found = ", ".join(map(str, signature.specs))
            raise ConfigurationError(
                f"model={self._name} classifies images: float32 arrays with labels, in memory; but an example of "
                f"the data is {found}; use a Keras model."
            )
        self._classes = signature.classes
        parameters = self._functions.parameters(shape, signature.classes, self._hidden_units)  # type: ignore[arg-type]
        return parameters | self._constants

    def step(
        self,
        arrays: Mapping[str, Tensor],
        batch: Sequence[Tensor],
        seed: Tensor | None,
        tables: Collection[str] = (),
        counts: Sequence[Tensor] = (),
    ) -> StepTensors:
        images, labels = batch
        # The identity op supports models that use the images in control dependencies or colocation, or not at all; the
        # inputs of a copy do not support these.
        logits = self._logits(arrays, tf.identity(images))
        loss = cross_entropy(logits, labels)
        # Differentiate by the arrays: through `unpack`, gradients of the flat shards are slow sums of padded arrays.
        trainable = {name: array for name, array in arrays.items() if name not in self._constants}
        gradients = tf1.gradients(loss, list(trainable.values()), unconnected_gradients=tf.UnconnectedGradients.ZERO)
        changes = dict(zip(trainable, gradients, strict=True))
        changes |= {name: tf.zeros_like(arrays[name]) for name in self._constants}
        return StepTensors(loss, {ACCURACY: tf.reduce_mean(_right(logits, labels))}, changes)

    def predict(self, arrays: Mapping[str, Tensor], batch: Sequence[Tensor], counts: Sequence[Tensor]) -> Prediction:
        images, labels = batch
        logits = self._logits(arrays, images)
        right = _right(logits, labels)
        after = [counts[0] + tf.reduce_sum(right), counts[1] + tf.cast(tf.size(right), tf.float32)]
        return Prediction({"probabilities": tf.nn.softmax(logits)}, cross_entropy(logits, labels), after)

    def _logits(self, arrays: Mapping[str, Tensor], images: Tensor) -> Tensor:
        if self._constants:
            images = (images - arrays[MEAN]) / arrays[STDDEV]
        return self._functions.logits(arrays, images)

    def measure(self, counts: Sequence[Tensor]) -> Mapping[str, Tensor]:
        right, examples = counts
        return {ACCURACY: right / examples}

    def save(self, folder: Path, arrays: Mapping[str, Array]) -> None:
        """Write nothing: the SavedModel has all there is."""


def _moments(inputs: Array) -> dict[str, Parameter]:
    """Mean and standard deviation of inputs [n, …], each [1, …]; 1 instead of a standard deviation of 0."""
    mean, stddev = (each(inputs, axis=0, dtype=np.float64, keepdims=True) for each in (np.mean, np.std))
    values = {MEAN: mean, STDDEV: np.where(stddev > 0, stddev, 1)}
    return {
        name: Parameter(value.shape, value=value.astype(np.float32), trainable=False) for name, value in values.items()
    }


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
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def _right(logits: Tensor, labels: Tensor) -> Tensor:
    """For each example 1 if its largest logit is that of the label, otherwise 0: float32 [batch]."""
    return tf.cast(tf.equal(tf.argmax(logits, axis=1, output_type=tf.int32), labels), tf.float32)
