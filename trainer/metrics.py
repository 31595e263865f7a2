"""Metrics for a model's file that Keras lacks. Plain Keras computes them too, on TensorFlow.

They are taken over all examples, not over batches, and in float64.
"""

import contextlib
import contextvars
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from trainer.auc import Array, auc, group_auc
from trainer.layers import KEY

EPSILON = 1e-7
"""Probabilities are at least as far from 0 and 1, as in Keras."""
NAN = np.float64(math.nan)
GROWTH = 1.25
"""Within an epoch, a metric of all scores is computed again when it has so many times the examples."""

_paused = contextvars.ContextVar("paused", default=False)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Within it, the metrics that keep all scores count nothing, and have no result."""
    token = _paused.set(True)
    try:
        yield
    finally:
        _paused.reset(token)


def _columns(metric: Any, y_true: Any, y_pred: Any, sample_weight: Any) -> list[Any]:
    """The scores and the labels of the examples, and their weights if they have any, [n] each.

    Raises:
        ValueError: an example has several scores.
    """
    given = [ops.convert_to_tensor(each) for each in (y_pred, y_true)]
    shapes = [list(each.shape) for each in given]
    if any(len(shape) > 2 or shape[1:] not in ([], [1]) for shape in shapes):
        raise ValueError(
            f"{metric.name} takes one score and one label for each example, but they have the shapes {shapes[0]} and "
            f"{shapes[1]}; give it an output of shape [n] or [n, 1]."
        )
    given += [] if sample_weight is None else [ops.convert_to_tensor(sample_weight)]
    return [tf.reshape(each, [-1]) for each in given]


def _call(function: Callable[..., Any], given: Sequence[Any], dtype: Any) -> Any:
    """The tensor of what a function of arrays returns, now or when the graph runs."""
    if tf.executing_eagerly():
        return tf.constant(function(*(each.numpy() for each in given)), dtype)
    return tf.numpy_function(function, given, dtype)


class _Sums(keras.metrics.Metric):  # type: ignore[misc]
    """A ratio of sums over all examples, which are float64."""

    _names: tuple[str, ...] = ()

    def __init__(self, from_logits: bool, name: str, dtype: Any) -> None:
        super().__init__(name=name, dtype=dtype)
        self.from_logits = from_logits
        self._sums = [self.add_variable((), "zeros", "float64", name=each) for each in self._names]

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch."""
        columns = _columns(self, y_true, y_pred, sample_weight)
        scores, labels, *weights = (ops.cast(each, "float64") for each in columns)
        for total, values in zip(self._sums, self._values(labels, scores), strict=True):
            total.assign_add(ops.sum(weights[0] * values if weights else values))

    def _values(self, labels: Any, scores: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {**super().get_config(), "from_logits": self.from_logits}


@keras.saving.register_keras_serializable(package="trainer")
class NormalizedEntropy(_Sums):
    """The mean log loss, divided by that of always predicting the mean label (He et al., 2014). Smaller is better.

    1 is a model that knows the mean alone. NaN if all labels are equal. The log loss itself is Keras's
    `BinaryCrossentropy`.

    Args:
        from_logits: Whether predictions are logits, and not probabilities.
        name: That of the metric.
        dtype: As for Keras's metrics.
    """

    _names = ("loss", "labels", "count")
    _direction = "down"

    def __init__(self, from_logits: bool = False, name: str = "normalized_entropy", dtype: Any = None) -> None:
        super().__init__(from_logits, name, dtype)

    def _values(self, labels: Any, scores: Any) -> tuple[Any, ...]:
        if self.from_logits:
            loss = ops.softplus(scores) - labels * scores
        else:
            kept = ops.clip(scores, EPSILON, 1 - EPSILON)
            loss = -labels * ops.log(kept) - (1 - labels) * ops.log1p(-kept)
        return loss, labels, tf.ones_like(labels)

    def result(self) -> Any:
        """The ratio."""
        loss, labels, count = (ops.convert_to_tensor(each) for each in self._sums)
        mean = labels / count
        entropy = -(tf.math.xlogy(mean, mean) + tf.math.xlog1py(1 - mean, -mean))
        return ops.cast(tf.where(entropy == 0, NAN, loss / count / entropy), self.dtype)


@keras.saving.register_keras_serializable(package="trainer")
class Calibration(_Sums):
    """The sum of the predictions divided by the sum of the labels: 1 if they are right on average.

    NaN if the labels are 0.

    Args:
        from_logits: Whether predictions are logits, and not probabilities.
        name: That of the metric.
        dtype: As for Keras's metrics.
    """

    _names = ("predictions", "labels")

    def __init__(self, from_logits: bool = False, name: str = "calibration", dtype: Any = None) -> None:
        super().__init__(from_logits, name, dtype)

    def _values(self, labels: Any, scores: Any) -> tuple[Any, ...]:
        return ops.sigmoid(scores) if self.from_logits else scores, labels

    def result(self) -> Any:
        """The ratio."""
        predictions, labels = (ops.convert_to_tensor(each) for each in self._sums)
        return ops.cast(tf.where(labels == 0, NAN, predictions / labels), self.dtype)


class _Kept:
    """The columns of the examples that a metric has counted."""

    def __init__(self) -> None:
        self.graph: Any = lambda: None
        """Returns the graph in which `update_state` was traced last."""
        self.clear()

    def clear(self) -> None:
        """Begin without examples."""
        self.batches: list[tuple[Array, ...]] = []
        self.numbers: dict[Any, int] = {}
        """Those of the keys that are texts."""
        self.measured, self.value = 0, math.nan
        """The number of examples of the value that was computed last, and the value."""

    def __len__(self) -> int:
        return sum(len(batch[0]) for batch in self.batches)

    def number(self, keys: Array) -> Array:
        """Keys as int64 [n]."""
        if keys.dtype != object:
            return keys.astype(np.int64)
        texts, places = np.unique(keys, return_inverse=True)
        return np.array([self.numbers.setdefault(each, len(self.numbers)) for each in texts], np.int64)[places]


class _OfAllScores(keras.metrics.Metric):  # type: ignore[misc]
    """A metric of the scores of all examples, which stay in this process.

    Its variable is the number of examples: 0 begins with none. So it is right where Keras keeps the state, and where
    the state is an input of a graph, as in the trainer.
    """

    _direction = "up"

    def __init__(self, name: str, dtype: Any) -> None:
        super().__init__(name=name, dtype=dtype)
        self.count = self.add_variable((), "zeros", "int64", name="count")
        self._kept = _Kept()

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add a batch."""
        if _paused.get():
            return
        if tf.distribute.has_strategy() and tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise ValueError(
                f"{self.name} keeps all scores in one process, so it does not work in a tf.distribute strategy of "
                "several replicas; evaluate without one."
            )
        columns = [ops.cast(each, "float32") for each in _columns(self, y_true, y_pred, sample_weight)]
        columns[2:2] = self._keys(y_pred)
        self._kept.graph = weakref.ref(tf.compat.v1.get_default_graph())
        after = _call(self._keep, [self.count.value, *columns], tf.int64)
        self.count.assign(tf.ensure_shape(after, ()))

    def _keys(self, y_pred: Any) -> list[Any]:
        """The keys of the examples, if the metric has groups."""
        return []

    def _keep(self, count: Any, *columns: Array) -> Any:
        if count == 0:
            self._kept.clear()
        self._check(count)
        if len({len(each) for each in columns}) > 1:
            raise ValueError(f"{self.name}: the columns have the lengths {[len(each) for each in columns]}")
        # The arrays may be the memory of tensors, which TensorFlow uses again.
        self._kept.batches.append(self._stored(tuple(each.copy() for each in columns)))
        return np.int64(count + len(columns[0]))

    def _stored(self, columns: tuple[Array, ...]) -> tuple[Array, ...]:
        return columns

    def _check(self, count: int) -> None:
        if count != len(self._kept):
            raise ValueError(
                f"{self.name} has counted {count} examples, but has {len(self._kept)}; call reset_state() first, and "
                "do not use one metric in two evaluations at the same time"
            )

    def result(self) -> Any:
        """The value. In the graph of a step of `fit` it may be one of up to a fifth fewer examples."""
        if _paused.get():
            return {}
        is_step = not tf.executing_eagerly() and self._kept.graph() is tf.compat.v1.get_default_graph()
        found = _call(self._compute, [self.count.value, tf.constant(is_step)], tf.float64)
        return ops.cast(tf.ensure_shape(found, ()), self.dtype)

    def _compute(self, count: Any, is_step: Any) -> Any:
        kept = self._kept
        if count == 0:
            return np.float64(math.nan)
        self._check(count)
        if not is_step or count >= GROWTH * kept.measured:
            kept.batches = [tuple(map(np.concatenate, zip(*kept.batches, strict=True)))]
            kept.measured, kept.value = int(count), self._measure(*kept.batches[0])
        return np.float64(kept.value)

    def _measure(self, *columns: Array) -> float:
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="trainer")
class AUC(_OfAllScores):
    """The exact area under the ROC curve, where Keras's has 200 thresholds. NaN if all labels are equal.

    It keeps 8 bytes for each example in memory, 12 with weights. Logits and probabilities have the same AUC.
    `keras.Model.fit` on a machine with GPUs needs `compile(jit_compile=False)`, because XLA runs no Python.

    Args:
        name: That of the metric.
        dtype: As for Keras's metrics.
    """

    def __init__(self, name: str = "auc", dtype: Any = None) -> None:
        super().__init__(name, dtype)

    def _measure(self, *columns: Array) -> float:
        scores, labels, *weights = columns
        return auc(labels, scores, *weights)


@keras.saving.register_keras_serializable(package="trainer")
class GroupAUC(_OfAllScores):
    """The mean of the AUCs of groups, such as users, by their numbers of examples (GAUC; Zhou et al., 2018).

    Groups with labels of one kind are left out; NaN if all are. The last layer of the output,
    `trainer.layers.ExampleKey`, gives the key of each example's group. It keeps 16 bytes for each example in memory,
    20 with weights.

    Args:
        name: That of the metric.
        dtype: As for Keras's metrics.
    """

    def __init__(self, name: str = "group_auc", dtype: Any = None) -> None:
        super().__init__(name, dtype)

    def _keys(self, y_pred: Any) -> list[Any]:
        if (key := getattr(y_pred, KEY, None)) is None:
            raise ValueError(
                f"{self.name} does not know the groups: the output has no keys; let its last layer be "
                "trainer.layers.ExampleKey()([output, key])."
            )
        return [key]

    def _stored(self, columns: tuple[Array, ...]) -> tuple[Array, ...]:
        scores, labels, keys, *weights = columns
        return scores, labels, self._kept.number(keys), *weights

    def _measure(self, *columns: Array) -> float:
        scores, labels, keys, *weights = columns
        return group_auc(keys, labels, scores, *weights)
