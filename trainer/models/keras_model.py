"""A Keras model as a model of this package: its arrays by name, and a step as plain ops.

Keras builds and traces the model in eager mode, as it always does. `keras_loader.py` calls the user's function,
`keras_arrays.py` has the variables, `keras_computation.py` what is traced, and `keras_metrics.py` the metrics.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optree

from trainer.data.examples import Array, ArraySpec, Signature
from trainer.models import (
    Gather,
    Growth,
    Parameter,
    Prediction,
    StepTensors,
    compiled,
    gathers,
    keras_arrays,
    keras_loader,
    own_train_step,
    towers,
)
from trainer.models.keras_arrays import KerasArrays
from trainer.models.keras_computation import KerasComputation, element, ends_in_softmax, unpack
from trainer.models.keras_metrics import KerasMetrics
from trainer.models.large_variables import LargeVariables
from trainer.models.op_template import OpTemplate, trace
from trainer.models.towers import Kind, Towers
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.private import eager_mode
from trainer.tensorflow_types import Tensor

if TYPE_CHECKING:
    from trainer.dynamic.layer import DynamicEmbedding


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
        towers: Callable[..., Any] | None = None,
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
            towers: The file's function that returns the towers of a model for retrieval.
        """
        self._towers_of = towers
        self.towers: Towers = {}
        """Those of a model for retrieval, after `parameters`."""
        self._has_callbacks = has_callbacks
        self._table_rows = table_rows
        self.fixed_batch: int | None = None
        self._class_weight = class_weight
        self._name, self._function, self._seed, self._weights = name, function, seed, weights
        self._model: Any = None
        self._signature: Signature
        self.arrays: KerasArrays
        self._computation: KerasComputation
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
        return self._computation.gives_logits

    @property
    def no_counts(self) -> Sequence[Array]:
        """The state of the metrics before the first batch."""
        return self._metrics.initial

    @property
    def only_evaluated(self) -> Collection[str]:
        """The names of the metrics that a step of the training does not have."""
        return self._metrics.only_evaluated

    @property
    def is_random(self) -> bool:
        return bool(self.arrays.seeds)

    @property
    def untrained_loss(self) -> float | None:
        return math.log(self._signature.classes) if self._signature.classes else None

    def input_shapes(self) -> Mapping[str, tuple[int | None, ...]] | None:
        """The shapes of batches that the model accepts, by the names of its inputs.

        None if the model has no `Input`, or needs the data's shape to be made.
        """
        if keras_loader.needs_data(self._function):
            return None
        self._make(None)
        return keras_loader.input_shapes(self._model)

    def input_specs(self) -> Mapping[str, ArraySpec] | None:
        """The specs of the inputs of one example by name, where `input_shapes` knows them."""
        if keras_loader.needs_data(self._function):
            return None
        self._make(None)
        return keras_loader.input_specs(self._model)

    def parameters(self, signature: Signature, first: Sequence[Array] = ()) -> dict[str, Parameter]:
        self._signature = signature
        self._make(signature)
        inputs = getattr(self._model, "inputs", None)  # a sequential model without Input gets them from the first call
        self.fixed_batch = inputs[0].shape[0] if inputs else None
        keras_loader.check_model(self._name, self._model, signature)
        with eager_mode():
            batch = self._first_batch(first)
            inputs, targets, weights = unpack(self._model, signature, batch)
            given = ", ".join(f"{name} {spec}" for name, spec in signature.inputs.items())
            with self._errors(f"the model does not accept batches of the data ({given})"), self._deferring():
                outputs = self._model(inputs) if own_train_step.has_call(self._model) else None
            keras_loader.check_outputs(self._name, self._model, signature, outputs)
            if self.has_own_step:
                with self._errors("train_step fails on the first batch of the data"), self._deferring():
                    own_train_step.build(self._model, element(self._model, signature, batch))
            if self._weights:
                self._fill_large()
                with self._errors(f"initial_weights={self._weights} does not fit the model"):
                    self._model.load_weights(self._weights)
            with self._errors("the loss or the metrics of compile() do not fit the data"):
                self._metrics = KerasMetrics.build(self._name, self._model, inputs, targets, outputs, weights)
            with self._errors("the model does not train on the data"):
                parameters = self._read_arrays(inputs)
        if self.has_own_step or own_train_step.overrides(self._model, "test_step"):
            self._try_prediction()
        if self._towers_of:
            with eager_mode():
                self.towers = towers.make(self._name, self._towers_of, self._model, signature)
        return parameters

    def _make(self, signature: Signature | None) -> None:
        """Call the user's function, unless that was done."""
        if self._model is None:
            with eager_mode(), self._deferring(), self._large.filled_when_read():
                self._model = keras_loader.make(self._name, self._function, self._seed, signature)

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
            held = {**self.arrays.variables, **self.arrays.outer}
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
        changes = [name for name in self.arrays.names if name not in tables]
        of_tables: list[str] = []

        def compute(
            values: Sequence[Tensor], batch: Sequence[Tensor], seed: Tensor, counts: Sequence[Tensor]
        ) -> list[Any]:
            given = self.arrays.given(values)
            before = counts or [tf.constant(each) for each in self.no_counts]
            loss, gradients, found, updated, measured, after = self._computation.train(
                given, batch, before, seed, tables
            )
            differences = [updated[name] - given[name] for name in [*given][self.arrays.trainable :]]
            differences += [tf.zeros(each.shape) for each in self.arrays.outer.values()]
            of_tables[:] = [name for name, _ in found]
            metrics.update(measured)
            dense = [tf.convert_to_tensor(each) for each in (*gradients, *differences)]
            lookups = [each for _, gather in found for each in gather]
            return [loss, *dense, *lookups, *measured.values(), *(after if counts else ())]

        seed = tf.zeros([2], tf.int32) if seed is None else seed
        values = [arrays[name] for name in self.arrays.names]
        loss, *others = self._add("step", compute, values, list(batch), seed, list(counts))
        dense, others = others[: len(changes)], others[len(changes) :]
        lookups, measured = others[: 3 * len(of_tables)], others[3 * len(of_tables) :]
        lookups_of: dict[str, list[Gather]] = {name: [] for name in tables}
        for index, name in enumerate(of_tables):
            ids, rows, gradient = lookups[3 * index : 3 * index + 3]
            lookups_of[name].append(Gather(gathers.source(ids), gathers.source(rows), gradient))
        by_name = dict(zip(metrics, measured, strict=False))  # the state of the metrics follows
        return StepTensors(loss, by_name, dict(zip(changes, dense, strict=True)), lookups_of, measured[len(metrics) :])

    def predict(self, arrays: Mapping[str, Tensor], batch: Sequence[Tensor], counts: Sequence[Tensor]) -> Prediction:
        names: list[str] = []

        def compute(values: Sequence[Tensor], batch: Sequence[Tensor], counts: Sequence[Tensor]) -> list[Tensor]:
            with self._computation.scope(self.arrays.given(values), counts, tf.zeros([2], tf.int32)) as scope:
                outputs, loss = self._computation.evaluate(batch, scope)
            by_name = self._computation.name_outputs(optree.tree_map(lambda each: tf.cast(each, tf.float32), outputs))
            names[:] = by_name
            return [*by_name.values(), loss, *self._metrics.read(scope)]

        values = [arrays[name] for name in self.arrays.names]
        tensors = self._add("prediction", compute, values, list(batch), list(counts))
        outputs, (loss, *after) = [_without_waiting(each) for each in tensors[: len(names)]], tensors[len(names) :]
        return Prediction(dict(zip(names, outputs, strict=True)), loss, after)

    def embed(self, kind: Kind, arrays: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> Tensor:
        """Add the ops of a tower to the default graph, and return its vectors, float32 [batch, dim].

        Args:
            kind: Which one.
            arrays: The model's arrays by name.
            inputs: Those of the tower, by name.
        """

        def compute(values: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
            counts = [tf.constant(each) for each in self.no_counts]
            with self._computation.scope(self.arrays.given(values), counts, tf.zeros([2], tf.int32)):
                vectors = self.towers[kind].call(dict(zip(self.towers[kind].inputs, inputs, strict=True)))
            return [tf.cast(vectors, tf.float32)]

        values = [arrays[name] for name in self.arrays.names]
        return self._add(f"{kind}_tower", compute, values, list(inputs.values()))[0]

    def measure(self, counts: Sequence[Tensor]) -> Mapping[str, Tensor]:
        names: list[str] = []

        def compute(counts: Sequence[Tensor]) -> list[Tensor]:
            measured = self._metrics.measure(counts)
            names[:] = measured
            return list(measured.values())

        measured = self._add("metrics", compute, list(counts), begins_with_arrays=False) if counts else []
        return dict(zip(names, measured, strict=True))

    @property
    def has_own_step(self) -> bool:
        """Whether the model overrides `train_step`."""
        return own_train_step.is_own(self._model)

    def save(self, folder: Path, arrays: Mapping[str, Array]) -> None:
        self.arrays.assign(arrays)
        keras_arrays.save(self._model, folder, self._name)

    def _read_arrays(self, inputs: Any) -> dict[str, Parameter]:
        self.arrays = arrays = KerasArrays(self._model, inputs, self._metrics.variables)
        self._computation = computation = KerasComputation(
            self._name,
            self._model,
            self._signature,
            self._class_weight,
            self._metrics,
            arrays,
            not self._model.compiled and ends_in_softmax(self._model, inputs),
            self.fixed_batch or 2,
        )
        unused = computation.find_unused() if self.optimizer and self.optimizer.weight_decay else set()
        arrays.tables = tables = computation.find_tables(self._table_rows)
        arrays.outer = computation.find_outer() if self._has_callbacks else {}
        decays = self.optimizer._use_weight_decay if self.optimizer else lambda variable: True
        draws = {name: self._large.draw_of(variable) for name, variable in arrays.variables.items() if name in tables}
        for name, variable in arrays.variables.items():
            if name not in tables:
                self._large.fill(variable)
        growths = {name: _growth(layer) for name, layer in arrays.growing.items()}
        if growths and self._weights:
            raise keras_loader.error(
                self._name, f"initial_weights={self._weights} does not give rows to a DynamicEmbedding; remove it"
            )
        return {
            name: Parameter(
                tuple(variable.shape),
                value=None if draws.get(name) or name in growths else variable.numpy().astype(np.float32),
                draw=None if name in growths else draws.get(name),
                trainable=position < arrays.trainable,
                decays=position >= arrays.trainable or (decays(variable) and name not in unused),
                constraint=variable.constraint if position < arrays.trainable else None,
                is_table=name in tables,
                growth=growths.get(name),
            )
            for position, (name, variable) in enumerate(arrays.variables.items())
        } | {
            name: Parameter(tuple(variable.shape), value=variable.numpy().astype(np.float32), trainable=False)
            for name, variable in arrays.outer.items()
        }

    def _add(
        self, what: str, function: Callable[..., Any], *inputs: Any, begins_with_arrays: bool = True
    ) -> list[Tensor]:
        """Trace a function of tensors and lists of tensors, the first of which may be the arrays, and add its ops."""
        given: Any = inputs
        specs = optree.tree_map(lambda each: tf.TensorSpec(each.shape, each.dtype), given)
        count, outer = len(self.arrays.variables), self.arrays.outer.values()
        places = [(each, count + index) for index, each in enumerate(outer)]
        with self._errors(f"the {what} cannot be built"):
            template = trace(function, *specs, variables=places if begins_with_arrays else ())
        self._templates.append(template)
        return template.copy(optree.tree_leaves(given), what)

    def _errors(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Convert an exception of the model's own code to a `ConfigurationError`."""
        return keras_loader.errors(self._name, what, self._model)


def _growth(layer: "DynamicEmbedding") -> Growth:
    initial = layer.initial
    return Growth(
        layer.admit_after,
        layer.expire_steps or layer.expire_seconds or 0,
        bool(layer.expire_seconds),
        (initial.kind, initial.first, initial.second),
        initial.seed,
    )


def _zeros(spec: ArraySpec, size: int) -> Tensor:
    """A batch of this size, zeros or empty texts; dimensions that vary are 1."""
    shape, dtype = [size, *(each or 1 for each in spec.shape)], tf.as_dtype(spec.dtype)
    return tf.fill(shape, "") if dtype == tf.string else tf.zeros(shape, dtype)


def _without_waiting(output: Tensor) -> Tensor:
    """An output of a traced function, before it waits for ops that have effects, such as a check of the targets."""
    waits = output.op.type == "Identity" and output.op.control_inputs
    return output.op.inputs[0] if waits else output
