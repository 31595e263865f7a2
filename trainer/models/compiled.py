"""What `compile()` has said about a Keras model: what kind of loss it has, and what that does with examples."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.tensorflow import tf
from trainer.tensorflow_types import Tensor


def has_binary_loss(model: Any) -> bool:
    """Whether the loss is a cross entropy of two classes by one output."""
    import keras

    loss = model.loss if model.compiled else None
    if not isinstance(loss, str) and not callable(loss):
        return False  # none, or one for each output
    functions = ("binary_crossentropy", "binary_focal_crossentropy")
    kinds = (keras.losses.BinaryCrossentropy, keras.losses.BinaryFocalCrossentropy)
    return isinstance(loss, kinds) or getattr(loss, "__name__", str(loss).lower()) in (*functions, "bce")


def is_classifier(model: Any) -> bool:
    """Whether the loss of a compiled model compares a class label with an output for each class."""
    import keras

    loss = model.loss
    if not isinstance(loss, (str, keras.losses.Loss)) and not callable(loss):
        return False  # one for each output
    found = keras.losses.get(loss)
    by_class = isinstance(found, keras.losses.SparseCategoricalCrossentropy)  # its name may be the user's
    return by_class or getattr(found, "__name__", "") == "sparse_categorical_crossentropy"


def takes_logits(model: Any) -> bool:
    """Whether the loss of a compiled model takes logits, and not probabilities."""
    import keras

    return bool(getattr(keras.losses.get(model.loss), "_fn_kwargs", {}).get("from_logits", False))


def without_ignored(model: Any, targets: Tensor, weights: Tensor | None) -> Tensor | None:
    """The weights of the labels, with 0 for those of the class that the loss ignores."""
    import keras

    loss = keras.losses.get(model.loss) if model.compiled else None
    ignored = getattr(loss, "ignore_class", None)
    if ignored is None:
        return weights
    counted = tf.cast(tf.not_equal(targets, tf.cast(ignored, targets.dtype)), tf.float32)
    if weights is None:
        return counted
    return counted * tf.reshape(tf.cast(weights, tf.float32), [-1, *[1] * (counted.shape.rank - 1)])


def weigh(class_weight: Mapping[int, float], targets: Tensor, weights: Tensor | None) -> Tensor:
    """The weights of the examples, float32 [batch], with those of their classes."""
    labels = tf.argmax(targets, axis=-1) if targets.shape.rank == 2 and targets.shape[1] > 1 else targets
    labels = tf.cast(tf.reshape(labels, [-1]), tf.int32)
    table = np.ones(1 + max(class_weight), np.float32)
    table[list(class_weight)] = list(class_weight.values())
    of_classes = tf.where(labels < len(table), tf.gather(table, tf.minimum(labels, len(table) - 1)), 1.0)
    return of_classes if weights is None else of_classes * tf.cast(weights, tf.float32)
