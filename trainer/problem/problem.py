"""The learning problem of a run: its data set, its model and the model's parameters."""

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from trainer.checkpoint.score import BestMetric
from trainer.cluster.spec import Cluster
from trainer.config import Settings
from trainer.data import catalogue, fit_arguments
from trainer.data.catalogue import Catalogue
from trainer.data.context import DataContext
from trainer.data.datasets import Dataset
from trainer.data.epochs import Epochs
from trainer.data.examples import Examples
from trainer.data.fit_arguments import FitArguments
from trainer.data.stream import FIRST_EXAMPLES, Stream
from trainer.errors import ConfigurationError
from trainer.evaluate import best_metric, retrieval
from trainer.evaluate.evaluation import CPU, CheckpointEvaluator
from trainer.graph import devices
from trainer.mode import Mode
from trainer.models import Model, Parameter, model_files, towers
from trainer.models.keras_model import KerasModel
from trainer.problem import column_files, data_sets, data_version
from trainer.problem.column_files import COLUMNS
from trainer.shards.course import Course

logger = logging.getLogger(__name__)

COUNT_SECONDS = 30.0
"""How long the batches of a pass may take to count, if an epoch is wanted of data of unknown size."""


@dataclass(frozen=True)
class Problem:
    """A data set and the model that learns it."""

    dataset: Dataset
    model: Model
    parameters: dict[str, Parameter]
    identity: dict[str, Any]
    """The result of `describe`."""
    mode: Mode
    settings: Settings
    """The settings of the run, with what the model's file and the data determine."""
    fit: FitArguments
    """The arguments of `fit` in the model's file."""
    epochs: Epochs | None
    """The passes over the training data, or those of the model's file; None if its size is not known."""
    best_metric: BestMetric
    """That by which the best checkpoint is chosen."""
    catalogue: Catalogue | None = None
    """All candidates of a model for retrieval."""

    @property
    def summary(self) -> str:
        """What is trained on which data, for the log."""
        data, values = self.dataset, sum(math.prod(each.shape) for each in self.parameters.values())
        train, test = (_count(each) for each in (data.train, data.test))
        counted = f"{train} examples" if train else "a stream of examples"
        held_out = f"{test} held out" if test else "a stream held out"
        classes = f", {data.signature.classes:,} classes" if data.signature.classes else ""
        place = f" ({data.uri})" if data.uri else ""
        model = f"{self.settings.model} with {values:,} parameters"
        epochs, steps = self.settings.epochs, self.settings.train_steps
        length = f"; {epochs} epochs are {steps:,} steps" if epochs else ""
        size = self.settings.batch_size
        return f"{model} learns {data.name}{place}: {counted}, {held_out}{classes}, in batches of {size}{length}"

    def course(self, before: Course, step: int) -> Course:
        """The course of the run from this global step on, which had the course `before` until then."""
        if self.epochs is None:
            return Course(self.settings.train_steps)
        epochs = self.epochs.continued(before.epochs, step) if before.epochs else self.epochs
        last_step = self.settings.train_steps
        if self.settings.epochs:
            last_step = epochs.last_step(self.settings.epochs, self.mode.local_steps)
        return Course(last_step, epochs)

    def continued(self, before: Course, step: int) -> "Problem":
        """The problem with the last step of a run whose newest checkpoint has this course and global step."""
        return replace(self, settings=replace(self.settings, train_steps=self.course(before, step).last_step))

    def was_stopped(self, found: Mapping[str, Any]) -> bool:
        """Whether a result says that a callback has ended a run of this length, or of a longer one."""
        epochs = found.get("stopped_before_epochs")
        if epochs and self.settings.epochs:
            return bool(epochs >= self.settings.epochs)
        return bool(found.get("stopped_before", 0) >= self.settings.train_steps)

    def evaluator(self, device: str = CPU) -> CheckpointEvaluator:
        """Return an evaluator of checkpoints on the held-out split, which computes on this device."""
        held_out, settings = self.dataset.test, self.settings
        sizes = settings.eval_batch_size, settings.batch_size
        return CheckpointEvaluator(self.model, self.parameters, held_out, *sizes, device, self.catalogue)


def load(settings: Settings, cluster: Cluster | None) -> Problem:
    """Load the data set and the model that the settings name.

    Raises:
        ConfigurationError: the data set or the model cannot be loaded, or they do not fit.
    """
    settings = column_files.with_model(replace(settings, data_version=data_version.choose(settings, cluster)))
    module = model_files.load(settings.model, settings.model_arguments)
    fit = fit_arguments.load(module, settings.model)
    model: Model
    if settings.model == COLUMNS:
        dataset = data_sets.of_settings(settings, module, cluster, fit, None)
        model, fit = column_files.model_of(settings, dataset)
    else:
        model = model_files.model_of(module, settings, fit.class_weight, bool(fit.callbacks))
        dataset = data_sets.of_settings(settings, module, cluster, fit, model)
    if fit.batch_size and "batch_size" not in settings.given:
        settings = replace(settings, batch_size=fit.batch_size)
    own = dataset.train.batch_size if isinstance(dataset.train, Stream) else None
    if own and not fit.batch_size and "batch_size" not in settings.given:
        settings = replace(settings, batch_size=own)
    mode = Mode.of(settings, cluster, devices.count(settings, cluster is not None))
    wants_epochs = bool(fit.callbacks or (fit.epochs if settings.epochs is None else settings.epochs))
    if fit.steps_per_epoch:
        epochs: Epochs | None = Epochs(fit.steps_per_epoch, 1)
    else:
        epochs = _find_epochs(settings, mode, dataset, wants_epochs)
    settings = _with_epochs(settings, mode, fit, epochs)
    if fit != FitArguments() and not isinstance(model, KerasModel):
        raise ConfigurationError(f"model={settings.model}: fit_arguments() is for Keras models; remove it.")
    train, held_out = dataset.train, dataset.test
    if not fit.shuffle and isinstance(train, Stream) and train.has_order:
        raise ConfigurationError(
            f"model={settings.model}: fit_arguments() has shuffle=False, but {dataset.name} is too large for the "
            "memory, and is shuffled while it is read; remove it, or let train_data() return a tf.data.Dataset."
        )
    first = train.first if isinstance(train, Stream) else train.take(slice(FIRST_EXAMPLES)).arrays
    parameters = model.parameters(dataset.signature, first)
    size = model.fixed_batch
    if size not in (None, settings.batch_size):
        raise ConfigurationError(
            f"model={settings.model}: it takes batches of {size}, but batch_size={settings.batch_size}; let them agree."
        )
    if size and isinstance(held_out, Examples) and len(held_out) % size:
        raise ConfigurationError(
            f"model={settings.model}: it takes batches of {size}, of which {len(held_out)} held-out examples are not a "
            "multiple; let test_data() give others."
        )
    identity = describe(settings.model, parameters, dataset)
    found = _catalogue(model, module, settings)
    metric = best_metric.choose(model, settings.best_metric, fit.callbacks)
    return Problem(dataset, model, parameters, identity, mode, settings, fit, epochs, metric, found)


def _catalogue(model: Model, module: ModuleType, settings: Settings) -> Catalogue | None:
    """The candidates of a model with towers."""
    if not isinstance(model, KerasModel) or not model.towers:
        return None
    context = DataContext(settings.data_dir, settings.batch_size, settings.seed, 0, 1)
    found = catalogue.load(module, settings.model, context)
    return retrieval.fitted(settings.model, model.towers[towers.CANDIDATE], found)


def _find_epochs(settings: Settings, mode: Mode, dataset: Dataset, wants_epochs: bool) -> Epochs | None:
    """The passes over the training data; None if its size is not known.

    For `wants_epochs`, a single replica, which reads all, counts the batches in a pass if that takes little time.
    """
    train = dataset.train
    size = len(train) if isinstance(train, Examples) else train.size
    if size is not None:
        return Epochs(size, settings.batch_size * mode.batches)
    if not wants_epochs or mode.replicas > 1 or isinstance(train, Examples):
        return None
    began, count = time.monotonic(), 0
    for _ in train.once(settings.batch_size):
        count += 1
        if time.monotonic() - began > COUNT_SECONDS:
            return None
    logger.info(f"{dataset.name}: a pass has {count:,} batches, which took {time.monotonic() - began:.1f} s to count")
    return Epochs(count, mode.batches)


def _count(examples: Examples | Stream) -> str:
    """The number of examples, for the log; empty if it is not known. The last of a dataset's batches may be smaller."""
    if isinstance(examples, Examples):
        return f"{len(examples):,}"
    at_most = "up to " if examples.batch_size else ""
    return f"{at_most}{examples.size:,}" if examples.size else ""


def _with_epochs(settings: Settings, mode: Mode, fit: FitArguments, passes: Epochs | None) -> Settings:
    """The settings with the steps of their epochs, or of those in the model's file, unless they say train_steps."""
    epochs = fit.epochs if settings.epochs is None else settings.epochs
    if (epochs or fit.callbacks) and passes is None:
        what = f"epochs={epochs}" if epochs else "callbacks"
        raise ConfigurationError(
            f"model={settings.model}: {what}, but the number of examples of train_data() is not known; let "
            "fit_arguments() give steps_per_epoch, or the dataset have a cardinality."
        )
    if not epochs or not passes:
        return settings
    return replace(settings, epochs=epochs, train_steps=passes.last_step(epochs, mode.local_steps))


def describe(model: str, parameters: dict[str, Parameter], dataset: Dataset) -> dict[str, Any]:
    """Return the facts that identify a problem. Checkpoints are compatible only between runs with equal facts."""
    return {
        "model": model_files.identify(model),
        "parameters": {name: list(parameter.shape) for name, parameter in parameters.items()},
        **dataset.identity,
    }
