"""The update of rows of a table by one op, for optimizers of Keras whose formula it has."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.kernels import library
from trainer.tensorflow import tf
from trainer.tensorflow_types import Operation, Tensor, Variable

Number = Tensor | float


@dataclass(frozen=True)
class RowUpdate:
    """The formula of an optimizer."""

    rule: str
    """Its name in row_ops.cc."""
    settings: Callable[[Number, Tensor], Sequence[Number]]
    """From the learning rate and the number of earlier updates, int64, to that rate and the settings of the rule."""
    weight_decay: float
    limit: float
    """The largest absolute value of a gradient."""

    def add(
        self,
        values: Variable,
        slots: Sequence[Variable],
        periods: Variable,
        period: Tensor,
        rows: Tensor,
        gradients: Tensor,
        rate: Number,
        count: Tensor,
        decays: bool,
    ) -> Operation:
        """Add the op that updates rows, and marks them.

        Args:
            values: The table, [n, dim].
            slots: The optimizer's slots in the order of Keras, each [n, dim].
            periods: The marks, int32 [n].
            period: The mark to set.
            rows: int64 [u], each once.
            gradients: Flat, [u * dim].
            rate: The learning rate.
            count: The number of earlier updates, int64.
            decays: Whether weight decay applies.
        """
        return library.load().trainer_update_rows(
            values=values.handle,
            states=[each.handle for each in slots],
            periods=periods.handle,
            period=period,
            rows=rows,
            gradients=gradients,
            settings=self._settings(rate, count, decays),
            rule=self.rule,
        )

    def add_dynamic(
        self, name: str, ids: Tensor, gradients: Tensor, rate: Number, count: Tensor, decays: bool
    ) -> Operation:
        """Add the op that updates rows of a table that grows, by their ids, int64 [u], each once; see `add`."""
        return library.load().trainer_update_dynamic_rows(
            shared_name=name,
            ids=ids,
            gradients=gradients,
            settings=self._settings(rate, count, decays),
            rule=self.rule,
        )

    def _settings(self, rate: Number, count: Tensor, decays: bool) -> Tensor:
        """What the rule needs, float32 [settings]."""
        own_rate, *more = self.settings(rate, count)
        decay = self.weight_decay * rate if decays else 0.0
        return tf.stack([tf.cast(each, tf.float32) for each in (own_rate, decay, self.limit, *more)])


def of(optimizer: Any) -> RowUpdate | None:
    """The update of rows as by a Keras optimizer; None if no op computes it, or the library is absent."""
    import keras

    if library.load() is None or optimizer.use_ema or optimizer.clipnorm:
        return None
    if not isinstance(optimizer._learning_rate, (keras.Variable, keras.optimizers.schedules.LearningRateSchedule)):
        return None  # a function, which no op calls
    found = _rule(optimizer, keras.optimizers)
    if not found:
        return None
    decay = 0.0 if optimizer.weight_decay is None else float(optimizer.weight_decay)
    limit = optimizer.clipvalue if optimizer.clipvalue and optimizer.clipvalue > 0 else math.inf
    return RowUpdate(*found, decay, limit)


def _rule(optimizer: Any, known: Any) -> tuple[str, Callable[[Number, Tensor], Sequence[Number]]] | None:
    kind = type(optimizer)
    if kind is known.SGD:
        if not optimizer.momentum:
            return "sgd", lambda rate, _: [rate]
        return "nesterov" if optimizer.nesterov else "momentum", lambda rate, _: [rate, optimizer.momentum]
    if kind is known.Adagrad:
        return "adagrad", lambda rate, _: [rate, optimizer.epsilon]
    if kind is known.RMSprop and not optimizer.centered and not optimizer.momentum:
        return "rmsprop", lambda rate, _: [rate, optimizer.rho, optimizer.epsilon]
    if kind in (known.Adam, known.AdamW):
        return "amsgrad" if optimizer.amsgrad else "adam", lambda rate, count: _adam(optimizer, rate, count)
    if kind is known.Ftrl and optimizer.learning_rate_power == -0.5:
        return "ftrl", lambda rate, _: [
            rate,
            2 * optimizer.l2_shrinkage_regularization_strength,
            optimizer.l1_regularization_strength,
            2 * optimizer.l2_regularization_strength + optimizer.beta / tf.cast(rate, tf.float32),
        ]
    return None


def _adam(optimizer: Any, rate: Number, count: Tensor) -> list[Number]:
    number = tf.cast(count + 1, tf.float32)
    first, second = (1 - beta**number for beta in (optimizer.beta_1, optimizer.beta_2))
    return [rate * tf.sqrt(second) / first, 1 - optimizer.beta_1, 1 - optimizer.beta_2, optimizer.epsilon]
