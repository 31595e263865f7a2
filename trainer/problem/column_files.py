"""Files with columns, and tables of Lance, as the data of a run, and the packaged model for them."""

import functools
from dataclasses import replace
from pathlib import Path

from trainer.config import FILES_WITH_COLUMNS, Settings
from trainer.data import lance_table, metadata
from trainer.data.batched import RaggedShape
from trainer.data.columns.choices import Choices
from trainer.data.columns.names import find, has_columns
from trainer.data.datasets import Dataset
from trainer.data.examples import Examples
from trainer.data.fit_arguments import FitArguments
from trainer.errors import ConfigurationError
from trainer.models.keras_model import KerasModel
from trainer.storage.object_store import is_uri
from trainer.text import installation

COLUMNS = "columns"
"""The packaged model for a table."""
LEAST_BATCH, MOST_BATCH = 16, 512
BATCHES = 40
"""The batches of an epoch of a small table."""
LEAST_EPOCHS, MOST_EPOCHS = 2, 200
MOST_EXAMPLES = 10_000_000
"""About the most that a run takes, all epochs together."""
MOST_PATIENCE = 12


def are_named(settings: Settings) -> bool:
    """Whether the settings name columns as the data: by `dataset`, by what is in `data_dir`, or as a table of Lance.

    Raises:
        ConfigurationError: a Lance dataset cannot be opened.
        StoreError: an object store does not respond.
    """
    if settings.dataset == "lance":
        return metadata.table(lance_table.open_version(settings.data_dir, settings.data_version).schema) is not None
    if settings.dataset or "data_dir" not in settings.given:
        return settings.dataset in FILES_WITH_COLUMNS
    if is_uri(settings.data_dir):
        return has_columns(settings.data_dir)
    place = Path(settings.data_dir)
    return bool(find(place)) if place.exists() else has_columns(place.name)


def with_model(settings: Settings) -> Settings:
    """The settings with the packaged model for columns, if they name such data and no model."""
    return replace(settings, model=COLUMNS) if "model" not in settings.given and are_named(settings) else settings


def load(settings: Settings, model: KerasModel | None) -> Dataset:
    """Read the columns.

    Args:
        settings: The settings.
        model: The model of the user's that takes the columns; None is the packaged one.

    Raises:
        ConfigurationError: the data cannot be read, its columns cannot be used, or pyarrow is not installed.
        StoreError: an object store does not respond.
    """
    try:
        from trainer.data.columns import files, stored
    except ImportError:
        raise ConfigurationError(
            f"data_dir={settings.data_dir}: the Python package pyarrow is not installed: run "
            f"{installation.command('tensorflow')}."
        ) from None
    shapes = (model.input_shapes() if model else None) or {}
    if ragged := [name for name, each in shapes.items() if isinstance(each, RaggedShape)]:
        raise ConfigurationError(
            f"model={settings.model}: its input {ragged[0]} is ragged, but lists in files with columns are filled with "
            "zeros; let it be keras.Input((None,)), and let the model leave out 0, as mask_zero=True does."
        )
    takes, choices = files.Model(model.input_specs if model else None), _choices(settings)
    if settings.dataset == "lance":
        found = stored.load(settings.data_dir, settings.data_version, choices, takes)
    else:
        found = files.load(settings.data_dir, choices, takes, settings.seed)
    return Dataset(
        settings.dataset or found.kind,
        found.train,
        found.test,
        settings.data_dir if is_uri(settings.data_dir) else str(Path(settings.data_dir).resolve()),
        version=found.version,
        version_digest=found.digest,
        classes=found.plan.target.classes or None,
        plan=found.plan,
        baseline=found.baseline,
    )


def _choices(settings: Settings) -> Choices:
    return Choices(
        settings.target,
        _names(settings.inputs),
        _names(settings.exclude),
        settings.id,
        settings.sample_weight,
        settings.regression,
        settings.dataset,
        settings.max_skipped,
    )


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def model_of(settings: Settings, dataset: Dataset) -> tuple[KerasModel, FitArguments]:
    """The packaged model for the columns of a dataset, and how it is trained.

    Raises:
        ConfigurationError: the data has no columns.
    """
    from trainer.models import columns
    from trainer.models.model_files import provide_keras

    if dataset.plan is None:
        raise ConfigurationError(
            f"model={COLUMNS} is for files with columns, but the data is {dataset.name}; give a CSV or Parquet file "
            "with --data, or another model."
        )
    provide_keras()
    function = functools.partial(columns.model, dataset.plan)
    model = KerasModel(COLUMNS, function, settings.seed, settings.initial_weights, table_rows=settings.table_rows)
    return model, fit_arguments(dataset)


def fit_arguments(dataset: Dataset) -> FitArguments:
    """How the packaged model is trained: until the held-out loss is no longer better."""
    import keras

    rows = len(dataset.train) if isinstance(dataset.train, Examples) else dataset.train.size or 0
    size = min(MOST_BATCH, max(LEAST_BATCH, 1 << max(0, (rows // BATCHES).bit_length() - 1)))
    epochs = max(LEAST_EPOCHS, min(MOST_EPOCHS, MOST_EXAMPLES // max(1, rows)))
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=max(1, min(MOST_PATIENCE, epochs // 4)))
    return FitArguments(epochs=epochs, batch_size=size, callbacks=[stopping])
