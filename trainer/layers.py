"""Layers for a model's file that Keras lacks. Plain Keras trains with them too, on TensorFlow."""

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from trainer.dynamic.layer import DynamicEmbedding

__all__ = ["DynamicEmbedding", "EmbeddingBag", "ExampleKey"]

KEY = "_example_key"
"""The attribute of an output that has the keys of its examples, as `_keras_mask` has its mask."""
COMBINERS = ("sum", "mean", "sqrtn")


@keras.saving.register_keras_serializable(package="trainer")
class ExampleKey(keras.layers.Layer):  # type: ignore[misc]
    """Gives each example of an output its key, which a metric or a loss then reads, such as `GroupAUC`.

    `ExampleKey()([output, key])` is the output. Let it be the last layer before the output of the model: another layer
    after it would drop the key. The key is a whole number of up to 64 bits or a text for each example, [n] or [n, 1].
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(autocast=False, **options)
        self.supports_jit = False  # the metrics that read the key are functions of NumPy

    def call(self, inputs: Any) -> Any:
        """The first of the two inputs."""
        output, key = inputs
        found = tf.identity(output)
        setattr(found, KEY, tf.reshape(key, [-1]))
        return found

    def compute_output_spec(self, inputs: Any) -> Any:
        """That of the output."""
        return keras.KerasTensor(inputs[0].shape, inputs[0].dtype)


@keras.saving.register_keras_serializable(package="trainer")
class EmbeddingBag(keras.layers.Embedding):  # type: ignore[misc]
    """The sum, the mean or the root-mean of the embeddings of a list of ids: ids [n, length] to [n, output_dim].

    Negative ids are padding, and so are ids of 0 with `mask_zero` and those that a Keras mask hides. They do not count,
    and a list without other ids gives zeros. Ragged ids need no padding. With `weights`, [n, length], an embedding
    counts that often.

    Args:
        input_dim: The number of ids.
        output_dim: The numbers of an embedding.
        combiner: "sum"; "mean": divided by the sum of the weights; "sqrtn": divided by the root of the sum of their
            squares, as in `tf.nn.safe_embedding_lookup_sparse`.
        options: Those of `keras.layers.Embedding`.
    """

    def __init__(self, input_dim: int, output_dim: int, combiner: str = "mean", **options: Any) -> None:
        if combiner not in COMBINERS:
            raise ValueError(f"combiner={combiner!r}, but one of {', '.join(COMBINERS)} was expected.")
        super().__init__(input_dim, output_dim, **options)
        self.combiner = combiner
        self.supports_masking = True

    def call(self, ids: Any, weights: Any = None, mask: Any = None) -> Any:
        """The embedding of each list, [..., output_dim], of ids [..., length]."""
        if isinstance(ids, tf.RaggedTensor):
            ids = ids.to_tensor(-1)
        if isinstance(weights, tf.RaggedTensor):
            weights = weights.to_tensor(0, shape=ids.shape if ids.shape.is_fully_defined() else None)
        if ids.dtype not in (tf.int32, tf.int64):
            ids = ops.cast(ids, "int32")
        is_there = ids > 0 if self.mask_zero else ids >= 0
        if mask is not None:
            is_there = ops.logical_and(is_there, mask)
        # Padding reads a row that the batch reads anyway, so that an optimizer of tables updates no other row.
        padding = ops.maximum(ops.max(ops.where(is_there, ids, 0), initial=0), 0)
        rows = ops.take(self.embeddings, ops.where(is_there, ids, padding), axis=0)
        scales = ops.cast(is_there, self.compute_dtype)
        if weights is not None:
            scales *= ops.cast(weights, self.compute_dtype)
        rows = ops.cast(rows, self.compute_dtype)
        total = ops.einsum("...l,...ld->...d", scales, rows)
        if self.combiner == "sum":
            return total
        size = ops.sum(scales, axis=-1) if self.combiner == "mean" else ops.sqrt(ops.sum(ops.square(scales), axis=-1))
        return ops.divide_no_nan(total, size[..., None])

    def compute_mask(self, *inputs: Any, **named: Any) -> None:
        """An embedding of a list has no mask."""

    def compute_output_shape(self, ids_shape: Any, *others: Any) -> tuple[int | None, ...]:
        """[..., output_dim] of ids [..., length]."""
        return (*ids_shape[:-1], self.output_dim)

    def compute_output_spec(self, ids: Any, weights: Any = None, mask: Any = None) -> Any:
        """Not ragged, also of ragged ids."""
        return keras.KerasTensor(self.compute_output_shape(ids.shape), self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {**super().get_config(), "combiner": self.combiner}
