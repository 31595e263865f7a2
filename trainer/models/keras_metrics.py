"""The metrics of a Keras model: those of `compile()` or of its own step, otherwise the accuracy of a classifier.

Those that keep the scores of all examples (`trainer.metrics`) are for evaluations alone.
"""

import contextlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.data.examples import Array
from trainer.errors import ConfigurationError
from trainer.models import ACCURACY, compiled, own_train_step
from trainer.tensorflow import tf
from trainer.tensorflow_types import Tensor

MOST_VALUES = 100
"""Of a metric, such as one with a value for each class."""


def in_training() -> contextlib.AbstractContextManager[None]:
    """Within it, the metrics that are for evaluations alone do nothing."""
    from trainer import metrics

    return metrics.paused()


@dataclass(frozen=True)
class KerasMetrics:
    """The metrics, whose variables exist."""

    name: str
    """That of the model, for errors."""
    model: Any = None
    accuracy: Any = None
    """The metric of a model that has none of its own."""
    variables: Sequence[Any] = ()
    initial: Sequence[Array] = ()
    """The values of the variables before the first batch."""
    only_evaluated: Collection[str] = ()
    """The names of those that a step of the training does not have."""

    @classmethod
    def build(cls, name: str, model: Any, inputs: Any, targets: Any, outputs: Any, weights: Any) -> "KerasMetrics":
        """Make the variables, with the outputs for a batch, which are None if the model has none."""
        import keras

        if own_train_step.is_own(model):
            if model._compile_metrics is not None and outputs is not None:
                model._compile_metrics.build(targets, outputs)
            if model.loss is not None:
                model.compute_loss(inputs, targets, outputs, weights)
            return cls._reset(name, model)
        has_own = model.compiled and model._compile_metrics is not None
        if not has_own and isinstance(outputs, tf.Tensor) and (not model.compiled or compiled.is_classifier(model)):
            accuracy = keras.metrics.SparseCategoricalAccuracy(ACCURACY)
            accuracy.update_state(targets, outputs)
            accuracy.reset_state()
            return cls(name, model, accuracy, accuracy.variables, [each.numpy() for each in accuracy.variables])
        if not model.compiled:
            return cls(name, model)
        model.compute_loss(inputs, targets, outputs, weights)
        model.compute_metrics(inputs, targets, outputs, weights)
        return cls._reset(name, model)

    @classmethod
    def _reset(cls, name: str, model: Any) -> "KerasMetrics":
        model.reset_metrics()
        with in_training():
            names = own_train_step.flat(model.get_metrics_result())
        only_evaluated = own_train_step.flat(model.get_metrics_result()).keys() - names.keys()
        initial = [each.numpy() for each in model.metrics_variables]
        return cls(name, model, None, model.metrics_variables, initial, only_evaluated)

    def update(
        self, inputs: Any, targets: Any, outputs: Any, weights: Tensor | None, given_weights: Tensor | None
    ) -> None:
        """Count a batch, in the present scope. Classes weigh in the loss and its metrics, but not in the accuracy."""
        if self.accuracy:
            counted = compiled.without_ignored(self.model, targets, given_weights)
            self.accuracy.update_state(targets, outputs, counted)
        elif self.model.compiled:
            self.model.compute_metrics(inputs, targets, outputs, weights)

    def read(self, scope: Any) -> list[Tensor]:
        """The state after what was called in a scope."""
        return [tf.convert_to_tensor(scope.get_current_value(each)) for each in self.variables]

    def measure(self, state: Sequence[Tensor]) -> dict[str, Tensor]:
        """The metrics by name; a metric with several values has a number for each.

        Raises:
            ConfigurationError: a metric has too many values.
        """
        import keras

        with keras.StatelessScope(list(zip(self.variables, state, strict=True))):
            if self.accuracy:
                results = {ACCURACY: self.accuracy.result()}
            else:
                results = self.model.get_metrics_result() if self.model.compiled else {}
            values = {
                name: tf.cast(value, tf.float32)
                for name, value in own_train_step.flat(results).items()
                if name != "loss"
            }
        found: dict[str, Tensor] = {}
        for name, value in values.items():
            size = math.prod(value.shape)
            if size > MOST_VALUES:
                raise ConfigurationError(
                    f"model={self.name}: the metric {name} has {size} values; average them, as with average='macro'."
                )
            elements = tf.unstack(tf.reshape(value, [size])) if value.shape.rank else []
            found |= {f"{name}_{index}": each for index, each in enumerate(elements)} or {name: value}
        return found
