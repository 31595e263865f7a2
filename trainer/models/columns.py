"""The packaged network for the columns of a table: a linear model and two small layers, side by side.

Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016. What prepares the columns is a part of the model, so
that the exported one takes the same raw columns.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer.data.columns.plan import Column, Plan
from trainer.tensorflow_types import Tensor

DIM = 8
"""The elements of the vector of a hashed text."""
UNITS = (64, 32)
INPUT_DROPOUT, DROPOUT, VECTOR_DROPOUT = 0.1, 0.2, 0.5
LEARNING_RATE = 0.001
LINEAR_DECAY, DECAY = 1e-2, 1e-3
"""The factors of the squares of weights in the loss (L2)."""
SECONDS_A_DAY, DAYS_A_YEAR, DAYS_A_WEEK = 86_400.0, 365.2425, 7.0
FIRST_WEEKDAY = 4
"""1 January 1970 was a Thursday."""
FURTHEST = 8.0
"""A number further from the mean, in standard deviations, counts as one at this distance."""


def model(plan: Plan) -> Any:
    """The compiled `keras.Model` of a plan. It has one input for each column, by the column's name.

    It gives the probability of the second of two classes, [n, 1], the probabilities of more classes, [n, classes], or a
    value, [n, 1].
    """
    import keras
    from keras import layers

    inputs = {each.name: keras.Input(each.shape, dtype=each.dtype, name=each.name) for each in plan.inputs}
    dense, wide, deep = [], [], []
    for kind, prepare in _PREPARE.items():
        if columns := [each for each in plan.inputs if each.kind == kind]:
            dense += prepare(columns, [inputs[each.name] for each in columns])
    units = 1 if len(plan.target.classes) <= 2 else len(plan.target.classes)
    for each in plan.inputs:
        if each.bins and each.kind in ("hashed", "bag"):
            ids = layers.Hashing(each.bins + 1, mask_value="")(inputs[each.name])
            wide.append(_average(layers.Embedding(each.bins + 1, units, embeddings_initializer="zeros")(ids), ids))
            vectors = _average(layers.Embedding(each.bins + 1, DIM)(ids), ids)
            deep.append(layers.Dropout(VECTOR_DROPOUT)(vectors))  # rare texts are learnt by heart otherwise
    decayed = keras.regularizers.L2(LINEAR_DECAY)
    wide += [layers.Dense(units, kernel_initializer="zeros", kernel_regularizer=decayed)(_join(dense))] if dense else []
    h = layers.Dropout(INPUT_DROPOUT)(_join(dense + deep))
    for size in UNITS:
        decayed = keras.regularizers.L2(DECAY)
        h = layers.Dropout(DROPOUT)(layers.Dense(size, activation="relu", kernel_regularizer=decayed)(h))
    total = [*wide, layers.Dense(units, kernel_initializer="zeros")(h)]
    output = layers.Add()(total) if len(total) > 1 else total[0]
    if not plan.target.classes:
        output = layers.Rescaling(plan.target.stddev, plan.target.mean)(output)
    else:
        output = layers.Activation("sigmoid" if units == 1 else "softmax")(output)
    network = keras.Model(inputs, output)
    network.compile(keras.optimizers.Adam(LEARNING_RATE), **_loss(plan))
    return network


def _loss(plan: Plan) -> dict[str, Any]:
    import keras

    if not plan.target.classes:
        scale = plan.target.stddev**-2  # or the loss of large values would hide what Adam's epsilon is for
        metrics = ["mae", keras.metrics.R2Score(name="r2")]
        return {"loss": "mean_squared_error", "loss_weights": [scale], "metrics": metrics}
    if len(plan.target.classes) == 2:
        return {"loss": "binary_crossentropy", "metrics": ["accuracy", keras.metrics.AUC(name="auc")]}
    return {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}


def _numbers(columns: Sequence[Column], tensors: Sequence[Tensor]) -> list[Tensor]:
    from keras import layers, ops

    found = ops.stack(tensors, axis=1)
    normalize = layers.Normalization(-1, [each.mean for each in columns], [each.variance for each in columns])
    missing = ops.isnan(found)
    scaled = ops.clip(ops.where(missing, 0.0, normalize(found)), -FURTHEST, FURTHEST)
    flagged = [index for index, each in enumerate(columns) if each.missing]
    return [scaled, *([ops.cast(ops.take(missing, flagged, axis=1), "float32")] if flagged else [])]


def _dates(columns: Sequence[Column], tensors: Sequence[Tensor]) -> list[Tensor]:
    from keras import layers, ops

    days = ops.stack(tensors, axis=1) / SECONDS_A_DAY
    missing = ops.isnan(days)
    normalize = layers.Normalization(-1, [each.mean for each in columns], [each.variance or 1.0 for each in columns])
    parts = [ops.clip(normalize(ops.cast(days, "float32")), -FURTHEST, FURTHEST)]
    for period, shift in ((DAYS_A_YEAR, 0), (DAYS_A_WEEK, FIRST_WEEKDAY), (1.0, 0)):
        angle = ops.cast(2 * math.pi * (((days + shift) / period) % 1.0), "float32")
        parts += [ops.sin(angle), ops.cos(angle)]
    parts = [ops.where(missing, 0.0, each) for each in parts]
    return [*parts, *([ops.cast(missing, "float32")] if any(each.missing for each in columns) else [])]


def _categories(columns: Sequence[Column], tensors: Sequence[Tensor]) -> list[Tensor]:
    from keras import layers, ops

    lookups = [
        layers.StringLookup(vocabulary=[*each.categories, *([""] if each.missing else [])], output_mode="one_hot")
        for each in columns
    ]
    return [ops.cast(lookup(each), "float32") for lookup, each in zip(lookups, tensors, strict=True)]


def _texts(columns: Sequence[Column], tensors: Sequence[Tensor]) -> list[Tensor]:
    from keras import layers, ops

    lookups = [layers.TextVectorization(vocabulary=list(each.categories), output_mode="multi_hot") for each in columns]
    return [ops.cast(lookup(each), "float32") for lookup, each in zip(lookups, tensors, strict=True)]


def _vectors(columns: Sequence[Column], tensors: Sequence[Tensor]) -> list[Tensor]:
    from keras import layers, ops

    return [
        ops.where(ops.isnan(each), 0.0, layers.Normalization(None, column.mean, column.variance)(each))
        for column, each in zip(columns, tensors, strict=True)
    ]


_PREPARE: Mapping[str, Callable[[Sequence[Column], Sequence[Tensor]], list[Tensor]]] = {
    "number": _numbers,
    "date": _dates,
    "vector": _vectors,
    "category": _categories,
    "text": _texts,
}
"""By kind of the columns, what makes tensors [n, …] of them."""


def _average(vectors: Tensor, ids: Tensor) -> Tensor:
    """The average over the elements of a list, without those that fill it; a single vector as it is."""
    from keras import ops

    if len(ids.shape) == 1:
        return vectors
    counts = ops.cast(ops.expand_dims(ids > 0, -1), "float32")
    return ops.sum(vectors * counts, axis=1) / ops.maximum(ops.sum(counts, axis=1), 1.0)


def _join(parts: Sequence[Tensor]) -> Tensor:
    from keras import layers

    return layers.Concatenate()(list(parts)) if len(parts) > 1 else parts[0]
