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


class OpsModel:
    """The model whose functions a built-in module or a file has."""

    optimizer: Any = None
    is_random = False
    no_counts: Sequence[Array] = (np.zeros((), np.float32), np.zeros((), np.float32))
    """The examples that were right, and all examples."""

    def __init__(self, name: str, functions: ModelFunctions, hidden_units: int) -> None:
        """Prepare the model.

        Args:
            name: That of the module or the file, for errors.
            functions: Those of the module or the file.
            hidden_units: For `functions.parameters`.
        """
        self._name, self._functions, self._hidden_units = name, functions, hidden_units
        self._classes = 0

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
        return self._functions.parameters(shape, signature.classes, self._hidden_units)  # type: ignore[arg-type]

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
        logits = self._functions.logits(arrays, tf.identity(images))
        loss = cross_entropy(logits, labels)
        # Differentiate by the arrays: through `unpack`, gradients of the flat shards are slow sums of padded arrays.
        gradients = tf1.gradients(loss, list(arrays.values()), unconnected_gradients=tf.UnconnectedGradients.ZERO)
        changes = dict(zip(arrays, gradients, strict=True))
        return StepTensors(loss, {ACCURACY: tf.reduce_mean(_right(logits, labels))}, changes)

    def predict(self, arrays: Mapping[str, Tensor], batch: Sequence[Tensor], counts: Sequence[Tensor]) -> Prediction:
        images, labels = batch
        logits = self._functions.logits(arrays, images)
        right = _right(logits, labels)
        after = [counts[0] + tf.reduce_sum(right), counts[1] + tf.cast(tf.size(right), tf.float32)]
        return Prediction({"probabilities": tf.nn.softmax(logits)}, cross_entropy(logits, labels), after)

    def measure(self, counts: Sequence[Tensor]) -> Mapping[str, Tensor]:
        right, examples = counts
        return {ACCURACY: right / examples}

    def save(self, folder: Path, arrays: Mapping[str, Array]) -> None:
        """Write nothing: the SavedModel has all there is."""


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
