"""Makes the Keras model of a model's file, and refuses one that cannot be trained."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainer.data.batched import RaggedShape
from trainer.data.examples import ArraySpec, Signature
from trainer.data.structures import missing_targets
from trainer.errors import ConfigurationError
from trainer.models import compiled, keras_limits, own_train_step
from trainer.models.ragged import is_ragged
from trainer.tensorflow import tf
from trainer.text.reasons import reason

DATA_ARGUMENTS = ("input_shape", "classes")
"""The arguments of `model` that the data determines."""


def needs_data(function: Callable[..., Any]) -> bool:
    """Whether the function of a file has an argument that the data determines."""
    return any(each in inspect.signature(function).parameters for each in DATA_ARGUMENTS)


def make(name: str, function: Callable[..., Any], seed: int, signature: Signature | None) -> Any:
    """Call the function of a file, whose name is for errors; the signature of the data may be unknown."""
    import keras

    arguments = _arguments(name, function, signature) if signature else {}
    with errors(name, "model() failed"):
        keras.utils.set_random_seed(seed % 2**32)
        model = function(**arguments)
    if not isinstance(model, keras.Model):
        raise error(name, f"model() returned {type(model).__name__}; return a keras.Model")
    return model


def _arguments(name: str, function: Callable[..., Any], signature: Signature) -> dict[str, Any]:
    known = dict(zip(DATA_ARGUMENTS, (signature.input_shape, signature.classes), strict=True))
    wanted = inspect.signature(function).parameters
    for argument, each in wanted.items():
        is_required = each.default is each.empty
        if is_required and argument not in known:
            raise error(name, f"model() has the argument {argument}; it may have {' and '.join(known)}")
        if is_required and known[argument] is None:
            raise error(name, f"model() has the argument {argument}, which the data does not determine; leave it out")
    return {argument: value for argument, value in known.items() if argument in wanted and value is not None}


def input_shapes(model: Any) -> Mapping[str, tuple[int | None, ...]] | None:
    """The shapes of batches that a model accepts, by the names of its inputs; None if it has no `Input`."""
    if (found := inputs_of(model)) is None:
        return None
    return {name: (RaggedShape if is_ragged(each) else tuple)(each.shape) for name, each in found.items()}


def input_specs(model: Any) -> Mapping[str, ArraySpec] | None:
    """The specs of the inputs of one example by name; None if the model has no `Input`."""
    if (found := inputs_of(model)) is None:
        return None
    return {name: ArraySpec(tuple(each.shape[1:]), each.dtype) for name, each in found.items()}


def inputs_of(model: Any) -> Mapping[str, Any] | None:
    """The inputs of a model by name; None if it has no `Input`."""
    import keras

    inputs = getattr(model, "inputs", None)
    if not inputs:
        return None
    given = None if isinstance(model, keras.Sequential) else model.input
    return dict(given) if isinstance(given, dict) else {each.name: each for each in inputs}


def check_model(name: str, model: Any, signature: Signature) -> None:
    """Raise an error if the trainer cannot train a model with data of this signature."""
    if why_not := keras_limits.why_not(model):
        raise error(name, why_not)
    # It may train by its own step or loss, or by add_loss.
    takes_inputs_alone = own_train_step.is_own(model) or own_train_step.overrides(model, "compute_loss")
    if not signature.has_targets and not (takes_inputs_alone or (model.compiled and model.loss is None)):
        raise error(name, missing_targets(signature))


def check_outputs(name: str, model: Any, signature: Signature, outputs: Any) -> None:
    """Raise an error if the loss cannot compare these outputs with the targets."""
    if own_train_step.is_own(model):
        return
    classes, is_single = signature.classes, isinstance(outputs, tf.Tensor)
    if not model.compiled and not (is_single and signature.has_labels):
        raise error(
            name, "the data has no class labels, integers [n], or the model several outputs; compile() it with a loss"
        )
    classifies = classes and is_single and (not model.compiled or compiled.is_classifier(model))
    if classifies and (outputs.shape.rank != 2 or outputs.shape[1] < classes):
        raise error(
            name,
            f"the model's output has the shape {[None, *outputs.shape[1:]]}, but the data has {classes} classes; "
            f"let it have the shape [None, {classes}]",
        )


@contextlib.contextmanager
def errors(name: str, what: str, model: Any = None) -> Iterator[None]:
    """Convert an exception of the model's own code to a `ConfigurationError`."""
    try:
        yield
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as failure:
        eager = getattr(model, "run_eagerly", False)
        remedy = "; run_eagerly has no effect here: the step is a graph, so use keras.ops" if eager else ""
        if "unknown rank" in str(failure):
            remedy += "; give what tf.py_function or tf.numpy_function returns a shape, by tf.ensure_shape(result, [])"
        raise error(name, f"{what}: {reason(failure, name)}{remedy}") from failure


def error(name: str, text: str) -> ConfigurationError:
    """The error of a model."""
    return ConfigurationError(f"model={name}: {text}.")
