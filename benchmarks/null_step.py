"""The model of `python -m benchmarks.step_costs`: a step that computes next to nothing, from the environment.

NUMBERS are its parameters. MILLISECONDS, if given, is what a step sleeps, as if an accelerator computed; the fraction
STRAGGLING of the steps sleeps ten times as long.
"""

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.models import Parameter
from trainer.tensorflow import tf
from trainer.tensorflow_types import Tensor

SECONDS = float(os.environ.get("MILLISECONDS", "0")) / 1e3
STRAGGLING = float(os.environ.get("STRAGGLING", "0"))
TIMES = 10
RANDOM = np.random.default_rng()


def parameters(image_shape: tuple[int, ...], classes: int, hidden_units: int) -> dict[str, Parameter]:
    """One vector."""
    return {"numbers": Parameter((int(os.environ["NUMBERS"]),))}


def logits(parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """The same logits for all classes, from which all parameters have a gradient."""
    mean = tf.reduce_mean(parameters["numbers"])
    if SECONDS:
        with tf.control_dependencies([mean]):
            mean += tf.numpy_function(_sleep, [], tf.float32)
    return tf.fill([tf.shape(images)[0], 10], mean)


def _sleep() -> Any:
    time.sleep(SECONDS * (TIMES if RANDOM.random() < STRAGGLING else 1))
    return np.float32(0)
