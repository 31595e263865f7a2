"""The metric of the held-out split by which the best checkpoint of a run is chosen. No other module decides it.

The setting `best_metric` comes first, then what a callback of the model's file monitors, and then the kind of the loss:
the recall of retrieval, the AUC of a binary one, an accuracy, or the loss itself.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.checkpoint.score import LOSS, BestMetric, Mode
from trainer.errors import ConfigurationError
from trainer.evaluate import retrieval
from trainer.models import ACCURACY, Model
from trainer.models.keras_model import KerasModel
from trainer.tensorflow import tf, tf1

VALIDATION = "val_"
"""The prefix in Keras's logs of what is measured on the held-out split."""
ACCURACIES = ("Accuracy", "BinaryAccuracy", "CategoricalAccuracy", "SparseCategoricalAccuracy")
"""The classes of Keras's metrics that stand for the accuracy of a model without a metric of that name."""
_SMALLER = re.compile(r"loss|err|mse|mae|mape|msle|entropy|divergence|hinge|perplexity|poisson|log_?cosh")
_LARGER = re.compile(r"acc|auc|precision|recall|f_?(\d|beta|score)|iou|dice|r2|ndcg|mrr|kappa|correlation|similarity")
"""Names of metrics of which smaller, or larger values are better, where Keras does not say it."""


def choose(model: Model, setting: str | None, callbacks: Sequence[Any] = ()) -> BestMetric:
    """Choose the metric of a run.

    Args:
        model: The model, whose parameters were read.
        setting: The setting `best_metric`: a name, with min: or max: before it or not.
        callbacks: Keras's callbacks in the model's file.

    Raises:
        ConfigurationError: the model has no such metric, or it is not known whether larger values are better.
    """
    names = _names(model)
    kinds = _metrics_of_keras(model, names)
    if setting is not None:
        mode, colon, name = setting.partition(":")
        if not colon or mode not in ("min", "max"):
            mode, name = "", setting
        name = name.removeprefix(VALIDATION)
        if name not in names:
            raise ConfigurationError(
                f"best_metric={setting}: the model measures {', '.join(names)}; name one of them, or let compile() "
                "have this metric."
            )
        if not (known := mode or _mode(name, kinds)):
            raise ConfigurationError(
                f"best_metric={setting}: it is not known whether larger values of {name} are better; write max:{name} "
                f"or min:{name}."
            )
        return BestMetric(name, "max" if known == "max" else "min", f"best_metric={setting}")
    for callback in sorted(filter(_decides, callbacks), key=_rank):
        name, mode = callback.monitor.removeprefix(VALIDATION), getattr(callback, "mode", "auto")
        known = mode if mode in ("min", "max") else _mode(name, kinds)
        if name in names and known:
            return BestMetric(
                name, "max" if known == "max" else "min", f"{type(callback).__name__} monitors {callback.monitor}"
            )
    if retrieval.NAMES[0] in names:
        return BestMetric(retrieval.NAMES[0], "max")
    if isinstance(model, KerasModel) and model.has_binary_loss and (found := _first(kinds, ("AUC",))):
        return BestMetric(found, "max")
    if found := ACCURACY if ACCURACY in names else _first(kinds, ACCURACIES):
        return BestMetric(found, "max")
    return BestMetric()


def _names(model: Model) -> list[str]:
    """The names of what an evaluation measures."""
    with tf.Graph().as_default():
        measured = model.measure([tf1.placeholder(each.dtype, each.shape) for each in model.no_counts])
    return [LOSS, *measured, *(retrieval.NAMES if isinstance(model, KerasModel) and model.towers else ())]


def _metrics_of_keras(model: Model, names: Sequence[str]) -> dict[str, Any]:
    """Keras's metrics by these names, which may begin with that of an output, or with `weighted_`."""
    metrics = model.metrics if isinstance(model, KerasModel) else []
    found = {}
    for name in names:
        fitting = [each for each in metrics if name == each.name or name.endswith(f"_{each.name}")]
        if fitting:
            found[name] = max(fitting, key=lambda each: len(each.name))
    return found


def _mode(name: str, kinds: Mapping[str, Any]) -> Mode | None:
    """Whether larger or smaller values of a metric are better, as Keras's callbacks find it, or by its name."""
    if name == LOSS:
        return "min"
    direction = getattr(kinds.get(name), "_direction", None)
    if direction:
        return "max" if direction == "up" else "min"
    if _SMALLER.search(name.lower()):
        return "min"
    return "max" if _LARGER.search(name.lower()) else None


def _first(kinds: Mapping[str, Any], classes: Sequence[str]) -> str | None:
    """The name of the first metric of these classes of Keras's, or of classes of the user's own made from them."""
    for name, metric in kinds.items():
        if {each.__name__ for each in type(metric).__mro__}.intersection(classes):
            return name
    return None


def _decides(callback: Any) -> bool:
    """Whether a callback says by a metric of the held-out split which weights are good."""
    monitor = getattr(callback, "monitor", None)
    return isinstance(monitor, str) and monitor.startswith(VALIDATION) and getattr(callback, "save_best_only", True)


def _rank(callback: Any) -> int:
    """What saves or restores the best weights decides before what only lowers the learning rate."""
    is_kept = getattr(callback, "save_best_only", False) or getattr(callback, "restore_best_weights", False)
    is_slowed = "ReduceLROnPlateau" in {each.__name__ for each in type(callback).__mro__}
    return 0 if is_kept else 2 if is_slowed else 1
