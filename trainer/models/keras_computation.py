"""What a Keras model computes from its arrays, in a graph without variables: losses, gradients and outputs.

The arrays and, for dropout and the like, a random seed are inputs of each function. Keras's `StatelessScope` makes this
possible. Values that a model sets itself in training, such as the moving averages of batch normalization, are arrays
that are not trainable. The state of the metrics is another input.
"""

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.data.examples import Signature, named
from trainer.dynamic.by_id import rows_by_id
from trainer.models import compiled, gathers, own_train_step, ragged
from trainer.models.keras_arrays import KerasArrays
from trainer.models.keras_loader import error, inputs_of
from trainer.models.keras_metrics import KerasMetrics, in_training
from trainer.models.op_template import concrete
from trainer.tensorflow import tf
from trainer.tensorflow.names import scope_name
from trainer.tensorflow_types import Tensor

logger = logging.getLogger(__name__)

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


@dataclass(frozen=True)
class KerasComputation:
    """The computation of a model with data of one signature."""

    name: str
    """That of the model's file, for errors."""
    model: Any
    """Keras's."""
    signature: Signature
    class_weight: Mapping[int, float] | None
    """The weight in the loss of examples with each label."""
    metrics: KerasMetrics
    arrays: KerasArrays
    ends_in_softmax: bool
    """Whether a model that is not compiled gives probabilities."""
    batch_size: int
    """That of the batches with which the computation is looked at."""

    @property
    def gives_logits(self) -> bool:
        """Whether the outputs of a classifier are logits, and not probabilities."""
        return compiled.takes_logits(self.model) if self.model.compiled else not self.ends_in_softmax

    @property
    def has_own_step(self) -> bool:
        """Whether the model overrides `train_step`."""
        return own_train_step.is_own(self.model)

    def train(
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
        with in_training():
            if self.has_own_step:
                return self._train_by_own_step(given, batch, counts, seed)
            return self._train(given, batch, counts, seed, tables)

    def _train(
        self,
        given: Mapping[str, Tensor],
        batch: Sequence[Tensor],
        counts: Sequence[Tensor],
        seed: Tensor,
        tables: Collection[str],
    ) -> _Trained:
        """As `train`, by `compute_loss`."""
        trainable = list(given.items())[: self.arrays.trainable]
        with tf.GradientTape() as tape:
            tape.watch([value for _, value in trainable])
            with self.scope(given, counts, seed) as scope:
                _, loss = self._call(batch, training=True)
        found = [(name, op) for name in tables for op in gathers.find(given[name], [*given.values(), seed])]
        wanted = [value for name, value in trainable if name not in tables]
        rows = [op.outputs[0] for _, op in found]
        gradients = tape.gradient(loss, [*wanted, *rows], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        lookups = [
            (name, (op.inputs[1], op.outputs[0], tf.convert_to_tensor(gradient)))
            for (name, op), gradient in zip(found, gradients[len(wanted) :], strict=True)
        ]
        after = self.metrics.read(scope)
        return loss, gradients[: len(wanted)], lookups, self._read(scope), self.metrics.measure(after), after

    def _train_by_own_step(
        self, given: Mapping[str, Tensor], batch: Sequence[Tensor], counts: Sequence[Tensor], seed: Tensor
    ) -> _Trained:
        """As `train`, by the model's own `train_step`, which has no tables."""
        variables = list(self.arrays.variables.values())[: self.arrays.trainable]
        with self.scope(given, counts, seed) as scope, own_train_step.recorded(self.model, scope, variables) as found:
            logs = self.model.train_step(self._element(batch, training=True))
        if not found:
            raise ValueError("train_step gives its optimizer no gradients; take them by tf.GradientTape, by this name")
        updated, after = self._read(scope), self.metrics.read(scope)
        arrays = list(given.items())[: self.arrays.trainable]
        gradients = [
            tf.zeros_like(value) if id(variable) not in found else tf.cast(found[id(variable)], tf.float32)
            for variable, (_, value) in zip(variables, arrays, strict=True)
        ]
        loss, measured = own_train_step.split(logs)
        return loss, gradients, [], updated, measured, after

    def evaluate(self, batch: Sequence[Tensor], scope: Any) -> tuple[Any, Tensor]:
        """The outputs, if the model has any, and the loss, in this scope."""
        has_call = own_train_step.has_call(self.model)
        has_loss = not self.has_own_step or (has_call and self.model.loss is not None)
        if has_loss and not own_train_step.overrides(self.model, "test_step"):
            return self._call(batch, training=False)
        data = self._element(batch, training=False)
        outputs = self.model(unpack(self.model, self.signature, batch)[0], training=False) if has_call else {}
        return outputs, own_train_step.evaluate(self.model, scope, data, list(self.arrays.variables.values()))

    @contextlib.contextmanager
    def scope(self, given: Mapping[str, Tensor], counts: Sequence[Tensor], seed: Tensor) -> Iterator[Any]:
        """A scope in which the model computes with these values of its arrays, metrics and random seeds."""
        import keras

        variables = self.arrays.variables
        mapping = [(variables[name], _from_float(value, variables[name].dtype)) for name, value in given.items()]
        mapping += [(state, tf.cast(seed + index, state.dtype)) for index, state in enumerate(self.arrays.seeds)]
        mapping += zip(self.metrics.variables, counts, strict=True)
        constants = [(each, tf.constant(value)) for each, value in self.arrays.constants]

        class Scope(keras.StatelessScope):  # type: ignore[misc]
            def add_update(self, update: tuple[Any, Tensor]) -> None:
                """Assign a value, through which no gradient flows, as through a variable's."""
                variable, value = update
                super().add_update((variable, tf.stop_gradient(value)))

        with rows_by_id(), Scope([*mapping, *constants], collect_losses=True) as scope:
            yield scope
        changed = [each.path for each, value in constants if scope.get_current_value(each) is not value]
        if changed:
            raise error(self.name, f"the loss or a metric changes the variable {changed[0]}; let it be float32")
        trainable = list(self.arrays.variables.values())[: self.arrays.trainable]
        assigned = [each.path for each, value in mapping if scope.get_current_value(each) is not value]
        if wrong := {each.path for each in trainable}.intersection(assigned):
            raise error(
                self.name,
                f"a layer assigns its trainable weight {min(wrong)} in call(), but only the optimizer may change it; "
                "compute with another value, or let the weight have trainable=False",
            )

    def _read(self, scope: Any) -> dict[str, Tensor]:
        """The arrays after what was called in a scope."""
        return {
            name: tf.cast(scope.get_current_value(each), tf.float32) for name, each in self.arrays.variables.items()
        }

    def _call(self, batch: Sequence[Tensor], training: bool) -> tuple[Any, Tensor]:
        """The outputs and the loss, in the present scope."""
        import keras

        inputs, targets, given_weights = unpack(self.model, self.signature, batch)
        weights = self._weigh(targets, given_weights) if training and self.class_weight else given_weights
        outputs = self.model(inputs, training=training)
        if self.model.compiled:
            loss = self.model.compute_loss(inputs, targets, outputs, weights, training=training)
        else:
            own = keras.losses.SparseCategoricalCrossentropy(from_logits=self.gives_logits)
            loss = own(targets, outputs, weights) + sum(self.model.losses)
        self.metrics.update(inputs, targets, outputs, weights, given_weights)
        return outputs, tf.cast(loss, tf.float32)

    def _element(self, batch: Sequence[Tensor], training: bool) -> Any:
        """A batch as `train_step` and `test_step` get it."""
        return element(self.model, self.signature, batch, self._weigh if training and self.class_weight else None)

    def _weigh(self, targets: Any, weights: Tensor | None) -> Tensor:
        """The weights of the examples, float32 [batch], with those of their classes."""
        assert self.class_weight  # noqa: S101
        if not isinstance(targets, tf.Tensor):
            raise error(
                self.name, "class_weight is for a model with one output; let train_data() return weights instead"
            )
        return compiled.weigh(self.class_weight, targets, weights)

    def name_outputs(self, outputs: Any) -> dict[str, Tensor]:
        if not isinstance(outputs, tf.Tensor):
            return named(outputs, "output")
        if self.has_own_step:
            return {"outputs": outputs}
        if not self.metrics.accuracy and not compiled.is_classifier(self.model):
            return {"outputs": outputs}
        return {"probabilities": tf.nn.softmax(outputs) if self.gives_logits else outputs}

    def find_unused(self) -> set[str]:
        """The names of trainable arrays on which the loss does not depend; Keras does not update them at all."""
        if self.has_own_step:
            return set()
        names = list(self.arrays.variables)[: self.arrays.trainable]
        unused: set[str] = set()

        def call(values: Sequence[Tensor], batch: Sequence[Tensor]) -> None:
            given = dict(zip(self.arrays.variables, values, strict=True))
            with tf.GradientTape() as tape:
                tape.watch(values)
                with self.scope(given, [tf.constant(each) for each in self.metrics.initial], tf.zeros([2], tf.int32)):
                    _, loss = self._call(batch, training=True)
            found = tape.gradient(loss, values[: self.arrays.trainable])
            unused.update(name for name, gradient in zip(names, found, strict=True) if gradient is None)

        concrete(call, *self._specs())
        return unused

    def find_tables(self, least: int | None) -> set[str]:
        """The names of trainable arrays of at least so many rows of which a step reads only some; None finds none.

        Those of tables that grow are among them, or else the model cannot be trained.

        Raises:
            ConfigurationError: it cannot.
        """
        growing = self.arrays.growing
        if growing and self.has_own_step:
            name = next(iter(growing.values())).name
            raise error(
                self.name,
                f"the layer {name} is a DynamicEmbedding, and a model with its own train_step cannot "
                "have one; use Embedding with Hashing",
            )
        if self.has_own_step or (least is None and not growing):
            return set()
        large = [
            name
            for name, each in list(self.arrays.variables.items())[: self.arrays.trainable]
            if name in growing
            or (
                (least and len(each.shape) == 2 and each.shape[0] >= least)
                and each.dtype == "float32"
                and not each.constraint
            )
        ]
        found: set[str] = set()

        def call(values: Sequence[Tensor], batch: Sequence[Tensor], seed: Tensor) -> None:
            given = dict(zip(self.arrays.variables, values, strict=True))
            with self.scope(given, [tf.constant(each) for each in self.metrics.initial], seed):
                self._call(batch, training=True)
            found.update(name for name in large if gathers.find(given[name], [*values, seed]))

        if large:
            concrete(call, *self._specs(), tf.TensorSpec([2], tf.int32))
        trainable = list(self.arrays.variables)[: self.arrays.trainable]
        if frozen := [name for name in growing if name not in trainable]:
            raise error(self.name, f"the layer {growing[frozen[0]].name}, a DynamicEmbedding, must be trainable")
        if wrong := [name for name in growing if name not in found]:
            raise error(
                self.name,
                f"the ids of the layer {growing[wrong[0]].name}, a DynamicEmbedding, must follow from the inputs; "
                "let only the layer read its table",
            )
        return found

    def find_outer(self) -> dict[str, Any]:
        """The variables of numbers that the loss reads, and that the model does not have."""

        def call(values: Sequence[Tensor], batch: Sequence[Tensor], seed: Tensor) -> None:
            self.train(self.arrays.given(values), batch, [tf.constant(each) for each in self.metrics.initial], seed)

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
        values = [tf.TensorSpec(each.shape, tf.float32) for each in self.arrays.variables.values()]
        size = self.batch_size
        return values, [tf.TensorSpec([size, *each.shape], each.dtype) for each in self.signature.specs]


def _from_float(value: Tensor, dtype: str) -> Tensor:
    """A value of an array in the type of its variable."""
    wanted = tf.as_dtype(dtype)
    return tf.cast(value if wanted.is_floating else tf.round(value), wanted)


def unpack(model: Any, signature: Signature, batch: Sequence[Tensor]) -> tuple[Any, Any, Any]:
    """The inputs, the targets and the weights of a batch; None for what the data does not have."""
    inputs, targets, weights = signature.pack(batch)
    return ragged.restore(inputs, inputs_of(model)), targets if signature.has_targets else None, weights


def element(
    model: Any,
    signature: Signature,
    batch: Sequence[Tensor],
    weigh: Callable[[Any, Tensor | None], Tensor] | None = None,
) -> Any:
    """A batch as the element of a dataset for `fit`. `weigh` changes the weights of its examples."""
    inputs, targets, weights = signature.pack(batch)
    inputs = ragged.restore(inputs, inputs_of(model))
    if not signature.has_targets:
        return inputs if targets is None else (inputs,)
    weights = weigh(targets, weights) if weigh else weights
    return (inputs, targets) if weights is None else (inputs, targets, weights)


def ends_in_softmax(model: Any, inputs: Any) -> bool:
    """Whether the last op of a model, by whichever layer, is a softmax."""
    import keras

    def call(given: Any) -> Any:
        with keras.StatelessScope(collect_losses=True):
            return model(given, training=False)

    traced = concrete(call, inputs)
    if len(traced.outputs) != 1:
        return False
    op = traced.outputs[0].op
    while op.type in ("Identity", "Cast"):
        op = op.inputs[0].op
    return bool(op.type == "Softmax")
