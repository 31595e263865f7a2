"""The own `train_step` of a Keras model, traced without its updates: the optimizer keeps the gradients that it gets."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import optree

from trainer.tensorflow import tf
from trainer.tensorflow_types import Tensor


def overrides(model: Any, method: str) -> bool:
    """Whether the model has its own form of a method of `keras.Model`."""
    import keras

    return getattr(type(model), method) is not getattr(keras.Model, method)


def is_own(model: Any) -> bool:
    """Whether the model overrides `train_step`."""
    return overrides(model, "train_step")


def has_call(model: Any) -> bool:
    """Whether the model gives outputs."""
    return overrides(model, "call")


def build(model: Any, data: Any) -> None:
    """Build the layers that only `train_step` calls, by tracing it as `fit` does: it runs and updates nothing."""
    if all(layer.built for layer in model._flatten_layers(include_self=False)):
        return
    model.optimizer.apply = lambda *arguments, **named: None  # it would make variables that nothing uses
    try:
        tf.function(model.train_step, autograph=False).get_concrete_function(data)
    finally:
        del model.optimizer.apply


def evaluate(model: Any, scope: Any, data: Any, variables: Sequence[Any]) -> Tensor:
    """The loss on a batch, in this scope: of the own `test_step`, otherwise of `train_step`."""
    if overrides(model, "test_step"):
        logs = model.test_step(data)
    else:
        with recorded(model, scope, variables):
            logs = model.train_step(data)
    loss, others = split(logs)
    if overrides(model, "test_step") and (more := others.keys() - flat(model.get_metrics_result()).keys()):
        raise ValueError(f"test_step returns {min(more)}, which no metric of the model gives; add a keras.metrics.Mean")
    return loss


def flat(logs: Mapping[str, Any]) -> dict[str, Any]:
    """The values by name, also of metrics whose result is a dictionary, as in the logs of `fit`."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        found |= flat(value) if isinstance(value, dict) else {name: value}
    return found


def split(logs: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, which is the first value unless one has its name, and the other values of a step by name."""
    scalars = {name: tf.reduce_mean(tf.cast(value, tf.float32)) for name, value in flat(logs).items()}
    loss = scalars.pop("loss", None)
    return next(iter(scalars.values())) if loss is None else loss, scalars


@contextlib.contextmanager
def recorded(model: Any, scope: Any, variables: Sequence[Any]) -> Iterator[dict[int, Tensor]]:
    """Record the gradients that the model's optimizer gets, by the ids of the variables.

    In a `StatelessScope` a layer computes with values in place of variables. So `tf.GradientTape` watches the values
    of these variables, and takes the gradients for them.

    Raises:
        ValueError: the optimizer gets a second gradient of a variable.
    """
    import keras

    gradients: dict[int, Tensor] = {}

    def value(each: Any) -> Any:
        return scope.get_current_value(each) if isinstance(each, keras.Variable) else each

    class Tape(tf.GradientTape):  # type: ignore[misc]
        def __enter__(self) -> Any:
            found = super().__enter__()
            self.watch(variables)
            return found

        def watch(self, tensor: Any) -> None:
            super().watch(optree.tree_map(value, tensor))

        def gradient(self, target: Any, sources: Any, *arguments: Any, **named: Any) -> Any:
            return super().gradient(target, optree.tree_map(value, sources), *arguments, **named)

    def keep(grads: Any, trainable_variables: Any = None) -> None:  # the names in Keras
        scale = model.optimizer.loss_scale_factor or 1.0
        for gradient, variable in zip(grads, trainable_variables or variables, strict=True):
            if id(variable) in gradients:
                raise ValueError(f"train_step updates {variable.path} twice, but a step here updates a variable once")
            if gradient is not None:
                gradients[id(variable)] = tf.convert_to_tensor(gradient) / scale

    tape, model.optimizer.apply, tf.GradientTape = tf.GradientTape, keep, Tape
    try:
        yield gradients
    finally:
        tf.GradientTape = tape
        del model.optimizer.apply
