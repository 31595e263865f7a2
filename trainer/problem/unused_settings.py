"""Settings that were given and have no effect, because the model brings its own."""

from trainer.config import OptimizerSettings, Settings, names
from trainer.models import Model
from trainer.models.keras_model import KerasModel

FOR_EACH_OPTIMIZER = ("staleness_aware",)
"""Settings of the optimizer that count for one of compile() too."""


def describe(settings: Settings, model: Model) -> list[str]:
    """Sentences on them, for the log: those of the optimizer beside one of compile(), and of the built-in layers."""
    found = []
    of_optimizer = [name for name in names({"": OptimizerSettings}) if name not in FOR_EACH_OPTIMIZER]
    given = [name for name in of_optimizer if name in settings.given]
    if given and model.optimizer is not None:
        optimizer = type(model.optimizer).__name__
        found.append(f"{_have_no_effect(given)}: the model's compile() has the optimizer {optimizer}; set this there")
    if "hidden_units" in settings.given and isinstance(model, KerasModel):
        found.append(f"{_have_no_effect(['hidden_units'])}: the model's file has its own layers")
    return found


def _have_no_effect(given: list[str]) -> str:
    return f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect"
