"""Ragged inputs of a Keras model. The trainer passes on batches of arrays, with padding that is removed here."""

from collections.abc import Mapping
from typing import Any

import optree

from trainer.tensorflow import tf
from trainer.tensorflow_types import Tensor


def restore(inputs: Any, known: Mapping[str, Any] | None) -> Any:
    """The inputs of a batch, with ragged tensors for those that are ragged in the model.

    Args:
        inputs: Tensors, padded at the ends of their lists with -1, NaN or empty texts.
        known: The model's inputs by name, if it has `Input`.
    """
    if not known or not any(each.ragged for each in known.values()):
        return inputs
    if isinstance(inputs, dict):
        return {name: _ragged(each) if is_ragged(known.get(name)) else each for name, each in inputs.items()}
    leaves, structure = optree.tree_flatten(inputs)
    restored = [_ragged(each) if is_ragged(own) else each for each, own in zip(leaves, known.values(), strict=True)]
    return optree.tree_unflatten(structure, restored)


def is_ragged(own: Any) -> bool:
    """Whether an input of a model is ragged."""
    return getattr(own, "ragged", False)


def _ragged(padded: Tensor) -> Any:
    """The ragged tensor of a padded one, [n, length, …]."""
    if padded.dtype.is_floating:
        is_there = tf.math.logical_not(tf.math.is_nan(padded))
    else:
        is_there = tf.not_equal(padded, "" if padded.dtype == tf.string else -1)
    is_there = tf.reduce_any(is_there, axis=list(range(2, padded.shape.rank)))
    lengths = tf.reduce_max(tf.where(is_there, tf.range(1, tf.shape(padded)[1] + 1), 0), axis=1)
    return tf.RaggedTensor.from_tensor(padded, lengths=tf.maximum(lengths, 0))
