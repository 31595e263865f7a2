"""The data set that the settings of a run name: a named one, that of a model's file, or the built-in digits."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

from trainer.cluster.spec import Cluster
from trainer.config import Settings
from trainer.data import datasets, fit_arguments, own_data
from trainer.data.columns.names import SHOWN
from trainer.data.context import DataContext
from trainer.data.datasets import Dataset
from trainer.data.fit_arguments import FitArguments
from trainer.errors import ConfigurationError
from trainer.models import Model, model_files
from trainer.models.keras_model import KerasModel
from trainer.problem import column_files, data_version
from trainer.problem.column_files import COLUMNS
from trainer.storage.object_store import is_uri


def load_there(settings: Settings) -> Dataset:
    """Load the data set that the settings name, without a download: a trained model is used on data that is there.

    Raises:
        ConfigurationError: it cannot be loaded.
    """
    settings = replace(settings, download=False, data_version=data_version.choose(settings, None))
    settings = column_files.with_model(settings)
    has_data = settings.dataset and settings.model != COLUMNS and not column_files.are_named(settings)
    module = None if has_data else model_files.load(settings.model, settings.model_arguments)
    fit = fit_arguments.load(module, settings.model) if module else FitArguments()
    has_model = module and settings.model != COLUMNS  # that one is made for the data
    model = model_files.model_of(module, replace(settings, initial_weights=None)) if module and has_model else None
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
    is_table = (settings.dataset, settings.model) == ("lance", COLUMNS) or column_files.are_named(settings)
    own = module if module and not settings.dataset and not (is_table and _ignores_data_dir(module)) else None
    found = own_data.load(own, settings.model, data, fit, accepted) if own else None
    if not found and is_table:
        return column_files.load(settings, model if isinstance(model, KerasModel) else None)
    if not found and settings.dataset is None and "data_dir" in settings.given:
        if not is_uri(settings.data_dir) and not Path(settings.data_dir).exists():
            raise ConfigurationError(f"data_dir={settings.data_dir}: there is no such file or folder.")
        raise ConfigurationError(
            f"data_dir={settings.data_dir}, but nothing reads it: no file has a name that ends in {SHOWN}; name the "
            "kind of other files, such as dataset=npz, or read context.data_dir in train_data() of a model's file."
        )
    name = settings.dataset or datasets.DEFAULT
    return found or datasets.load(name, settings.data_version, settings.download, data)


def _ignores_data_dir(module: ModuleType) -> bool:
    """Whether the file of a model does not read `data_dir`, so that files there are the data in place of its own."""
    file = Path(module.__file__ or "")
    return ".data_dir" not in file.read_text(encoding="utf-8", errors="replace")
