"""The data set that the settings of a run name: a named one, that of a model's file, or the built-in digits."""

from dataclasses import replace
from types import ModuleType

from trainer.cluster.spec import Cluster
from trainer.config import Settings
from trainer.data import datasets, fit_arguments, own_data
from trainer.data.columns import FILES
from trainer.data.context import DataContext
from trainer.data.datasets import Dataset
from trainer.data.fit_arguments import FitArguments
from trainer.errors import ConfigurationError
from trainer.models import Model, model_files
from trainer.models.keras_model import KerasModel
from trainer.problem import data_version


def load_there(settings: Settings) -> Dataset:
    """Load the data set that the settings name, without a download: a trained model is used on data that is there.

    Raises:
        ConfigurationError: it cannot be loaded.
    """
    settings = replace(settings, download=False)
    module = None if settings.dataset else model_files.load(settings.model, settings.model_arguments)
    fit = fit_arguments.load(module, settings.model) if module else FitArguments()
    model = model_files.model_of(module, replace(settings, initial_weights=None)) if module else None
    return of_settings(settings, module, None, fit, model)


def of_settings(
    settings: Settings, module: ModuleType | None, cluster: Cluster | None, fit: FitArguments, model: Model | None
) -> Dataset:
    """Load the data set of a run, or of a model's file, for the replica of this task.

    Raises:
        ConfigurationError: it cannot be loaded.
    """
    trains = cluster is not None and cluster.task in cluster.replicas
    place = (cluster.replica_index, len(cluster.replicas), settings.spare_workers) if cluster and trains else (0, 1)
    data = DataContext(settings.data_dir, settings.batch_size, settings.seed, *place)
    accepted = model.input_shapes if isinstance(model, KerasModel) else None
    found = own_data.load(module, settings.model, data, fit, accepted) if module and not settings.dataset else None
    table = settings.data_dir
    if not found and settings.dataset in (None, "lance") and table.endswith(FILES):
        uri = next(table.removesuffix(each) for each in FILES if table.endswith(each)) + ".lance"
        raise ConfigurationError(
            f"data_dir={table} is a table: run trainer data import {table} {uri} --target COLUMN, and train with "
            f"dataset=lance and data_dir={uri}."
        )
    if not found and settings.dataset is None and "data_dir" in settings.given:
        raise ConfigurationError(
            f"data_dir={settings.data_dir}, but nothing reads it: name its kind, such as dataset=npz, or read "
            "context.data_dir in train_data() of a model's file; without both, the built-in digits are the data."
        )
    name = settings.dataset or datasets.DEFAULT
    return found or datasets.load(name, data_version.choose(settings, cluster), settings.download, data)
