"""The learning problem of a run: its data set, its model and the model's parameters."""

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from trainer.cluster.spec import Cluster
from trainer.config import Settings
from trainer.data import datasets, own_data
from trainer.data.columns import FILES
from trainer.data.context import DataContext
from trainer.data.datasets import Dataset
from trainer.errors import ConfigurationError
from trainer.models import Model, Parameter, model_files
from trainer.models.ops_model import MEAN
from trainer.run_directory import data_version
from trainer.run_directory.evaluation import CheckpointEvaluator


@dataclass(frozen=True)
class Problem:
    """A data set and the model that learns it."""

    dataset: Dataset
    model: Model
    parameters: dict[str, Parameter]
    identity: dict[str, Any]
    """The result of `describe`."""

    @property
    def warning(self) -> str | None:
        """A sentence on inputs that few models learn from as they are; None if there are none."""
        return None if MEAN in self.parameters else self.dataset.warning

    def evaluator(self) -> CheckpointEvaluator:
        """Return an evaluator of checkpoints on the held-out split."""
        return CheckpointEvaluator(self.model, self.parameters, self.dataset.test)


def load(settings: Settings, cluster: Cluster | None) -> Problem:
    """Load the data set and the model that the settings name.

    Raises:
        ConfigurationError: the data set or the model cannot be loaded, or they do not fit.
    """
    module = model_files.load(settings.model)
    dataset = _load_dataset(settings, module, cluster)
    model = model_files.model_of(module, settings, dataset.table)
    parameters = model.parameters(dataset.signature)
    return Problem(dataset, model, parameters, describe(settings.model, parameters, dataset))


def load_dataset(settings: Settings) -> Dataset:
    """Load the data set that the settings name, without a download: a trained model is used on data that is there.

    Raises:
        ConfigurationError: it cannot be loaded.
    """
    settings = replace(settings, download=False)
    return _load_dataset(settings, None if settings.dataset else model_files.load(settings.model), None)


def _load_dataset(settings: Settings, module: ModuleType | None, cluster: Cluster | None) -> Dataset:
    trains = cluster is not None and cluster.task in cluster.replicas
    place = (cluster.replica_index, len(cluster.replicas), settings.spare_workers) if cluster and trains else (0, 1)
    data = DataContext(settings.data_dir, settings.batch_size, settings.seed, *place)
    found = own_data.load(module, settings.model, data) if module and settings.dataset is None else None
    table = settings.data_dir
    if not found and settings.dataset in (None, "lance") and table.endswith(FILES):
        uri = next(table.removesuffix(each) for each in FILES if table.endswith(each)) + ".lance"
        raise ConfigurationError(
            f"data_dir={table} is a table: run trainer data import {table} {uri} --target COLUMN, and train with "
            f"dataset=lance and data_dir={uri}."
        )
    if not found and settings.dataset is None and settings.data_dir != Settings().data_dir:
        raise ConfigurationError(
            f"data_dir={settings.data_dir}, but nothing reads it: name its kind, such as dataset=npz, or read "
            "context.data_dir in train_data() of a model's file; without both, the built-in digits are the data."
        )
    name = settings.dataset or datasets.DEFAULT
    return found or datasets.load(name, data_version.choose(settings, cluster), settings.download, data)


def describe(model: str, parameters: dict[str, Parameter], dataset: Dataset) -> dict[str, Any]:
    """Return the facts that identify a problem. Checkpoints are compatible only between runs with equal facts."""
    return {
        "model": model_files.identify(model),
        "parameters": {name: list(parameter.shape) for name, parameter in parameters.items()},
        **dataset.identity,
    }
