"""The classic network and Adam in plain TensorFlow 2, for the two programs that use `tf.distribute` strategies.

It uses `tf.Variable` and TensorFlow's Adam op, because Keras 3 does not support these strategies.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.learning import CLASSES, PIXELS, Samples, accuracy

BETAS, EPSILON = (0.9, 0.999), 1e-8


def read_arguments(description: str | None) -> argparse.Namespace:
    """Parse the flags that both programs share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with digits.npz and test.npz: x [n, 784], y")
    parser.add_argument("--train_steps", type=int, default=3000, help="global steps")
    parser.add_argument("--batch_size", type=int, default=100, help="batch size of each worker")
    parser.add_argument("--hidden_units", type=int, default=100)
    parser.add_argument("--learning_rate", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps_per_execution", type=int, default=1, help="steps in one tf.function")
    parser.add_argument("--flat", action="store_true", help="all parameters in one variable")
    return parser.parse_args()


def load(file: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Load images [n, 784] in [0, 1] and labels [n]."""
    with np.load(file) as data:
        return data["x"].astype(np.float32), data["y"].astype(np.int32)


class Network:
    """The network 784-H-10 in four variables or a flat one, and its optimizer; create it in a strategy's scope."""

    def __init__(self, arguments: argparse.Namespace, **options: Any) -> None:
        """Pass `options` to each variable."""
        hidden, random = arguments.hidden_units, np.random.default_rng(arguments.seed)
        self._learning_rate = arguments.learning_rate
        self._shapes = [(PIXELS, hidden), (hidden,), (hidden, CLASSES), (CLASSES,)]
        arrays = [
            random.normal(0, shape[0] ** -0.5, shape) if len(shape) == 2 else np.zeros(shape) for shape in self._shapes
        ]
        if arguments.flat:
            arrays = [np.concatenate([array.ravel() for array in arrays])]
        self.values, *self._moments = (
            [tf.Variable((scale * array).astype(np.float32), **options) for array in arrays] for scale in (1, 0, 0)
        )
        self.updates = tf.Variable(np.int64(0), **options)

    def gradients(self, images: Any, labels: Any) -> list[Any]:
        """Gradients of a batch's mean cross entropy with respect to each variable."""
        with tf.GradientTape() as tape:
            values = [tf.convert_to_tensor(value) for value in self.values]
            tape.watch(values)
            arrays = values
            if len(values) == 1:
                pieces = tf.split(values[0], [math.prod(shape) for shape in self._shapes])
                arrays = [tf.reshape(piece, shape) for piece, shape in zip(pieces, self._shapes, strict=True)]
            hidden = tf.nn.relu(images @ arrays[0] + arrays[1])
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden @ arrays[2] + arrays[3])
            loss = tf.reduce_mean(losses)
        return list(tape.gradient(loss, arrays if len(values) > 1 else values))

    def apply(self, gradients: Sequence[Any]) -> None:
        """Apply one Adam update, on each variable's own device."""
        for value, *moments, gradient in zip(*map(_here, [self.values, *self._moments]), gradients, strict=True):
            with tf.device(value.device):
                number = tf.cast(_here([self.updates])[0].read_value() + 1, tf.float32)
                tf.raw_ops.ResourceApplyAdam(
                    var=value.handle,
                    m=moments[0].handle,
                    v=moments[1].handle,
                    beta1_power=BETAS[0] ** number,
                    beta2_power=BETAS[1] ** number,
                    lr=self._learning_rate,
                    beta1=BETAS[0],
                    beta2=BETAS[1],
                    epsilon=EPSILON,
                    grad=gradient,
                    use_locking=True,
                )
        _here([self.updates])[0].assign_add(1)

    def sample(self, samples: Samples) -> None:
        """Add the current values to `samples`."""
        samples.add(int(self.updates.numpy()), [value.numpy() for value in self.values])


def _here(variables: Sequence[Any]) -> list[Any]:
    """This replica's own copies, if the strategy keeps several."""
    return [getattr(variable, "_get", lambda variable=variable: variable)() for variable in variables]


class Stopwatch:
    """Steps per second in the steady part, which starts after a tenth of the steps."""

    def __init__(self, train_steps: int) -> None:
        self._warm = train_steps // 10
        self._since: tuple[float, int] | None = None
        self.rate = 0.0

    def tick(self, step: int) -> None:
        """Record that the run has reached this global step."""
        now = time.monotonic()
        if self._since is None and step >= self._warm:
            self._since = (now, step)
        elif self._since and step > self._since[1]:
            self.rate = (step - self._since[1]) / (now - self._since[0])


def print_result(network: Network, stopwatch: Stopwatch, samples: Samples, data: Path) -> None:
    """Print the outcome of the run as one line of JSON."""
    images, labels = load(data / "test.npz")
    final = accuracy(np.concatenate([np.ravel(value.numpy()) for value in network.values]), images, labels)
    curve = samples.curve(images, labels)
    line = {"rate": stopwatch.rate, "accuracy": final, "curve": curve, "first_step": samples.first_step}
    print(json.dumps(line), flush=True)
