"""The updates of Keras's optimizers by one op of TensorFlow: which have one, and that they are Keras's."""

from typing import Any

import keras
import numpy as np
import pytest
from keras.optimizers import SGD, Adam, AdamW, RMSprop

from trainer.graph import fused_update
from trainer.tensorflow import tf
from trainer.tensorflow.private import eager_mode


class Own(Adam):  # type: ignore[misc]
    """An optimizer whose update may be another one."""


@pytest.mark.parametrize(
    ("kind", "settings", "slots"),
    [
        (SGD, {}, 0),
        (SGD, {"momentum": 0.9}, 1),
        (SGD, {"momentum": 0.9, "nesterov": True}, 1),
        (Adam, {}, 2),
        (Adam, {"amsgrad": True, "beta_1": 0.5, "epsilon": 1e-3}, 3),
        (AdamW, {"weight_decay": 0.0}, 2),
    ],
)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_an_op_updates_a_vector_as_keras_does(kind: Any, settings: Any, slots: int, scale: float) -> None:
    random = np.random.default_rng(0)
    first, *gradients = random.normal(size=(6, 50)).astype(np.float32)
    with eager_mode():
        optimizer, expected = kind(0.01, **settings), keras.Variable(first)
        update = fused_update.of(optimizer)
        assert update
        values, state = tf.Variable(first), [tf.Variable(tf.zeros(50)) for _ in range(slots)]
        for number, gradient in enumerate(gradients, start=1):
            scaled = gradient * np.float32(scale)
            update(values, state, tf.constant(scaled), tf.constant(0.01), tf.constant(number, tf.int64))
            optimizer.apply([tf.constant(scaled)], [expected])
        found, wanted = values.numpy() - first, expected.numpy() - first
    # The op has betas in float32 where Keras has those of Python, which the second moment shows.
    assert np.allclose(found, wanted, rtol=5e-5, atol=5e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    "optimizer",
    [RMSprop(), Own(), Adam(use_ema=True), SGD(clipnorm=1.0), SGD(clipvalue=1.0)],
    ids=["without an op", "an own class", "moving averages", "clipnorm", "clipvalue"],
)
def test_other_optimizers_update_by_what_keras_traces(optimizer: Any) -> None:
    assert fused_update.of(optimizer) is None
