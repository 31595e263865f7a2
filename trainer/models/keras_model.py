"""A Keras model as a model of this package: its arrays by name, and a step as plain ops.

Keras builds and traces the model in eager mode, as it always does. The trainer takes the initial values, and graphs
without variables: the arrays and, for dropout and the like, a random seed are their inputs. Keras's `StatelessScope`
makes this possible. Values that a model sets itself in training, such as the moving averages of batch normalization,
are arrays that are not trainable; a step returns by how much they change. The state of the metrics is another input.
All arrays are float32, whatever their type in the model. Whole numbers that do not change are constants.
"""

import contextlib
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optree
from tensorflow.python.eager import context  # not public API; the trainer itself uses graphs

from trainer.data.examples import Array, ArraySpec, Signature, named
from trainer.errors import ConfigurationError
from trainer.models import ACCURACY, Parameter, Prediction, StepTensors
from trainer.models.op_template import OpTemplate, trace
from trainer.tensorflow import tf
from trainer.tensorflow_types import Tensor
from trainer.text.reasons import reason

logger = logging.getLogger(__name__)

FILE = "model.keras"
WEIGHTS = "model.weights.h5"
"""What is written if Keras cannot write a model."""
SEED_STATE = "seed_generator_state"
"""The name of the state of each of Keras's random number generators."""


class KerasModel:
    """The Keras model that the function `model` of a model file returns."""

    def __init__(self, name: str, function: Callable[..., Any], seed: int, weights: Path | None) -> None:
        """Take the function of a model file.

        Args:
            name: The file's name, for errors.
            function: Makes the model.
            seed: Determines the initial values.
            weights: A file of Keras's with other initial values.
        """
        self._name, self._function, self._seed, self._weights = name, function, seed, weights
        self._model: Any = None
        self._ends_in_softmax = False
        self._signature: Signature
        self._arrays: dict[str, Any] = {}
        """The variables of the trainer's arrays by name, the trainable ones first."""
        self._trainable = 0
        """The number of trainable arrays."""
        self._seeds: list[Any] = []
        """The states of random number generators."""
        self._constants: list[tuple[Any, Array]] = []
        """Whole numbers, truth values and texts. They do not change."""
        self._accuracy: Any = None
        """The metric of a model that has none of its own."""
        self._metric_variables: list[Any] = []
        self.no_counts: Sequence[Array] = []
        self._templates: list[OpTemplate] = []
        """They own the Python functions of the model (`tf.numpy_function`), so keep them."""

    @property
    def optimizer(self) -> Any:
        return self._model.optimizer if self._model.compiled else None

    @property
    def is_random(self) -> bool:
        return bool(self._seeds)

    @property
    def untrained_loss(self) -> float | None:
        return math.log(self._signature.classes) if self._signature.classes else None

    def parameters(self, signature: Signature) -> dict[str, Parameter]:
        import keras

        self._signature = signature
        with context.eager_mode(), self._errors("model() failed"):
            keras.utils.set_random_seed(self._seed % 2**32)
            self._model = self._function(**self._arguments())
        if not isinstance(self._model, keras.Model):
            raise self._error(f"model() returned {type(self._model).__name__}; return a keras.Model")
        if type(self._model).train_step is not keras.Model.train_step:
            raise self._error("the model overrides train_step, which is the trainer's part; override compute_loss")
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            raise self._error("mixed_float16 needs its loss scaled, which the trainer does not do; use mixed_bfloat16")
        wrong = [each for each in optree.tree_leaves(self._loss_weights()) if isinstance(each, str)]
        if wrong:
            raise self._error(
                f"compile() got {wrong[0]!r} as loss_weights, the third of its arguments; write metrics=[{wrong[0]!r}]"
            )
        with context.eager_mode():
            inputs, targets, weights = signature.pack([_zeros(spec) for spec in signature.specs])
            given = ", ".join(f"{name} {spec}" for name, spec in signature.inputs.items())
            with self._errors(f"the model does not accept the data ({given})"):
                outputs = self._model(inputs)
            self._check(outputs)
            self._ends_in_softmax = not self._model.compiled and self._find_softmax(inputs)
            if self._weights:
                with self._errors(f"initial_weights={self._weights} does not fit the model"):
                    self._model.load_weights(self._weights)
            with self._errors("the loss or the metrics of compile() do not fit the data"):
                self._build_metrics(inputs, targets, outputs, weights)
            with self._errors("the model does not train on the data"):
                return self._read_arrays(inputs)

    def step(self, arrays: Mapping[str, Tensor], batch: Sequence[Tensor], seed: Tensor | None) -> StepTensors:
        names: list[str] = []

        def compute(values: Sequence[Tensor], batch: Sequence[Tensor], seed: Tensor) -> list[Tensor]:
            given = dict(zip(self._arrays, values, strict=True))
            wanted = values[: self._trainable]
            counts = [tf.constant(each) for each in self.no_counts]
            with tf.GradientTape() as tape:
                tape.watch(wanted)
                _, loss, updated, after = self._call(given, batch, counts, seed, training=True)
            gradients = tape.gradient(loss, wanted, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            differences = [updated[name] - given[name] for name in list(self._arrays)[self._trainable :]]
            measured = self._measure(after)
            names[:] = measured
            changes = [tf.convert_to_tensor(each) for each in (*gradients, *differences)]
            return [loss, *changes, *measured.values()]

        seed = tf.zeros([2], tf.int32) if seed is None else seed
        loss, *others = self._add("step", compute, list(arrays.values()), list(batch), seed)
        changes, metrics = others[: len(self._arrays)], others[len(self._arrays) :]
        return StepTensors(loss, dict(zip(names, metrics, strict=True)), dict(zip(self._arrays, changes, strict=True)))

    def predict(self, arrays: Mapping[str, Tensor], batch: Sequence[Tensor], counts: Sequence[Tensor]) -> Prediction:
        names: list[str] = []

        def compute(values: Sequence[Tensor], batch: Sequence[Tensor], counts: Sequence[Tensor]) -> list[Tensor]:
            given = dict(zip(self._arrays, values, strict=True))
            outputs, loss, _, after = self._call(given, batch, counts, tf.zeros([2], tf.int32), training=False)
            by_name = self._name_outputs(outputs)
            names[:] = by_name
            return [*by_name.values(), loss, *after]

        tensors = self._add("prediction", compute, list(arrays.values()), list(batch), list(counts))
        outputs, (loss, *after) = tensors[: len(names)], tensors[len(names) :]
        return Prediction(dict(zip(names, outputs, strict=True)), loss, after)

    def measure(self, counts: Sequence[Tensor]) -> Mapping[str, Tensor]:
        names: list[str] = []

        def compute(counts: Sequence[Tensor]) -> list[Tensor]:
            measured = self._measure(counts)
            names[:] = measured
            return list(measured.values())

        return dict(zip(names, self._add("metrics", compute, list(counts)), strict=True)) if counts else {}

    def save(self, folder: Path, arrays: Mapping[str, Array]) -> None:
        with context.eager_mode():
            for name, variable in self._arrays.items():
                value = arrays[name] if tf.as_dtype(variable.dtype).is_floating else arrays[name].round()
                variable.assign(value.astype(tf.as_dtype(variable.dtype).as_numpy_dtype))
            if self.optimizer and not self.optimizer.built:  # Keras warns of an optimizer that it cannot restore
                self.optimizer.build(self._model.trainable_variables)
            try:
                self._model.save(folder / FILE)
            except Exception as error:  # a layer or a schedule of the user's own may lack get_config
                (folder / FILE).unlink(missing_ok=True)
                self._model.save_weights(folder / WEIGHTS)
                logger.warning(
                    f"{FILE} cannot be written, so the export has the SavedModel and {WEIGHTS}: "
                    f"{reason(error, self._name)}"
                )

    def _arguments(self) -> dict[str, Any]:
        known = {"input_shape": self._signature.input_shape, "classes": self._signature.classes}
        wanted = inspect.signature(self._function).parameters
        for name, each in wanted.items():
            is_required = each.default is each.empty
            if is_required and name not in known:
                raise self._error(f"model() has the argument {name}; it may have {' and '.join(known)}")
            if is_required and known[name] is None:
                raise self._error(f"model() has the argument {name}, which the data does not determine; leave it out")
        return {name: value for name, value in known.items() if name in wanted and value is not None}

    def _check(self, outputs: Any) -> None:
        """Raise an error if the trainer cannot train the model."""
        classes = self._signature.classes
        is_single = isinstance(outputs, tf.Tensor)
        if not self._model.compiled and not (is_single and self._signature.has_labels):
            raise self._error("the data has no class labels, or the model several outputs; compile() it with a loss")
        classifies = classes and is_single and (not self._model.compiled or self._is_classifier())
        if classifies and (outputs.shape.rank != 2 or outputs.shape[1] < classes):
            raise self._error(
                f"the model's output has the shape {[None, *outputs.shape[1:]]}, but the data has {classes} classes; "
                f"let it have the shape [None, {classes}]"
            )
        for variable in self._model.trainable_variables:
            if not tf.as_dtype(variable.dtype).is_floating:
                raise self._error(f"{variable.path} is {variable.dtype}; let trainable variables be float32")

    def _is_classifier(self) -> bool:
        """Whether the loss of compile() compares a class label with an output for each class."""
        import keras

        loss = self._model.loss
        if not isinstance(loss, (str, keras.losses.Loss)) and not callable(loss):
            return False  # one for each output
        found = keras.losses.get(loss)
        by_class = isinstance(found, keras.losses.SparseCategoricalCrossentropy)  # its name may be the user's
        return by_class or getattr(found, "__name__", "") == "sparse_categorical_crossentropy"

    def _build_metrics(self, inputs: Any, targets: Any, outputs: Any, weights: Any) -> None:
        """Find the metrics' variables, and their values before the first batch."""
        import keras

        has_own = self._model.compiled and self._model._compile_metrics is not None
        if not has_own and isinstance(outputs, tf.Tensor) and (not self._model.compiled or self._is_classifier()):
            self._accuracy = keras.metrics.SparseCategoricalAccuracy(ACCURACY)
            self._accuracy.update_state(targets, outputs)
            self._accuracy.reset_state()
            self._metric_variables = self._accuracy.variables
        elif self._model.compiled:
            self._model.compute_loss(inputs, targets, outputs, weights)
            self._model.compute_metrics(inputs, targets, outputs, weights)
            self._model.reset_metrics()
            self._metric_variables = self._model.metrics_variables
        self.no_counts = [each.numpy() for each in self._metric_variables]

    def _read_arrays(self, inputs: Any) -> dict[str, Parameter]:
        import keras

        trainable, others = self._model.trainable_variables, self._model.non_trainable_variables
        own = {id(each) for each in self._metric_variables}
        others = [each for each in others if id(each) not in own]
        self._seeds = [each for each in others if each.name == SEED_STATE]
        others = [each for each in others if each.name != SEED_STATE]
        changing = self._find_changing([each for each in others if not tf.as_dtype(each.dtype).is_floating], inputs)
        state = [each for each in others if tf.as_dtype(each.dtype).is_floating or id(each) in changing]
        carried = {id(each) for each in state}
        self._constants = [(each, each.numpy()) for each in others if id(each) not in carried]
        self._arrays, self._trainable = _by_name([*trainable, *state]), len(trainable)
        decays = self.optimizer._use_weight_decay if self.optimizer else lambda variable: True
        return {
            name: Parameter(
                tuple(variable.shape),
                value=keras.ops.convert_to_numpy(variable).astype(np.float32),
                trainable=position < self._trainable,
                decays=position >= self._trainable or decays(variable),
                constraint=variable.constraint if position < self._trainable else None,
            )
            for position, (name, variable) in enumerate(self._arrays.items())
        }

    def _call(
        self,
        given: Mapping[str, Tensor],
        batch: Sequence[Tensor],
        counts: Sequence[Tensor],
        seed: Tensor,
        training: bool,
    ) -> tuple[Any, Tensor, dict[str, Tensor], list[Tensor]]:
        """The outputs, the loss, the arrays after the call, and the state of the metrics after it."""
        import keras

        inputs, targets, weights = self._signature.pack(batch)
        mapping = [(self._arrays[name], _from_float(value, self._arrays[name].dtype)) for name, value in given.items()]
        mapping += [(state, tf.cast(seed + index, state.dtype)) for index, state in enumerate(self._seeds)]
        mapping += zip(self._metric_variables, counts, strict=True)
        constants = [(each, tf.constant(value)) for each, value in self._constants]
        mapping += constants
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            outputs = self._model(inputs, training=training)
            if self._model.compiled:
                loss = self._model.compute_loss(inputs, targets, outputs, weights, training=training)
            else:
                own = keras.losses.SparseCategoricalCrossentropy(from_logits=self._gives_logits())
                loss = own(targets, outputs, weights) + sum(self._model.losses)
            if self._accuracy:
                self._accuracy.update_state(targets, outputs, weights)
            elif self._model.compiled:
                self._model.compute_metrics(inputs, targets, outputs, weights)
        changed = [each.path for each, value in constants if scope.get_current_value(each) is not value]
        if changed:
            raise self._error(f"the loss or a metric changes the variable {changed[0]}; let it be float32")
        updated = {name: tf.cast(scope.get_current_value(each), tf.float32) for name, each in self._arrays.items()}
        after = [tf.convert_to_tensor(scope.get_current_value(each)) for each in self._metric_variables]
        outputs = optree.tree_map(lambda each: tf.cast(each, tf.float32), outputs)
        return outputs, tf.cast(loss, tf.float32), updated, after

    def _measure(self, counts: Sequence[Tensor]) -> dict[str, Tensor]:
        """The metrics by name that are single numbers."""
        import keras

        with keras.StatelessScope(list(zip(self._metric_variables, counts, strict=True))):
            if self._accuracy:
                found = {ACCURACY: self._accuracy.result()}
            else:
                found = self._model.get_metrics_result() if self._model.compiled else {}
        scalars = {name: tf.cast(value, tf.float32) for name, value in found.items() if name != "loss"}
        return {name: value for name, value in scalars.items() if value.shape.rank == 0}

    def _name_outputs(self, outputs: Any) -> dict[str, Tensor]:
        if not isinstance(outputs, tf.Tensor):
            return named(outputs, "output")
        if not self._accuracy and not self._is_classifier():
            return {"outputs": outputs}
        return {"probabilities": tf.nn.softmax(outputs) if self._gives_logits() else outputs}

    def _gives_logits(self) -> bool:
        """Whether the outputs are logits, and not probabilities."""
        import keras

        if self._model.compiled:
            loss = keras.losses.get(self._model.loss)
            return bool(getattr(loss, "_fn_kwargs", {}).get("from_logits", False))
        return not self._ends_in_softmax

    def _find_softmax(self, inputs: Any) -> bool:
        """Whether the last op of the model, by whichever layer, is a softmax."""
        import keras

        def call(given: Any) -> Any:
            with keras.StatelessScope(collect_losses=True):
                return self._model(given, training=False)

        traced = tf.function(call).get_concrete_function(inputs)
        if len(traced.outputs) != 1:
            return False
        op = traced.outputs[0].op
        while op.type in ("Identity", "Cast"):
            op = op.inputs[0].op
        return bool(op.type == "Softmax")

    def _find_changing(self, variables: Sequence[Any], inputs: Any) -> set[int]:
        """The ids of those of these variables that the model sets in training."""
        import keras

        found: set[int] = set()

        def call() -> None:
            given = [(each, tf.convert_to_tensor(each.value)) for each in variables]
            with keras.StatelessScope(given, collect_losses=True) as scope:
                self._model(inputs, training=True)
            found.update(id(each) for each, value in given if scope.get_current_value(each) is not value)

        if variables:
            tf.function(call).get_concrete_function()
        return found

    def _loss_weights(self) -> Any:
        return getattr(getattr(self._model, "_compile_loss", None), "_user_loss_weights", None)

    def _add(self, what: str, function: Callable[..., Any], *inputs: Any) -> list[Tensor]:
        """Trace a function of tensors and lists of tensors, and add its ops to the default graph."""
        given: Any = inputs
        specs = optree.tree_map(lambda each: tf.TensorSpec(each.shape, each.dtype), given)
        with self._errors(f"the {what} cannot be built"):
            template = trace(function, *specs)
        self._templates.append(template)
        return template.copy(optree.tree_leaves(given), what)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Convert an exception of the model's own code to a `ConfigurationError`."""
        try:
            yield
        except ConfigurationError:
            raise
        except Exception as error:
            raise self._error(f"{what}: {reason(error, self._name)}") from error

    def _error(self, text: str) -> ConfigurationError:
        return ConfigurationError(f"model={self._name}: {text}.")


def _zeros(spec: ArraySpec) -> Tensor:
    """A batch of one example, zeros or empty texts; dimensions that vary are 1."""
    shape, dtype = [1, *(each or 1 for each in spec.shape)], tf.as_dtype(spec.dtype)
    return tf.fill(shape, "") if dtype == tf.string else tf.zeros(shape, dtype)


def _from_float(value: Tensor, dtype: str) -> Tensor:
    """A value of an array in the type of its variable."""
    wanted = tf.as_dtype(dtype)
    return tf.cast(value if wanted.is_floating else tf.round(value), wanted)


def _by_name(variables: Sequence[Any]) -> dict[str, Any]:
    """The variables by their paths, which may be equal in models of their own classes."""
    found: dict[str, Any] = {}
    for variable in variables:
        name, number = variable.path, 1
        while name in found:
            name, number = f"{variable.path}_{number}", number + 1
        found[name] = variable
    return found
