"""The optimizer of a compiled Keras model, on shards of the flat parameters.

An element-wise optimizer does to a vector what it does to the arrays in it. So Keras's own `stateless_apply` is traced
for a vector, and its ops run on the parameter server of each shard.
"""

import functools
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow.python.eager import context  # not public API; Keras's optimizers are built in eager mode

from trainer.errors import ConfigurationError
from trainer.graph.optimizer import Optimizer
from trainer.graph.parameters import Shard
from trainer.op_template import OpTemplate, trace
from trainer.tensorflow import tf
from trainer.tensorflow_types import Operation, Tensor

NOT_ON_SHARDS = {
    "clipnorm": "clips each variable by its own norm; use global_clipnorm or clipvalue",
    "use_ema": "averages the parameters; leave it out",
    "gradient_accumulation_steps": "accumulates gradients; use a larger batch_size",
}
"""Settings of Keras's optimizers that the trainer does not have."""


@dataclass(frozen=True)
class KerasOptimizer(Optimizer):
    """Adds the updates of a Keras optimizer. The optimizer settings of the run do not apply."""

    keras: Any = None
    """The optimizer of the compiled model."""

    @property
    def global_clipnorm(self) -> float | None:
        limit = self.keras.global_clipnorm
        return None if limit is None else float(limit)

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(self._initial_slots)

    @property
    def slot_values(self) -> Mapping[str, float]:
        return self._initial_slots

    @functools.cached_property
    def _initial_slots(self) -> dict[str, float]:
        """The names of the slots, and their initial values."""
        with context.eager_mode():
            slots = _slots_of(_build(self.keras, [np.zeros(1, np.float32)]))
            return {name: float(slot.numpy()[0]) for name, slot in slots.items()}

    def _update(self, shard: Shard, updates: Tensor, gradient: Tensor) -> Operation:
        template = self._template(int(shard.values.shape[0]))
        variables = [shard.values, *shard.slots]

        def update() -> Operation:
            with tf.control_dependencies([gradient]):
                before, count = [each.read_value() for each in variables], shard.updates.read_value()
            after = template.copy([*before, gradient, count], "optimizer")
            if (factor := self._factor(shard, updates, gradient)) is not None:
                after[0] = before[0] + factor * (after[0] - before[0])
            assigned = [each.assign(value, read_value=False) for each, value in zip(variables, after, strict=True)]
            return tf.group(*assigned)

        if not self.shared:
            return update()
        # Other replicas update the shard too: one at a time, or an update is lost.
        return tf.CriticalSection(shared_name=f"{shard.name}/update").execute(update)

    def _factor(self, shard: Shard, updates: Tensor, gradient: Tensor) -> Tensor | None:
        """What multiplies the update, in place of the learning rate; None if it is always 1."""
        stale = self.shared and self.settings.staleness_aware
        if not stale and self.scale is None:
            return None
        scale = tf.constant(1.0) if self.scale is None else self.scale_now
        return self._divide_by_staleness(scale, shard, updates, gradient)

    @functools.cache  # noqa: B019 - an optimizer lives as long as its graph
    def _template(self, size: int) -> OpTemplate:
        """The ops of an update of a vector of this size.

        Their inputs are the values, the slots, the gradient and the number of earlier updates; the outputs are the new
        values and slots.
        """
        with context.eager_mode():
            optimizer = _build(self.keras, [np.zeros(size, np.float32)])
            initial = [each.numpy() for each in optimizer.variables]
        slots = list(_slots_of(optimizer).values())

        def update(*inputs: Tensor) -> list[Tensor]:
            values, *given, gradient, count = inputs
            state = list(initial)
            positions = [_position(optimizer.variables, slot) for slot in slots]
            for position, slot in zip(positions, given, strict=True):
                state[position] = slot
            state[_position(optimizer.variables, optimizer.iterations)] = tf.cast(count, optimizer.iterations.dtype)
            new_values, state = optimizer.stateless_apply(state, [gradient], [values])
            return [*new_values, *(state[position] for position in positions)]

        vector = tf.TensorSpec([size], tf.float32)
        return trace(update, *[vector] * (len(slots) + 2), tf.TensorSpec([], tf.int64))


def check(optimizer: Any) -> None:
    """Check that an optimizer can update shards of flat parameters.

    Raises:
        ConfigurationError: it has a setting that the trainer does not have, or is not element-wise.
    """
    name = type(optimizer).__name__
    for setting, reason in NOT_ON_SHARDS.items():
        if getattr(optimizer, setting, None):
            raise ConfigurationError(f"optimizer={name}: {setting} {reason}.")
    if getattr(optimizer, "_exclude_from_weight_decay", None):
        raise ConfigurationError(f"optimizer={name}: exclude_from_weight_decay is by variable; leave it out.")
    random = np.random.default_rng(0)
    values, gradients = random.normal(size=(2, 3, 8)).astype(np.float32)
    with context.eager_mode():
        whole = _build(optimizer, list(values[:1].reshape(1, 8)))
        parts = _build(optimizer, [values[0, :2].reshape(2, 1), values[0, 2:].reshape(2, 3)])
        is_flat = all(each.shape == (8,) for each in _others(whole))
        for gradient in gradients if is_flat else ():
            whole.apply([tf.constant(gradient)])
            parts.apply([tf.constant(gradient[:2].reshape(2, 1)), tf.constant(gradient[2:].reshape(2, 3))])
        joined = np.concatenate([each.numpy().ravel() for each in parts._trainable_variables])
        if not is_flat or not np.allclose(joined, whole._trainable_variables[0].numpy(), rtol=1e-5, atol=1e-7):
            raise ConfigurationError(
                f"optimizer={name}: its updates depend on the shapes of the variables, but parameter servers hold flat "
                "vectors; use an element-wise optimizer, such as Adam, AdamW, SGD, RMSprop, Adagrad or Lion."
            )


def _build(optimizer: Any, values: Sequence[npt.NDArray[np.float32]]) -> Any:
    """A new optimizer of the same configuration, without global_clipnorm, for variables with these values."""
    import keras
    from keras.src.backend.tensorflow.optimizer import TFOptimizer
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    configuration = {**optimizer.get_config(), "global_clipnorm": None}
    built = type(optimizer).from_config(configuration)
    # Keras's methods for all backends. Those for TensorFlow need real variables, as they work with tf.distribute.
    for name, method in vars(BaseOptimizer).items():
        if name in vars(TFOptimizer) and callable(method) and name != "__init__":
            setattr(built, name, types.MethodType(method, built))
    built.build([keras.Variable(value, name=f"part_{index}") for index, value in enumerate(values)])
    return built


def _others(optimizer: Any) -> list[Any]:
    """The variables of an optimizer beside its iterations and its learning rate."""
    own = {id(optimizer.iterations), id(getattr(optimizer, "_learning_rate", None))}
    return [each for each in optimizer.variables if id(each) not in own]


def _slots_of(optimizer: Any) -> dict[str, Any]:
    """The slots of an optimizer of one variable, by name."""
    return {each.name.removeprefix("part_0_"): each for each in _others(optimizer)}


def _position(variables: Sequence[Any], variable: Any) -> int:
    return next(index for index, each in enumerate(variables) if each is variable)
