"""The learning problem of a run: its data set, its model and the model's parameters."""

from dataclasses import dataclass
from typing import Any

from trainer.config import Settings
from trainer.data import datasets
from trainer.data.datasets import Dataset
from trainer.keras_model import KerasModel
from trainer.model_files import find, identify
from trainer.models import Model, Parameter
from trainer.training.evaluation import CheckpointEvaluator


@dataclass(frozen=True)
class Problem:
    """A data set and the model that learns it."""

    dataset: Dataset
    model: Model | KerasModel
    parameters: dict[str, Parameter]
    identity: dict[str, Any]
    """The result of `describe`."""

    def evaluator(self) -> CheckpointEvaluator:
        """Return an evaluator of checkpoints on the held-out split."""
        return CheckpointEvaluator(self.model, self.parameters, self.dataset.test)


def load(settings: Settings) -> Problem:
    """Load the data set and the model that the settings name.

    Raises:
        ConfigurationError: the data set or the model cannot be loaded, or they do not fit.
    """
    dataset = datasets.load(settings.dataset, settings.data_dir, settings.download)
    model = find(settings.model, settings.seed)
    parameters = model.parameters(dataset.image_shape, dataset.classes, settings.hidden_units)
    return Problem(dataset, model, parameters, describe(settings.model, parameters, dataset))


def describe(model: str, parameters: dict[str, Parameter], dataset: Dataset) -> dict[str, Any]:
    """Return the facts that identify a problem. Checkpoints are compatible only between runs with equal facts."""
    return {
        "model": identify(model),
        "parameters": {name: list(parameter.shape) for name, parameter in parameters.items()},
        "dataset": dataset.name,
        "dataset_digest": dataset.digest,
    }
