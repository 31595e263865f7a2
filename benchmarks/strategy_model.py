"""A network and Adam in plain TensorFlow 2, for the two programs that use `tf.distribute` strategies.

It uses `tf.Variable` and TensorFlow's Adam op, because Keras 3 does not support these strategies; of a Keras model it
uses only `stateless_call`.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.learning import CLASSES, PIXELS, Samples

Array = npt.NDArray[Any]
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
    parser.add_argument("--keras", action="store_true", help="the network of keras_cnn.py instead of the classic one")
    parser.add_argument("--flat", type=int, default=0, metavar="N", help="all parameters in N variables")
    parser.add_argument("--no_curve", action="store_true", help="do not sample the parameters, which takes network")
    return parser.parse_args()


def load(file: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Load images [n, 784] in [0, 1] and labels [n]."""
    with np.load(file) as data:
        return data["x"].astype(np.float32), data["y"].astype(np.int32)


@dataclass(frozen=True)
class Model:
    """A model as a function of its arrays."""

    trainable: list[Array]
    others: list[Array]
    """Such as the moving statistics of batch normalization."""
    forward: Callable[[Sequence[Any], Sequence[Any], Any, bool], tuple[Any, Sequence[Any]]]
    """From both kinds of arrays, images [n, 784] and whether the model trains, to logits [n, 10] and the new others."""


def classic(hidden: int, seed: int) -> Model:
    """The network 784-H-10."""
    random = np.random.default_rng(seed)
    shapes = [(PIXELS, hidden), (hidden,), (hidden, CLASSES), (CLASSES,)]
    arrays = [random.normal(0, shape[0] ** -0.5, shape) if len(shape) == 2 else np.zeros(shape) for shape in shapes]

    def forward(arrays: Sequence[Any], others: Sequence[Any], images: Any, training: bool) -> tuple[Any, Sequence[Any]]:
        layer = tf.nn.relu(images @ arrays[0] + arrays[1])
        return layer @ arrays[2] + arrays[3], others

    return Model([array.astype(np.float32) for array in arrays], [], forward)


def keras_model(seed: int) -> Model:
    """The network of keras_cnn.py. Create it outside of a strategy's scope, because Keras 3 does not support them."""
    import keras

    from benchmarks import keras_cnn

    keras.utils.set_random_seed(seed)
    network = keras_cnn.model()

    def forward(arrays: Sequence[Any], others: Sequence[Any], images: Any, training: bool) -> tuple[Any, Sequence[Any]]:
        return network.stateless_call(arrays, others, images, training=training)  # type: ignore[no-any-return]

    return Model(
        [variable.numpy() for variable in network.trainable_variables],
        [variable.numpy() for variable in network.non_trainable_variables],
        forward,
    )


class Network:
    """A model in a variable for each array or in flat ones, and its optimizer; create it in a strategy's scope."""

    def __init__(self, arguments: argparse.Namespace, model: Model, **options: Any) -> None:
        """Pass `options` to each variable."""
        self._learning_rate = arguments.learning_rate
        self._model = model
        self._flat = arguments.flat
        arrays = _flat(model.trainable, arguments.flat) if arguments.flat else model.trainable
        others = _flat(model.others, 1) if arguments.flat else model.others
        self.values, *self._moments = (
            [tf.Variable(np.float32(scale) * array, **options) for array in arrays] for scale in (1, 0, 0)
        )
        self._others = [tf.Variable(array, **options) for array in others]
        self.updates = tf.Variable(np.int64(0), **options)

    def gradients(self, images: Any, labels: Any) -> tuple[list[Any], Sequence[Any]]:
        """Gradients of a batch's mean cross entropy with respect to each variable, and the new other arrays."""
        with tf.GradientTape() as tape:
            values = [tf.convert_to_tensor(value) for value in self.values]
            tape.watch(values)
            logits, others = self._forward(values, images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        flat = [tf.concat([tf.reshape(each, [-1]) for each in others], axis=0)] if others else []
        return list(tape.gradient(loss, values)), flat if len(self._others) < len(others) else others

    def accuracy(self, images: Array, labels: Array) -> float:
        """Accuracy on images [n, 784]."""
        logits, _ = self._forward([value.numpy() for value in self.values], images, training=False)
        return float((logits.numpy().argmax(axis=1) == labels).mean())

    def _forward(self, values: Sequence[Any], images: Any, training: bool) -> tuple[Any, Sequence[Any]]:
        others = [tf.convert_to_tensor(value) for value in self._others]
        model = self._model
        if not self._flat:
            return model.forward(values, others, images, training)
        return model.forward(_shaped(values, model.trainable), _shaped(others, model.others), images, training)

    def apply(self, gradients: Sequence[Any], others: Sequence[Any] = ()) -> None:
        """Apply one Adam update, on each variable's own device, and assign the other arrays."""
        for variable, value in zip(self._others, others, strict=True):
            variable.assign(value)
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


def _flat(arrays: Sequence[Array], parts: int) -> list[Array]:
    """All arrays as parts of one vector, if there are any."""
    return np.array_split(np.concatenate([array.ravel() for array in arrays]), parts) if arrays else []


def _shaped(values: Sequence[Any], like: Sequence[Array]) -> Sequence[Any]:
    """The pieces of the vector that has these parts, in the shapes of these arrays."""
    if not like:
        return []
    vector = values[0] if len(values) == 1 else tf.concat(values, axis=0)
    pieces = tf.split(vector, [array.size for array in like])
    return [tf.reshape(piece, array.shape) for piece, array in zip(pieces, like, strict=True)]


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


def print_result(network: Network, stopwatch: Stopwatch, samples: Samples, arguments: argparse.Namespace) -> None:
    """Print the outcome of the run as one line of JSON; without a curve for a Keras model."""
    images, labels = load(arguments.data / "test.npz")
    final = network.accuracy(images, labels)
    curve = [] if arguments.keras or arguments.no_curve else samples.curve(images, labels)
    line = {"rate": stopwatch.rate, "accuracy": final, "curve": curve, "first_step": samples.first_step}
    print(json.dumps(line), flush=True)
