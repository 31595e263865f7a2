"""Losses for a model's file that Keras lacks. Plain Keras trains with them too, on TensorFlow."""

from typing import Any

import keras
from keras import ops

from trainer.layers import KEY

LEAST = -1e9
"""The logit of a candidate that is no negative."""


@keras.saving.register_keras_serializable(package="trainer")
class InBatchSoftmax(keras.losses.Loss):  # type: ignore[misc]
    """The cross entropy of the own candidate of each query, among all candidates of the batch.

    A candidate is in a batch as often as it is popular. The loss corrects for that by the logarithm of the probability
    with which a candidate is drawn (Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item
    Recommendations", 2019). The scores then approach the logarithm of the probability of each candidate.

    `y_pred` has the vectors of query and candidate, [n, 2, dim], and `y_true` that logarithm for each candidate, [n];
    zeros correct nothing. If `trainer.layers.ExampleKey` gives the output the ids of the candidates, the same candidate
    elsewhere in the batch is not a negative. Weights of examples weigh queries; their candidates stay negatives.
    Each of several replicas has the negatives of its own batch.

    Args:
        temperature: The scores, dot products, are divided by it.
        options: Those of `keras.losses.Loss`.
    """

    def __init__(self, temperature: float = 1.0, name: str = "in_batch_softmax", **options: Any) -> None:
        super().__init__(name=name, **options)
        if temperature <= 0:
            raise ValueError(f"temperature={temperature}, but a number above 0 was expected.")
        self.temperature = temperature

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """The loss; a vector of another type than the loss's keeps its ids."""
        vectors = ops.convert_to_tensor(y_pred, self.dtype)
        if (ids := getattr(y_pred, KEY, None)) is not None:
            setattr(vectors, KEY, ids)
        return super().__call__(y_true, vectors, sample_weight)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The loss of each query, [n]."""
        logits = self.logits(y_true, y_pred)
        return ops.logsumexp(logits, axis=1) - ops.diagonal(logits)

    def logits(self, y_true: Any, y_pred: Any) -> Any:
        """The corrected score of each query with each candidate, [n, n]; that of its own is on the diagonal."""
        if len(y_pred.shape) != 3 or y_pred.shape[1] != 2:
            raise ValueError(
                f"{self.name} takes the vectors of query and candidate, [n, 2, dim], but the output has the shape "
                f"{list(y_pred.shape)}; return keras.ops.stack([query, candidate], axis=1)."
            )
        scores = ops.matmul(y_pred[:, 0], ops.transpose(y_pred[:, 1])) / self.temperature
        logits = scores - ops.reshape(ops.cast(y_true, scores.dtype), [1, -1])
        if (ids := getattr(y_pred, KEY, None)) is None:
            return logits
        is_same = ops.equal(ids[:, None], ids[None, :])
        is_own = ops.cast(ops.eye(ops.shape(ids)[0]), "bool")
        return ops.where(ops.logical_and(is_same, ops.logical_not(is_own)), LEAST, logits)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {**super().get_config(), "temperature": self.temperature}
