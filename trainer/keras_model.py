"""A Keras model as a model of this package: its arrays by name, and a step as plain ops.

Keras builds and traces the model in eager mode, as it always does. The trainer takes the initial values, and graphs
without variables: the arrays and, for dropout and the like, a random seed are their inputs. Keras's `StatelessScope`
makes this possible. Values that a model sets itself in training, such as the moving averages of batch normalization,
are arrays that are not trainable; a step returns by how much they change.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow.python.eager import context  # not public API; the trainer itself uses graphs

from trainer.errors import ConfigurationError
from trainer.models import Parameter, Prediction, StepTensors, accuracy
from trainer.op_template import OpTemplate, trace
from trainer.tensorflow import tf
from trainer.tensorflow_types import Tensor

SEED_STATE = "seed_generator_state"
"""The name of the state of each of Keras's random number generators."""
ARGUMENTS = ("input_shape", "classes")
"""The arguments that `model()` may have."""


class KerasModel:
    """The Keras model that the function `model` of a model file returns."""

    def __init__(self, name: str, function: Callable[..., Any], seed: int) -> None:
        """`name` is that of the file, for errors; `seed` determines the initial values."""
        self._name, self._function, self._seed = name, function, seed
        self._model: Any = None
        self._arrays: dict[str, Any] = {}
        """The variables of the trainer's arrays by name, the trainable ones first."""
        self._trainable = 0
        """The number of trainable arrays."""
        self._seeds: list[Any] = []
        """The states of random number generators."""
        self._constants: list[Any] = []
        """Variables that are not float32. They must not change."""
        self._templates: list[OpTemplate] = []
        """They own the Python functions of the model (`tf.numpy_function`), so keep them."""

    @property
    def optimizer(self) -> Any:
        """The optimizer of a compiled model, otherwise None."""
        return self._model.optimizer if self._model.compiled else None

    @property
    def is_random(self) -> bool:
        """Whether a step draws random numbers."""
        return bool(self._seeds)

    def parameters(self, image_shape: tuple[int, ...], classes: int, hidden_units: int) -> dict[str, Parameter]:
        """Build the model, and return its arrays, the trainable ones first.

        Raises:
            ConfigurationError: the function fails, or the model that it returns cannot be trained here.
        """
        import keras

        with context.eager_mode(), self._errors("model() failed"):
            keras.utils.set_random_seed(self._seed % 2**32)
            self._model = self._function(**self._arguments(image_shape, classes))
        if not isinstance(self._model, keras.Model):
            raise self._error(f"model() returned {type(self._model).__name__}; return a keras.Model")
        with context.eager_mode(), self._errors(f"the model does not accept images of shape {list(image_shape)}"):
            outputs = self._model(np.zeros((1, *image_shape), np.float32))
        self._check(outputs, classes)
        trainable, others = self._model.trainable_variables, self._model.non_trainable_variables
        self._seeds = [each for each in others if each.name == SEED_STATE]
        state = [each for each in others if each.dtype == "float32"]
        self._constants = [each for each in others if each.dtype != "float32" and each.name != SEED_STATE]
        self._arrays, self._trainable = _by_name([*trainable, *state]), len(trainable)
        with context.eager_mode():
            return {
                name: Parameter(tuple(variable.shape), value=variable.numpy(), trainable=position < self._trainable)
                for position, (name, variable) in enumerate(self._arrays.items())
            }

    def step(self, arrays: Mapping[str, Tensor], images: Tensor, labels: Tensor, seed: Tensor | None) -> StepTensors:
        """Add the ops of a step to the default graph.

        Args:
            arrays: The model's arrays by name.
            images: float32 [batch, *image_shape].
            labels: int32 [batch].
            seed: int32 [2], another one for each step; None unless `is_random`.

        Raises:
            ConfigurationError: the model cannot be trained here.
        """

        def compute(values: Sequence[Tensor], images: Tensor, labels: Tensor, seed: Tensor) -> list[Tensor]:
            named = dict(zip(self._arrays, values, strict=True))
            wanted = values[: self._trainable]
            with tf.GradientTape() as tape:
                tape.watch(wanted)
                outputs, loss, updated = self._call(named, images, labels, seed, training=True)
            gradients = tape.gradient(loss, wanted, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            differences = [updated[name] - named[name] for name in list(self._arrays)[self._trainable :]]
            changes = [tf.convert_to_tensor(each) for each in (*gradients, *differences)]
            return [loss, accuracy(outputs, labels), *changes]

        seed = tf.zeros([2], tf.int32) if seed is None else seed
        loss, correct, *changes = self._add("step", compute, list(arrays.values()), images, labels, seed)
        return StepTensors(loss, correct, dict(zip(self._arrays, changes, strict=True)))

    def predict(self, arrays: Mapping[str, Tensor], images: Tensor, labels: Tensor) -> Prediction:
        """Add the ops of a prediction to the default graph.

        Args:
            arrays: The model's arrays by name.
            images: float32 [batch, *image_shape].
            labels: int32 [batch].
        """

        def compute(values: Sequence[Tensor], images: Tensor, labels: Tensor) -> list[Tensor]:
            named = dict(zip(self._arrays, values, strict=True))
            outputs, loss, _ = self._call(named, images, labels, tf.zeros([2], tf.int32), training=False)
            probabilities = tf.nn.softmax(outputs) if self._gives_logits() else outputs
            return [probabilities, loss, accuracy(outputs, labels)]

        return Prediction(*self._add("prediction", compute, list(arrays.values()), images, labels))

    def save(self, path: Path, arrays: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Save the model with these values of its arrays as Keras does, in a .keras file."""
        with context.eager_mode():
            for name, variable in self._arrays.items():
                variable.assign(arrays[name])
            self._model.save(path)

    def _arguments(self, image_shape: tuple[int, ...], classes: int) -> dict[str, Any]:
        wanted = inspect.signature(self._function).parameters
        required = [name for name, each in wanted.items() if each.default is each.empty and name not in ARGUMENTS]
        if required:
            raise self._error(f"model() has the argument {required[0]}; it may have {' and '.join(ARGUMENTS)}")
        return {name: value for name, value in zip(ARGUMENTS, (image_shape, classes), strict=True) if name in wanted}

    def _check(self, outputs: Any, classes: int) -> None:
        """Raise an error if the trainer cannot train the model."""
        import keras

        if type(self._model).train_step is not keras.Model.train_step:
            raise self._error("the model overrides train_step, which is the trainer's part; override compute_loss")
        if not isinstance(outputs, tf.Tensor):
            raise self._error("the model has several outputs; the trainer takes models with one")
        if outputs.shape != (1, classes):
            raise self._error(
                f"the model's output has the shape {[None, *outputs.shape[1:]]}, but the data has {classes} classes; "
                f"let it have the shape [None, {classes}]"
            )
        for variable in self._model.trainable_variables:
            if variable.dtype != "float32":
                raise self._error(f"{variable.path} is {variable.dtype}; let trainable variables be float32")

    def _call(
        self, named: Mapping[str, Tensor], images: Tensor, labels: Tensor, seed: Tensor, training: bool
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The outputs [batch, classes], the loss, and the arrays after the call."""
        import keras

        mapping = [(self._arrays[name], value) for name, value in named.items()]
        mapping += [(state, tf.cast(seed + index, state.dtype)) for index, state in enumerate(self._seeds)]
        constants = {each.path: tf.constant(each.numpy()) for each in self._constants}
        mapping += [(each, constants[each.path]) for each in self._constants]
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            outputs = self._model(images, training=training)
            if self._model.compiled:
                loss = self._model.compute_loss(x=images, y=labels, y_pred=outputs)
            else:
                own = keras.losses.SparseCategoricalCrossentropy(from_logits=self._gives_logits())
                loss = own(labels, outputs) + sum(self._model.losses)
        changed = [each.path for each in self._constants if scope.get_current_value(each) is not constants[each.path]]
        if changed:
            raise self._error(f"the model changes the variable {changed[0]}, which is not float32")
        updated = {name: scope.get_current_value(variable) for name, variable in self._arrays.items()}
        return tf.cast(outputs, tf.float32), tf.cast(loss, tf.float32), updated

    def _gives_logits(self) -> bool:
        """Whether the outputs are logits, and not probabilities."""
        import keras

        if self._model.compiled:
            loss = keras.losses.get(self._model.loss)
            return bool(getattr(loss, "_fn_kwargs", {}).get("from_logits", False))
        return getattr(self._model.layers[-1], "activation", None) is not keras.activations.softmax

    def _add(self, what: str, function: Callable[..., Any], arrays: Sequence[Tensor], *inputs: Tensor) -> list[Tensor]:
        """Trace a function, and add its ops to the default graph."""
        specs = [[tf.TensorSpec(each.shape, each.dtype) for each in arrays]]
        specs += [tf.TensorSpec(each.shape, each.dtype) for each in inputs]
        with self._errors(f"the {what} cannot be built"):
            template = trace(function, *specs)
        self._templates.append(template)
        return template.copy([*arrays, *inputs], what)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Convert an exception of the model's own code to a `ConfigurationError`."""
        try:
            yield
        except ConfigurationError:
            raise
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
            raise self._error(f"{what}: {reason.rstrip('.: ')}") from error

    def _error(self, text: str) -> ConfigurationError:
        return ConfigurationError(f"model={self._name}: {text}.")


def _by_name(variables: Sequence[Any]) -> dict[str, Any]:
    """The variables by their paths, which may be equal in models of their own classes."""
    found: dict[str, Any] = {}
    for variable in variables:
        name, number = variable.path, 1
        while name in found:
            name, number = f"{variable.path}_{number}", number + 1
        found[name] = variable
    return found
