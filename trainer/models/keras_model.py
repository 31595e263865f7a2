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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optree

from trainer.data.examples import Array, ArraySpec, Signature, named
from trainer.data.structures import missing_targets
from trainer.errors import ConfigurationError
from trainer.models import Gather, Parameter, Prediction, StepTensors, compiled, gathers, keras_limits, own_train_step
from trainer.models.keras_metrics import KerasMetrics
from trainer.models.large_variables import LargeVariables
from trainer.models.op_template import OpTemplate, concrete, trace
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.names import scope_name
from trainer.tensorflow.private import eager_mode
from trainer.tensorflow_types import Tensor
from trainer.text.reasons import reason

logger = logging.getLogger(__name__)

FILE = "model.keras"
WEIGHTS = "model.weights.h5"
"""What is written if Keras cannot write a model."""
_Trained = tuple[
    Tensor,
    Sequence[Tensor],
    Sequence[tuple[str, Sequence[Tensor]]],
    dict[str, Tensor],
    dict[str, Tensor],
    Sequence[Tensor],
]
MOST_OUTER_VALUES = 10_000
"""Of a variable that is no weight of the model, but that callbacks may set: each step reads it with the parameters."""
DATA_ARGUMENTS = ("input_shape", "classes")
"""The arguments of `model` that the data determines."""
SEED_STATE = "seed_generator_state"
"""The name of the state of each of Keras's random number generators."""


class KerasModel:
    """The Keras model that the function `model` of a model file returns."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        seed: int,
        weights: Path | None,
        class_weight: Mapping[int, float] | None = None,
        table_rows: int | None = None,
        has_callbacks: bool = False,
    ) -> None:
        """Take the function of a model file.

        Args:
            name: The file's name, for errors.
            function: Makes the model.
            seed: Determines the initial values.
            weights: A file of Keras's with other initial values.
            class_weight: The weight in the loss of examples with each label.
            table_rows: The rows from which on an array may be a table; None if none is.
            has_callbacks: Whether callbacks may set variables of the file that are no weights of the model.
        """
        self._has_callbacks = has_callbacks
        self._outer: dict[str, Any] = {}
        """TensorFlow's variables that the loss reads and that are no weights of the model, by the names of arrays."""
        self._table_rows = table_rows
        self.fixed_batch: int | None = None
        self._class_weight = class_weight
        self._name, self._function, self._seed, self._weights = name, function, seed, weights
        self._model: Any = None
        self._has_own_step = self._ends_in_softmax = False
        self._signature: Signature
        self._arrays: dict[str, Any] = {}
        """The variables of the trainer's arrays by name, the trainable ones first."""
        self._trainable = 0
        """The number of trainable arrays."""
        self._tables: set[str] = set()
        """The names of the arrays that may be tables."""
        self._seeds: list[Any] = []
        """The states of random number generators."""
        self._constants: list[tuple[Any, Array]] = []
        """Whole numbers, truth values and texts. They do not change."""
        self._metrics = KerasMetrics(name)
        self._large = LargeVariables()
        self._templates: list[OpTemplate] = []
        """They own the Python functions of the model (`tf.numpy_function`), so keep them."""

    @property
    def network(self) -> Any:
        """The Keras model, whose variables have values."""
        self._fill_large()
        return self._model

    @property
    def optimizer(self) -> Any:
        return self._model.optimizer if self._model.compiled else None

    @property
    def metrics(self) -> list[Any]:
        """Keras's metrics of the model, each by itself."""
        return [metric for each in self._model.metrics for metric in getattr(each, "metrics", [each])]

    @property
    def has_binary_loss(self) -> bool:
        """Whether the loss of compile() is a cross entropy of two classes by one output."""
        return compiled.has_binary_loss(self._model)

    @property
    def gives_logits(self) -> bool:
        """Whether the outputs of a classifier are logits, and not probabilities."""
        return compiled.takes_logits(self._model) if self._model.compiled else not self._ends_in_softmax

    @property
    def no_counts(self) -> Sequence[Array]:
        """The state of the metrics before the first batch."""
        return self._metrics.initial

    @property
    def is_random(self) -> bool:
        return bool(self._seeds)

    @property
    def untrained_loss(self) -> float | None:
        return math.log(self._signature.classes) if self._signature.classes else None

    def input_shapes(self) -> Mapping[str, tuple[int | None, ...]] | None:
        """The shapes of batches that the model accepts, by the names of its inputs.

        None if the model has no `Input`, or needs the data's shape to be made.
        """
        found = self._named_inputs()
        return None if found is None else {name: tuple(each.shape) for name, each in found.items()}

    def input_specs(self) -> Mapping[str, ArraySpec] | None:
        """The specs of the inputs of one example by name, where `input_shapes` knows them."""
        found = self._named_inputs()
        return (
            None
            if found is None
            else {name: ArraySpec(tuple(each.shape[1:]), each.dtype) for name, each in found.items()}
        )

    def _named_inputs(self) -> Mapping[str, Any] | None:
        import keras

        if any(each in inspect.signature(self._function).parameters for each in DATA_ARGUMENTS):
            return None
        self._make({})
        inputs = getattr(self._model, "inputs", None)
        if not inputs:
            return None
        given = None if isinstance(self._model, keras.Sequential) else self._model.input
        return dict(given) if isinstance(given, dict) else {each.name: each for each in inputs}

    def parameters(self, signature: Signature, first: Sequence[Array] = ()) -> dict[str, Parameter]:
        self._signature = signature
        self._make(self._arguments())
        inputs = getattr(self._model, "inputs", None)  # a sequential model without Input gets them from the first call
        self.fixed_batch = inputs[0].shape[0] if inputs else None
        self._has_own_step = own_train_step.is_own(self._model)
        if why_not := keras_limits.why_not(self._model):
            raise self._error(why_not)
        if not signature.has_targets and not self._takes_inputs_alone():
            raise self._error(missing_targets(signature))
        with eager_mode():
            batch = self._first_batch(first)
            inputs, targets, weights = self._unpack(batch)
            given = ", ".join(f"{name} {spec}" for name, spec in signature.inputs.items())
            with self._errors(f"the model does not accept batches of the data ({given})"), self._deferring():
                outputs = self._model(inputs) if own_train_step.has_call(self._model) else None
            self._check(outputs)
            if self._has_own_step:
                with self._errors("train_step fails on the first batch of the data"), self._deferring():
                    own_train_step.build(self._model, self._data(batch, training=True))
            self._ends_in_softmax = not self._model.compiled and self._find_softmax(inputs)
            if self._weights:
                self._fill_large()
                with self._errors(f"initial_weights={self._weights} does not fit the model"):
                    self._model.load_weights(self._weights)
            with self._errors("the loss or the metrics of compile() do not fit the data"):
                self._metrics = KerasMetrics.build(self._name, self._model, inputs, targets, outputs, weights)
            with self._errors("the model does not train on the data"):
                parameters = self._read_arrays(inputs)
        if self._has_own_step or own_train_step.overrides(self._model, "test_step"):
            self._try_prediction()
        return parameters

    def _make(self, arguments: Mapping[str, Any]) -> None:
        """Call the user's function, unless that was done."""
        import keras

        if self._model is not None:
            return
        with eager_mode(), self._errors("model() failed"), self._deferring(), self._large.filled_when_read():
            keras.utils.set_random_seed(self._seed % 2**32)
            self._model = self._function(**arguments)
        if not isinstance(self._model, keras.Model):
            raise self._error(f"model() returned {type(self._model).__name__}; return a keras.Model")

    def _takes_inputs_alone(self) -> bool:
        """Whether the model trains without targets: by its own step or loss, or by add_loss."""
        if self._has_own_step or own_train_step.overrides(self._model, "compute_loss"):
            return True
        return bool(self._model.compiled and self._model.loss is None)

    def _first_batch(self, first: Sequence[Array]) -> list[Tensor]:
        """The leaves of a batch to try the model with: these examples, again and again if it needs more, or zeros."""
        if not first:
            return [_zeros(spec, self.fixed_batch or 1) for spec in self._signature.specs]
        chosen = range(self.fixed_batch or len(first[0]))
        return [tf.convert_to_tensor(array.take(chosen, axis=0, mode="wrap")) for array in first]

    def _deferring(self) -> contextlib.AbstractContextManager[None]:
        """Within it, variables that may be tables take no memory."""
        return contextlib.nullcontext() if self._table_rows is None else self._large.found(self._table_rows)

    def _fill_large(self) -> None:
        """Give the variables their values that lack them."""
        with eager_mode():
            for each in self._model.variables:
                self._large.fill(each)

    def _try_prediction(self) -> None:
        """Raise an error now if there would be one at the first evaluation."""
        with tf.Graph().as_default():
            held = {**self._arrays, **self._outer}
            arrays = {name: tf1.placeholder(tf.float32, each.shape) for name, each in held.items()}
            batch = [tf1.placeholder(each.dtype, [self.fixed_batch, *each.shape]) for each in self._signature.specs]
            self.predict(arrays, batch, [tf1.placeholder(each.dtype, each.shape) for each in self.no_counts])

    def step(
        self,
        arrays: Mapping[str, Tensor],
        batch: Sequence[Tensor],
        seed: Tensor | None,
        tables: Collection[str] = (),
        counts: Sequence[Tensor] = (),
    ) -> StepTensors:
        metrics: dict[str, Tensor] = {}
        changes = [name for name in self._names if name not in tables]
        of_tables: list[str] = []

        def compute(
            values: Sequence[Tensor], batch: Sequence[Tensor], seed: Tensor, counts: Sequence[Tensor]
        ) -> list[Any]:
            given = self._given(values)
            before = counts or [tf.constant(each) for each in self.no_counts]
            train = self._train_by_own_step if self._has_own_step else self._train
            loss, gradients, found, updated, measured, after = train(given, batch, before, seed, tables)
            differences = [updated[name] - given[name] for name in list(self._arrays)[self._trainable :]]
            differences += [tf.zeros(each.shape) for each in self._outer.values()]
            of_tables[:] = [name for name, _ in found]
            metrics.update(measured)
            dense = [tf.convert_to_tensor(each) for each in (*gradients, *differences)]
            lookups = [each for _, gather in found for each in gather]
            return [loss, *dense, *lookups, *measured.values(), *(after if counts else ())]

        seed = tf.zeros([2], tf.int32) if seed is None else seed
        values = [arrays[name] for name in self._names]
        loss, *others = self._add("step", compute, values, list(batch), seed, list(counts))
        dense, others = others[: len(changes)], others[len(changes) :]
        lookups, measured = others[: 3 * len(of_tables)], others[3 * len(of_tables) :]
        lookups_of: dict[str, list[Gather]] = {name: [] for name in tables}
        for index, name in enumerate(of_tables):
            ids, rows, gradient = lookups[3 * index : 3 * index + 3]
            lookups_of[name].append(Gather(ids, gathers.source(rows), gradient))
        by_name = dict(zip(metrics, measured, strict=False))  # the state of the metrics follows
        return StepTensors(loss, by_name, dict(zip(changes, dense, strict=True)), lookups_of, measured[len(metrics) :])

    def predict(self, arrays: Mapping[str, Tensor], batch: Sequence[Tensor], counts: Sequence[Tensor]) -> Prediction:
        names: list[str] = []

        def compute(values: Sequence[Tensor], batch: Sequence[Tensor], counts: Sequence[Tensor]) -> list[Tensor]:
            with self._scope(self._given(values), counts, tf.zeros([2], tf.int32)) as scope:
                outputs, loss = self._evaluate(batch, scope)
            by_name = self._name_outputs(optree.tree_map(lambda each: tf.cast(each, tf.float32), outputs))
            names[:] = by_name
            return [*by_name.values(), loss, *self._metrics.read(scope)]

        values = [arrays[name] for name in self._names]
        tensors = self._add("prediction", compute, values, list(batch), list(counts))
        outputs, (loss, *after) = [_without_waiting(each) for each in tensors[: len(names)]], tensors[len(names) :]
        return Prediction(dict(zip(names, outputs, strict=True)), loss, after)

    def measure(self, counts: Sequence[Tensor]) -> Mapping[str, Tensor]:
        names: list[str] = []

        def compute(counts: Sequence[Tensor]) -> list[Tensor]:
            measured = self._metrics.measure(counts)
            names[:] = measured
            return list(measured.values())

        return (
            dict(zip(names, self._add("metrics", compute, list(counts), begins_with_arrays=False), strict=True))
            if counts
            else {}
        )

    @property
    def has_own_step(self) -> bool:
        """Whether the model overrides `train_step`."""
        return self._has_own_step

    def outer_changes(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """By how much variables that are no weights of the model differ from these values, by the names of arrays."""
        with eager_mode():
            held = {name: variable.numpy().astype(np.float32) for name, variable in self._outer.items()}
        return {name: each - values[name] for name, each in held.items() if not np.array_equal(each, values[name])}

    def dense_values(self) -> dict[str, Array]:
        """The values of the arrays that are no tables, float32, by name."""
        with eager_mode():
            dense = {name: each for name, each in self._arrays.items() if name not in self._tables} | self._outer
            return {name: variable.numpy().astype(np.float32) for name, variable in dense.items()}

    def assign(self, arrays: Mapping[str, Array]) -> None:
        """Give the Keras model these values."""
        with eager_mode():
            for name, variable in (self._arrays | self._outer).items():
                if name not in arrays:
                    continue
                value = arrays[name] if tf.as_dtype(variable.dtype).is_floating else arrays[name].round()
                variable.assign(value.astype(tf.as_dtype(variable.dtype).as_numpy_dtype))

    def save(self, folder: Path, arrays: Mapping[str, Array]) -> None:
        self.assign(arrays)
        with eager_mode():
            try:
                with self._model.distribute_strategy.scope():  # the user's own may have made the variables
                    if self.optimizer and not self.optimizer.built:  # Keras warns of one that it cannot restore
                        self.optimizer.build(self._model.trainable_variables)
                    self._model.save(folder / FILE)
            except Exception as error:  # a layer or a schedule of the user's own may lack get_config
                (folder / FILE).unlink(missing_ok=True)
                self._model.save_weights(folder / WEIGHTS)
                logger.warning(
                    f"{FILE} cannot be written, so the export has the SavedModel and {WEIGHTS}: "
                    f"{reason(error, self._name)}"
                )

    def _arguments(self) -> dict[str, Any]:
        known = dict(zip(DATA_ARGUMENTS, (self._signature.input_shape, self._signature.classes), strict=True))
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
        if self._has_own_step:
            return
        classes = self._signature.classes
        is_single = isinstance(outputs, tf.Tensor)
        if not self._model.compiled and not (is_single and self._signature.has_labels):
            raise self._error(
                "the data has no class labels, integers [n], or the model several outputs; compile() it with a loss"
            )
        classifies = classes and is_single and (not self._model.compiled or compiled.is_classifier(self._model))
        if classifies and (outputs.shape.rank != 2 or outputs.shape[1] < classes):
            raise self._error(
                f"the model's output has the shape {[None, *outputs.shape[1:]]}, but the data has {classes} classes; "
                f"let it have the shape [None, {classes}]"
            )

    def _read_arrays(self, inputs: Any) -> dict[str, Parameter]:
        from trainer.models.keras_private import global_seed_generator

        trainable, others = self._model.trainable_variables, self._model.non_trainable_variables
        own = {id(each) for each in self._metrics.variables}
        others = [each for each in others if id(each) not in own]
        of_keras = global_seed_generator()
        self._seeds = [*(each for each in others if each.name == SEED_STATE), of_keras.state]
        others = [each for each in others if each.name != SEED_STATE]
        changing = self._find_changing([each for each in others if not tf.as_dtype(each.dtype).is_floating], inputs)
        state = [each for each in others if tf.as_dtype(each.dtype).is_floating or id(each) in changing]
        carried = {id(each) for each in state}
        self._constants = [(each, each.numpy()) for each in others if id(each) not in carried]
        self._arrays, self._trainable = _by_name([*trainable, *state]), len(trainable)
        unused = self._find_unused() if self.optimizer and self.optimizer.weight_decay else set()
        self._tables = tables = self._find_tables()
        self._outer = self._find_outer() if self._has_callbacks else {}
        decays = self.optimizer._use_weight_decay if self.optimizer else lambda variable: True
        draws = {name: self._large.draw_of(variable) for name, variable in self._arrays.items() if name in tables}
        for name, variable in self._arrays.items():
            if name not in tables:
                self._large.fill(variable)
        return {
            name: Parameter(
                tuple(variable.shape),
                value=None if draws.get(name) else variable.numpy().astype(np.float32),
                draw=draws.get(name),
                trainable=position < self._trainable,
                decays=position >= self._trainable or (decays(variable) and name not in unused),
                constraint=variable.constraint if position < self._trainable else None,
                is_table=name in tables,
            )
            for position, (name, variable) in enumerate(self._arrays.items())
        } | {
            name: Parameter(tuple(variable.shape), value=variable.numpy().astype(np.float32), trainable=False)
            for name, variable in self._outer.items()
        }

    def _train(
        self,
        given: Mapping[str, Tensor],
        batch: Sequence[Tensor],
        counts: Sequence[Tensor],
        seed: Tensor,
        tables: Collection[str] = (),
    ) -> _Trained:
        """The loss, the gradients of the trainable arrays that are no tables, and more.

        Returns:
            The loss; the gradients; the lookups in tables by name, each as ids, rows and their gradients; the arrays
            after the call; the metrics by name; and their state.
        """
        trainable = list(given.items())[: self._trainable]
        with tf.GradientTape() as tape:
            tape.watch([value for _, value in trainable])
            with self._scope(given, counts, seed) as scope:
                _, loss = self._call(batch, training=True)
        found = [(name, op) for name in tables for op in gathers.find(given[name], [*given.values(), seed])]
        wanted = [value for name, value in trainable if name not in tables]
        rows = [op.outputs[0] for _, op in found]
        gradients = tape.gradient(loss, [*wanted, *rows], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        lookups = [
            (name, (op.inputs[1], op.outputs[0], tf.convert_to_tensor(gradient)))
            for (name, op), gradient in zip(found, gradients[len(wanted) :], strict=True)
        ]
        after = self._metrics.read(scope)
        return loss, gradients[: len(wanted)], lookups, self._read(scope), self._metrics.measure(after), after

    def _train_by_own_step(
        self,
        given: Mapping[str, Tensor],
        batch: Sequence[Tensor],
        counts: Sequence[Tensor],
        seed: Tensor,
        tables: Collection[str] = (),
    ) -> _Trained:
        """As `_train`, by the model's own `train_step`, which has no tables."""
        variables = list(self._arrays.values())[: self._trainable]
        with self._scope(given, counts, seed) as scope, own_train_step.recorded(self._model, scope, variables) as found:
            logs = self._model.train_step(self._data(batch, training=True))
        if not found:
            raise ValueError("train_step gives its optimizer no gradients; take them by tf.GradientTape, by this name")
        updated, after = self._read(scope), self._metrics.read(scope)
        arrays = list(given.items())[: self._trainable]
        gradients = [
            tf.zeros_like(value) if id(variable) not in found else tf.cast(found[id(variable)], tf.float32)
            for variable, (_, value) in zip(variables, arrays, strict=True)
        ]
        loss, measured = own_train_step.split(logs)
        return loss, gradients, [], updated, measured, after

    def _evaluate(self, batch: Sequence[Tensor], scope: Any) -> tuple[Any, Tensor]:
        """The outputs, if the model has any, and the loss, in this scope."""
        has_call = own_train_step.has_call(self._model)
        has_loss = not self._has_own_step or (has_call and self._model.loss is not None)
        if has_loss and not own_train_step.overrides(self._model, "test_step"):
            return self._call(batch, training=False)
        data = self._data(batch, training=False)
        outputs = self._model(self._unpack(batch)[0], training=False) if has_call else {}
        return outputs, own_train_step.evaluate(self._model, scope, data, list(self._arrays.values()))

    def _unpack(self, batch: Sequence[Tensor]) -> tuple[Any, Any, Any]:
        """The inputs, the targets and the weights of a batch; None for what the data does not have."""
        inputs, targets, weights = self._signature.pack(batch)
        return inputs, targets if self._signature.has_targets else None, weights

    def _data(self, batch: Sequence[Tensor], training: bool) -> Any:
        """A batch as `train_step` and `test_step` get it: the element of a dataset for `fit`."""
        inputs, targets, weights = self._signature.pack(batch)
        if not self._signature.has_targets:
            return inputs if targets is None else (inputs,)
        if training and self._class_weight:
            weights = self._weigh(targets, weights)
        return (inputs, targets) if weights is None else (inputs, targets, weights)

    @contextlib.contextmanager
    def _scope(self, given: Mapping[str, Tensor], counts: Sequence[Tensor], seed: Tensor) -> Iterator[Any]:
        """A scope in which the model computes with these values of its arrays, metrics and random seeds."""
        import keras

        mapping = [(self._arrays[name], _from_float(value, self._arrays[name].dtype)) for name, value in given.items()]
        mapping += [(state, tf.cast(seed + index, state.dtype)) for index, state in enumerate(self._seeds)]
        mapping += zip(self._metrics.variables, counts, strict=True)
        constants = [(each, tf.constant(value)) for each, value in self._constants]

        class Scope(keras.StatelessScope):  # type: ignore[misc]
            def add_update(self, update: tuple[Any, Tensor]) -> None:
                """Assign a value, through which no gradient flows, as through a variable's."""
                variable, value = update
                super().add_update((variable, tf.stop_gradient(value)))

        with Scope([*mapping, *constants], collect_losses=True) as scope:
            yield scope
        changed = [each.path for each, value in constants if scope.get_current_value(each) is not value]
        if changed:
            raise self._error(f"the loss or a metric changes the variable {changed[0]}; let it be float32")
        trainable = list(self._arrays.values())[: self._trainable]
        assigned = [each.path for each, value in mapping if scope.get_current_value(each) is not value]
        if wrong := {each.path for each in trainable}.intersection(assigned):
            raise self._error(
                f"a layer assigns its trainable weight {min(wrong)} in call(), but only the optimizer may change it; "
                "compute with another value, or let the weight have trainable=False"
            )

    def _read(self, scope: Any) -> dict[str, Tensor]:
        """The arrays after what was called in a scope."""
        return {name: tf.cast(scope.get_current_value(each), tf.float32) for name, each in self._arrays.items()}

    def _call(self, batch: Sequence[Tensor], training: bool) -> tuple[Any, Tensor]:
        """The outputs and the loss, in the present scope."""
        import keras

        inputs, targets, given_weights = self._unpack(batch)
        weights = self._weigh(targets, given_weights) if training and self._class_weight else given_weights
        outputs = self._model(inputs, training=training)
        if self._model.compiled:
            loss = self._model.compute_loss(inputs, targets, outputs, weights, training=training)
        else:
            own = keras.losses.SparseCategoricalCrossentropy(from_logits=self.gives_logits)
            loss = own(targets, outputs, weights) + sum(self._model.losses)
        self._metrics.update(inputs, targets, outputs, weights, given_weights)
        return outputs, tf.cast(loss, tf.float32)

    def _weigh(self, targets: Any, weights: Tensor | None) -> Tensor:
        """The weights of the examples, float32 [batch], with those of their classes."""
        assert self._class_weight  # noqa: S101
        if not isinstance(targets, tf.Tensor):
            raise self._error("class_weight is for a model with one output; let train_data() return weights instead")
        return compiled.weigh(self._class_weight, targets, weights)

    def _name_outputs(self, outputs: Any) -> dict[str, Tensor]:
        if not isinstance(outputs, tf.Tensor):
            return named(outputs, "output")
        if self._has_own_step:
            return {"outputs": outputs}
        if not self._metrics.accuracy and not compiled.is_classifier(self._model):
            return {"outputs": outputs}
        return {"probabilities": tf.nn.softmax(outputs) if self.gives_logits else outputs}

    def _find_softmax(self, inputs: Any) -> bool:
        """Whether the last op of the model, by whichever layer, is a softmax."""
        import keras

        def call(given: Any) -> Any:
            with keras.StatelessScope(collect_losses=True):
                return self._model(given, training=False)

        traced = concrete(call, inputs)
        if len(traced.outputs) != 1:
            return False
        op = traced.outputs[0].op
        while op.type in ("Identity", "Cast"):
            op = op.inputs[0].op
        return bool(op.type == "Softmax")

    def _find_unused(self) -> set[str]:
        """The names of trainable arrays on which the loss does not depend; Keras does not update them at all."""
        if self._has_own_step:
            return set()
        names = list(self._arrays)[: self._trainable]
        unused: set[str] = set()

        def call(values: Sequence[Tensor], batch: Sequence[Tensor]) -> None:
            given = dict(zip(self._arrays, values, strict=True))
            with tf.GradientTape() as tape:
                tape.watch(values)
                with self._scope(given, [tf.constant(each) for each in self.no_counts], tf.zeros([2], tf.int32)):
                    _, loss = self._call(batch, training=True)
            found = tape.gradient(loss, values[: self._trainable])
            unused.update(name for name, gradient in zip(names, found, strict=True) if gradient is None)

        concrete(call, *self._specs())
        return unused

    def _find_tables(self) -> set[str]:
        """The names of large trainable arrays of which a step reads only some rows."""
        if self._has_own_step or self._table_rows is None:
            return set()
        least = self._table_rows
        large = [
            name
            for name, each in list(self._arrays.items())[: self._trainable]
            if len(each.shape) == 2 and each.shape[0] >= least and each.dtype == "float32" and not each.constraint
        ]
        found: set[str] = set()

        def call(values: Sequence[Tensor], batch: Sequence[Tensor], seed: Tensor) -> None:
            given = dict(zip(self._arrays, values, strict=True))
            with self._scope(given, [tf.constant(each) for each in self.no_counts], seed):
                self._call(batch, training=True)
            found.update(name for name in large if gathers.find(given[name], [*values, seed]))

        if large:
            concrete(call, *self._specs(), tf.TensorSpec([2], tf.int32))
        return found

    @property
    def _names(self) -> list[str]:
        """The names of all arrays."""
        return [*self._arrays, *self._outer]

    def _given(self, values: Sequence[Tensor]) -> dict[str, Tensor]:
        """The values of the model's own arrays by name, from those of all arrays."""
        return dict(zip(self._arrays, values, strict=False))

    def _find_outer(self) -> dict[str, Any]:
        """The variables of numbers that the loss reads, and that the model does not have."""

        def call(values: Sequence[Tensor], batch: Sequence[Tensor], seed: Tensor) -> None:
            train = self._train_by_own_step if self._has_own_step else self._train
            train(self._given(values), batch, [tf.constant(each) for each in self.no_counts], seed)

        traced = concrete(call, *self._specs(), tf.TensorSpec([2], tf.int32))
        found: dict[str, Any] = {}
        for variable in traced.graph.variables:
            is_number, name = variable.dtype.is_floating or variable.dtype.is_integer, variable.name.partition(":")[0]
            size = variable.shape.num_elements()
            if is_number and size > MOST_OUTER_VALUES:
                logger.warning(
                    f"the step reads {name}, a variable of {size:,} values: what a callback sets in it has no effect; "
                    f"up to {MOST_OUTER_VALUES:,} values are followed"
                )
            elif is_number:
                found[scope_name(f"outer_{len(found)}/{name}")] = variable
        return found

    def _specs(self) -> tuple[list[Any], list[Any]]:
        """The specs of the arrays and of a batch."""
        values = [tf.TensorSpec(each.shape, tf.float32) for each in self._arrays.values()]
        size = self.fixed_batch or 2
        return values, [tf.TensorSpec([size, *each.shape], each.dtype) for each in self._signature.specs]

    def _find_changing(self, variables: Sequence[Any], inputs: Any) -> set[int]:
        """The ids of those of these variables that the model sets in training."""
        import keras

        found: set[int] = set()

        def call() -> None:
            given = [(each, tf.convert_to_tensor(each.value)) for each in variables]
            with keras.StatelessScope(given, collect_losses=True) as scope:
                self._model(inputs, training=True)
            found.update(id(each) for each, value in given if scope.get_current_value(each) is not value)

        if variables and own_train_step.has_call(self._model):
            concrete(call)
        return found

    def _add(
        self, what: str, function: Callable[..., Any], *inputs: Any, begins_with_arrays: bool = True
    ) -> list[Tensor]:
        """Trace a function of tensors and lists of tensors, the first of which may be the arrays, and add its ops."""
        given: Any = inputs
        specs = optree.tree_map(lambda each: tf.TensorSpec(each.shape, each.dtype), given)
        places = [(each, len(self._arrays) + index) for index, each in enumerate(self._outer.values())]
        with self._errors(f"the {what} cannot be built"):
            template = trace(function, *specs, variables=places if begins_with_arrays else ())
        self._templates.append(template)
        return template.copy(optree.tree_leaves(given), what)

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Convert an exception of the model's own code to a `ConfigurationError`."""
        try:
            yield
        except ConfigurationError:
            raise
        except (Exception, SystemExit) as error:
            eager = self._model is not None and getattr(self._model, "run_eagerly", False)
            remedy = "; run_eagerly has no effect here: the step is a graph, so use keras.ops" if eager else ""
            if "unknown rank" in str(error):
                remedy += (
                    "; give what tf.py_function or tf.numpy_function returns a shape, by tf.ensure_shape(result, [])"
                )
            raise self._error(f"{what}: {reason(error, self._name)}{remedy}") from error

    def _error(self, text: str) -> ConfigurationError:
        return ConfigurationError(f"model={self._name}: {text}.")


def _zeros(spec: ArraySpec, size: int) -> Tensor:
    """A batch of this size, zeros or empty texts; dimensions that vary are 1."""
    shape, dtype = [size, *(each or 1 for each in spec.shape)], tf.as_dtype(spec.dtype)
    return tf.fill(shape, "") if dtype == tf.string else tf.zeros(shape, dtype)


def _without_waiting(output: Tensor) -> Tensor:
    """An output of a traced function, before it waits for ops that have effects, such as a check of the targets."""
    waits = output.op.type == "Identity" and output.op.control_inputs
    return output.op.inputs[0] if waits else output


def _from_float(value: Tensor, dtype: str) -> Tensor:
    """A value of an array in the type of its variable."""
    wanted = tf.as_dtype(dtype)
    return tf.cast(value if wanted.is_floating else tf.round(value), wanted)


def _by_name(variables: Sequence[Any]) -> dict[str, Any]:
    """The variables by their paths, which may be equal in models of their own classes."""
    found: dict[str, Any] = {}
    for variable in variables:
        path = scope_name(variable.path)
        name, number = path, 1
        while name in found:
            name, number = f"{path}_{number}", number + 1
        found[name] = variable
    return found
