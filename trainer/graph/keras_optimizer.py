"""The optimizer of a compiled Keras model, on shards of the flat parameters.

One op of TensorFlow updates a shard where it computes the same (`trainer.graph.fused_update`). Otherwise Keras's own
`stateless_apply` is traced, and its ops run on the parameter server of each shard. An element-wise optimizer does to a
vector what it does to the arrays in it, so it is traced for the vector. Others, such as those that compute the norm of
each variable, are traced for the arrays of the shard, none of which is split then.
"""

import functools
import math
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.errors import ConfigurationError
from trainer.graph import fused_update
from trainer.graph.optimizer import Optimizer
from trainer.kernels import row_update
from trainer.kernels.row_update import RowUpdate
from trainer.models.op_template import OpTemplate, trace
from trainer.shards.parameters import Rows, Shard, ShardArray, join_arrays, split_arrays
from trainer.shards.slots import AVERAGE
from trainer.shards.tables import TablePart, join_rows
from trainer.tensorflow import tf
from trainer.tensorflow.private import eager_mode
from trainer.tensorflow_types import Operation, Tensor
from trainer.text import truncate

_SLOT_NAME = re.compile(r"part_(\d+)_(.*)")
KNOWN = "such as Adam, AdamW, SGD, RMSprop, Adagrad, Lion or Lamb"
SCALES = tuple(10.0**power for power in range(-6, 13, 3))
"""Factors of the gradients with which an optimizer is tried. A threshold between two of them binds at the larger."""

VARYING = -1
"""The size of an array that consists of the rows of a step."""


@dataclass(frozen=True)
class KerasOptimizer(Optimizer):
    """Adds the updates of a Keras optimizer. The optimizer settings of the run do not apply."""

    keras: Any = None
    """The optimizer of the compiled model."""

    @property
    def global_clipnorm(self) -> float | None:
        limit = self.keras.global_clipnorm
        return float(limit) if limit and limit > 0 else None  # as Keras reads it

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(self._initial_slots)

    @property
    def slot_values(self) -> Mapping[str, float]:
        return self._initial_slots

    @functools.cached_property
    def _initial_slots(self) -> dict[str, float]:
        """The names of the slots, and their initial values."""
        with eager_mode():
            slots = _slots_of(_build(self.keras, [np.zeros(1, np.float32)]))
            return {name: float(slot.numpy()[0]) for name, (slot,) in slots.items()}

    def _update(
        self, shard: Shard, updates: Tensor, gradient: Tensor, rows: Rows, of_rows: Sequence[Tensor]
    ) -> Operation:
        """As Keras's optimizer updates its variables.

        Rows of tables are updated as an array that consists of them alone, so the moments of other rows stay as they
        are, as in "lazy" optimizers.
        """
        factor = self._factor(shard, updates, gradient)
        factors = [] if factor is None else [factor]
        ready = [gradient, *of_rows]

        def update() -> Operation:
            with tf.control_dependencies(ready):
                count = shard.updates.read_value()
            tables = [*zip(shard.tables, rows, of_rows, strict=False)]
            if by_row := self.row_update:
                done = self._update_vector(shard, gradient, count, factors, ready)
                rate = math.prod([self._rate(count), *factors])
                done += [table.update(by_row, own, change, rate, count) for table, own, change in tables]
                return tf.group(*done)
            fixed = [(table, own, change) for table, own, change in tables if isinstance(table, TablePart)]
            with tf.control_dependencies(ready):
                before = [[join_rows(each, own) for each in table.variables] for table, own, _ in fixed]
            done = self._update_vector(shard, gradient, count, factors, ready)
            for (table, own, change), read in zip(fixed, before, strict=True):
                for_rows = self._template((ShardArray((VARYING,), table.decays),), bool(factors))
                after = for_rows.copy([*read, change, count, *factors], "optimizer")
                changed = [tf.reshape(value, [-1, table.dim]) for value in after]
                with tf.control_dependencies([table.mark(own)]):  # first, for an update that is interrupted
                    done += [
                        tf.raw_ops.ResourceScatterUpdate(resource=each.handle, indices=own, updates=value)
                        for each, value in zip(table.variables, changed, strict=True)
                    ]
            return tf.group(*done)

        # The gradient of a loss that is linear in the parameters does not depend on the update before; its count does.
        with tf.control_dependencies([updates]):
            if self._fused(shard) and not shard.tables:
                return update()
            return self._alone(shard, update)

    def _update_vector(
        self, shard: Shard, gradient: Tensor, count: Tensor, factors: Sequence[Tensor], ready: Sequence[Tensor]
    ) -> list[Operation]:
        """Add the ops that update the values and the slots of a shard, which are read when all of `ready` are there."""
        if fused := self._fused(shard):
            rate = math.prod([self._rate(count), *factors])
            return [fused(shard.values, shard.slots, gradient, rate, count + 1)]
        variables = [shard.values, *shard.slots]
        with tf.control_dependencies(ready):
            before = [each.read_value() for each in variables]
        template = self._template(shard.arrays or (ShardArray((int(shard.values.shape[0]),)),), bool(factors))
        after = template.copy([*before, gradient, count, *factors], "optimizer")
        return [each.assign(value, read_value=False) for each, value in zip(variables, after, strict=True)]

    def _fused(self, shard: Shard) -> fused_update.Update | None:
        """The update of the shard by one op; None if none computes it."""
        if shard.is_constrained or self.keras.weight_decay or self._schedule is None:
            return None
        return fused_update.of(self.keras)

    @functools.cached_property
    def row_update(self) -> RowUpdate | None:
        """The update of rows of tables by one op; None if none computes it."""
        return row_update.of(self.keras)

    @functools.cached_property
    def _schedule(self) -> float | OpTemplate | None:
        """The learning rate, or the ops of its schedule, from the number of earlier updates; None if neither."""
        import keras

        given = self.keras._learning_rate
        if isinstance(given, keras.optimizers.schedules.LearningRateSchedule):
            return trace(lambda count: [tf.cast(given(count), tf.float32)], tf.TensorSpec([], tf.int64))
        with eager_mode():
            return float(given.numpy()) if isinstance(given, keras.Variable) else None

    def _rate(self, count: Tensor) -> Tensor | float:
        """The learning rate after this number of updates, of an optimizer that has a constant one or a schedule."""
        rate = self._schedule
        return rate.copy([count], "schedule")[0] if isinstance(rate, OpTemplate) else rate

    def _factor(self, shard: Shard, updates: Tensor, gradient: Tensor) -> Tensor | None:
        """What multiplies the learning rate; None if it is always 1."""
        stale = self.shared and self.settings.staleness_aware
        if not stale and self.scale is None:
            return None
        scale = tf.constant(1.0) if self.scale is None else self.scale_after(gradient)
        return self._divide_by_staleness(scale, shard, updates, gradient)

    @functools.cache  # noqa: B019 - an optimizer lives as long as its graph
    def _template(self, arrays: tuple[ShardArray, ...], has_factor: bool) -> OpTemplate:
        """The ops of an update of a vector that consists of these arrays.

        Their inputs are the values, the slots, the gradient, the number of earlier updates and, if it has one, the
        factor of the learning rate; the outputs are the new values and slots.
        """
        with eager_mode():
            optimizer = _build(self.keras, [np.zeros(np.abs(each.shape), np.float32) for each in arrays])
            initial = [each.numpy() for each in optimizer.variables]
        of_variable = {id(each): array for each, array in zip(optimizer._trainable_variables, arrays, strict=True)}
        for variable, array in zip(optimizer._trainable_variables, arrays, strict=True):
            variable.constraint = array.constraint
        optimizer._use_weight_decay = lambda variable: of_variable[id(variable)].decays
        slots, rate = _slots_of(optimizer), optimizer._get_current_learning_rate
        for variables in ([*optimizer._trainable_variables], *slots.values()):
            for variable, array in zip(variables, arrays, strict=True):
                variable._shape = tuple(None if size == VARYING else size for size in array.shape)
        positions = {name: [_position(optimizer.variables, each) for each in slot] for name, slot in slots.items()}

        def update(*inputs: Tensor) -> list[Tensor]:
            (*vectors, count), factors = inputs[: len(positions) + 3], inputs[len(positions) + 3 :]
            optimizer._get_current_learning_rate = lambda: math.prod([rate(), *factors])
            values, *given, gradients = (split_arrays(each, arrays) for each in vectors)
            state = list(initial)
            for places, pieces in zip(positions.values(), given, strict=True):
                for place, piece in zip(places, pieces, strict=True):
                    state[place] = piece
            state[_position(optimizer.variables, optimizer.iterations)] = tf.cast(count, optimizer.iterations.dtype)
            new_values, state = optimizer.stateless_apply(state, gradients, values)
            if frequency := self.keras.use_ema and self.keras.ema_overwrite_frequency:
                is_due = tf.equal((count + 1) % frequency, 0)
                averages = [state[place] for place in positions[AVERAGE]]
                new_values = [tf.where(is_due, *each) for each in zip(averages, new_values, strict=True)]
            slots = [join_arrays([state[place] for place in places]) for places in positions.values()]
            return [join_arrays(new_values), *slots]

        size = sum(math.prod(each.shape) for each in arrays)
        vector = tf.TensorSpec([None if size == VARYING else size], tf.float32)
        scalars = [tf.TensorSpec([], tf.int64), *([tf.TensorSpec([], tf.float32)] if has_factor else [])]
        return trace(update, *[vector] * (len(positions) + 2), *scalars)


def updates_rows(optimizer: Any) -> bool:
    """Whether an optimizer can update rows of an array, without the others."""
    return optimizer is not None and not optimizer.use_ema and is_element_wise(optimizer)


def is_element_wise(optimizer: Any) -> bool:
    """Whether an optimizer does to a vector what it does to the arrays in it.

    Raises:
        ConfigurationError: the optimizer cannot update parameters on parameter servers.
    """
    name = type(optimizer).__name__
    if optimizer.gradient_accumulation_steps:
        raise ConfigurationError(
            f"optimizer={name}: gradient_accumulation_steps accumulates gradients; use a larger batch_size."
        )
    values = np.random.default_rng(0).normal(size=8).astype(np.float32)
    with eager_mode():
        try:
            whole, parts = _build(optimizer, [values]), _build(optimizer, _pieces(values))
        except TypeError as error:
            raise ConfigurationError(
                f"optimizer={name}: a copy for the parameter servers cannot be made of its configuration "
                f"({truncate(str(error), 200)}); use another one, {KNOWN}."
            ) from None
        shapes = [[each.shape for each in slot] for slot in _slots_of(parts).values()]
        if any(each != [piece.shape for piece in _pieces(values)] for each in shapes):
            raise ConfigurationError(
                f"optimizer={name}: its state does not have the shapes of the variables, as the flat vectors on "
                f"parameter servers need it; use another one, {KNOWN}."
            )
        if any(len(set(slot[0].numpy().ravel())) > 1 for slot in _slots_of(whole).values()):
            raise ConfigurationError(
                f"optimizer={name}: its state begins with the values of the variables; use another one, {KNOWN}."
            )
        return not clips_each_array(optimizer) and all(_is_element_wise_at(scale, optimizer) for scale in SCALES)


def clips_each_array(optimizer: Any) -> bool:
    """Whether an optimizer clips the norm of the gradient of each array. Only gradients above the limit show it."""
    return bool(optimizer.clipnorm and optimizer.clipnorm > 0)


def _is_element_wise_at(scale: float, optimizer: Any) -> bool:
    """Whether an optimizer updates a vector as the arrays in it, with gradients of this size."""
    values, *gradients = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    values = values * np.float32(min(1.0, scale))  # beside which the change is not lost in the rounding
    whole, parts = _build(optimizer, [values]), _build(optimizer, _pieces(values))
    for gradient in gradients:
        scaled = gradient * np.float32(scale)
        whole.apply([tf.constant(scaled)])
        parts.apply([tf.constant(each) for each in _pieces(scaled)])
    joined = np.concatenate([each.numpy().ravel() for each in parts._trainable_variables])
    expected = whole._trainable_variables[0].numpy()
    tolerance = 1e-6 * float(np.abs(expected).max())
    return np.allclose(joined, expected, rtol=1e-5, atol=tolerance, equal_nan=True)


def _pieces(vector: npt.NDArray[np.float32]) -> Sequence[npt.NDArray[np.float32]]:
    """Eight numbers as three arrays."""
    return vector[:2].reshape(2, 1), vector[2:4], vector[4:].reshape(2, 2)


def _build(optimizer: Any, values: Sequence[npt.NDArray[np.float32]]) -> Any:
    """A new optimizer for variables with these values, and with the same configuration.

    It leaves out what other functions add: global_clipnorm, and ema_overwrite_frequency, which Keras cannot trace; and
    loss_scale_factor, as the loss is not scaled.
    """
    import keras

    from trainer.models.keras_private import BaseOptimizer, TFOptimizer

    others = {"global_clipnorm": None, "ema_overwrite_frequency": None, "loss_scale_factor": None}
    configuration = {**_configuration(optimizer), **others}
    built = type(optimizer).from_config(configuration)
    # Keras's methods for all backends. Those for TensorFlow need real variables, as they work with tf.distribute.
    for name, method in vars(BaseOptimizer).items():
        if name in vars(TFOptimizer) and callable(method) and name != "__init__":
            setattr(built, name, types.MethodType(method, built))
    built.build([keras.Variable(value, name=f"part_{index}") for index, value in enumerate(values)])
    return built


def _configuration(optimizer: Any) -> dict[str, Any]:
    """The configuration of an optimizer, with the user's own schedule or function, which need not be serializable."""
    import keras

    schedule = getattr(optimizer, "_learning_rate", None)
    if schedule is None or isinstance(schedule, keras.Variable):
        return dict(optimizer.get_config())
    optimizer._learning_rate = keras.Variable(0.0)
    try:
        return {**optimizer.get_config(), "learning_rate": schedule}
    finally:
        optimizer._learning_rate = schedule


def _others(optimizer: Any) -> list[Any]:
    """The variables of an optimizer beside its iterations and its learning rate."""
    own = {id(optimizer.iterations), id(getattr(optimizer, "_learning_rate", None))}
    return [each for each in optimizer.variables if id(each) not in own]


def _slots_of(optimizer: Any) -> dict[str, list[Any]]:
    """The state of an optimizer by name, each with its variables in the order of the variables that it updates."""
    found: dict[str, dict[int, Any]] = {}
    for each in _others(optimizer):
        match = _SLOT_NAME.fullmatch(each.name)
        name, position = (match[2], int(match[1])) if match else (each.name, 0)
        found.setdefault(name, {})[position] = each
    return {name: [by_position[number] for number in sorted(by_position)] for name, by_position in found.items()}


def _position(variables: Sequence[Any], variable: Any) -> int:
    return next(index for index, each in enumerate(variables) if each is variable)
