"""What MLflow gets of a directory: that of a run of the trainer, or what any other TensorFlow program has written.

Of another program it knows the curves of TensorBoard's event files and the newest SavedModel. It only reads.
"""

import contextlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from trainer import config
from trainer.errors import ConfigurationError
from trainer.export import saved_model
from trainer.export.export_folder import SAVED_MODEL, SAVED_MODEL_FILES
from trainer.run_directory import curves
from trainer.run_directory.curves import Curve
from trainer.run_directory.run import Run, is_run, last_written, read_run, state_by_time
from trainer.run_directory.training_directory import TrainingDirectory

FACTS = ("dataset", "dataset_version", "dataset_digest", "dataset_uri", "mode", "workers", "ps", "version")
"""The facts of result.json that become tags."""
MODEL_FACTS = ("dataset", "dataset_version", "dataset_digest", "dataset_uri", "version")
"""Those that become tags of a version."""
FILES = ("settings.yaml", "run.json", "result.json", "divergences.jsonl")


class Data(NamedTuple):
    """The data set on which a run trains."""

    name: str
    digest: str
    uri: str | None


@dataclass(frozen=True)
class Publication:
    """What MLflow gets of a directory."""

    directory: TrainingDirectory
    state: str
    """done, failed, stopped, running or silent."""
    start: float
    """In seconds since the epoch, as `end`, which counts if the run is not running."""
    end: float
    curves: Mapping[str, Curve]
    model: str
    """The name of the registered model, unless the user names another one."""
    export: Path | None
    """The SavedModel to register; None if there is none, or if the run is not done."""
    absence: str
    """Why there is no SavedModel to register, if there is none."""
    not_exported: Collection[str] = ()
    """Files and folders in `export` that do not belong to the SavedModel."""
    files: Sequence[Path] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    model_tags: Mapping[str, str] = field(default_factory=dict)
    data: Data | None = None


def read(directory: TrainingDirectory, argument: str, is_done: bool) -> Publication:
    """Read a directory.

    Args:
        directory: That of a run of the trainer, or of another program.
        argument: What names it, for errors.
        is_done: Whether another program has succeeded. A run of the trainer says so itself.

    Raises:
        ConfigurationError: there is nothing to publish, or a file is damaged.
    """
    return of_run(read_run(directory, argument)) if is_run(directory.path) else of_program(directory, argument, is_done)


def of_program(directory: TrainingDirectory, argument: str, is_done: bool) -> Publication:
    """What MLflow gets of the directory of a program other than the trainer.

    Raises:
        ConfigurationError: it has neither event files nor a SavedModel, or the newest SavedModel is damaged.
    """
    events, models = curves.event_files(directory.path), _saved_models(directory.path)
    if not events and not models:
        raise ConfigurationError(
            f"{argument}: {directory} has neither event files of TensorBoard nor a SavedModel, so there is nothing to "
            "publish; name the directory that a run or a program has written."
        )
    found = curves.read_below(directory.path)
    served = (each for each in models if saved_model.has_signature(each, f"{argument}: the model {each}"))
    export = next(served, None) if is_done else None
    written = last_written(directory)
    absence = f"no SavedModel there has the signature {saved_model.SIGNATURE}"
    return Publication(
        directory=directory,
        state="done" if is_done else state_by_time(written),
        start=min((curve.times[0] for curve in found.values()), default=written),
        end=max((curve.times[-1] for curve in found.values()), default=written),
        curves=found,
        model=_as_name(Path(str(directory)).absolute().name),
        export=export,
        absence=absence if is_done else "publish it again with --done when the program has succeeded",
        not_exported=[each.name for each in export.iterdir() if each.name not in SAVED_MODEL_FILES] if export else (),
    )


def _saved_models(path: Path) -> list[Path]:
    """The folders with a SavedModel, without hidden ones, in which programs write; the newest first."""
    found = []
    for file in path.rglob(SAVED_MODEL):
        if not re.search(r"(^|/)\.", str(file.relative_to(path))):
            with contextlib.suppress(FileNotFoundError):  # the program has replaced it meanwhile
                found.append((-file.stat().st_mtime, str(file), file.parent))
    return [folder for _, _, folder in sorted(found)]


def of_run(run: Run) -> Publication:
    """What MLflow gets of a run of the trainer."""
    result, settings = run.result, run.settings
    found = {f"train/{tag}": curve for tag, curve in run.train.items()}
    found |= {f"test/{tag}": curve for tag, curve in run.test.items()}
    export = run.export if run.is_done else None
    data = None
    if result.get("dataset_digest"):
        uri = result.get("dataset_uri") or (settings.data_dir if settings else None)
        data = Data(str(result.get("dataset")), str(result["dataset_digest"]), str(uri) if uri else None)
    return Publication(
        directory=run.directory,
        state=run.state,
        start=_start(run),
        end=_end(run),
        curves={**found, **_final_values(run)},
        model=_as_name(Path(str(result.get("model") or (settings.model if settings else "model"))).stem),
        export=export,
        absence="a run exports it at its end; publish the run again when it is done",
        files=[run.directory.path / name for name in FILES if (run.directory.path / name).is_file()],
        parameters=_parameters(run),
        tags=_facts(result, FACTS),
        model_tags={**_facts(result, MODEL_FACTS), **(_scores(result, export.name) if export else {})},
        data=data,
    )


def _as_name(text: str) -> str:
    """A name that a registered model can have."""
    return re.sub(r"[^\w .-]", "_", text) or "model"


def _facts(result: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    return {name: str(result[name]) for name in names if result.get(name) is not None}


def _scores(result: Mapping[str, Any], step: str) -> dict[str, str]:
    """The step of an export and what the held-out split gives for it: it is the best checkpoint or the last one."""
    scores = [each for each in (result.get("best"), result) if isinstance(each, Mapping)]
    own: Mapping[str, Any] = next((each for each in scores if str(each.get("global_step")) == step), {})
    measured = {name: str(value) for name, value in own.items() if name.startswith("test_") and value is not None}
    return {"global_step": step, **measured}


def _parameters(run: Run) -> dict[str, str]:
    if run.settings is None:
        return {}
    settings = yaml.safe_load(config.to_yaml(run.settings))
    return {name: str(value) for name, value in settings.items() if value is not None and value != ""}


def _start(run: Run) -> float:
    """When the run began, in seconds since the epoch, as far as the directory tells."""
    times = [curve.times[0] for curve in (*run.train.values(), *run.test.values()) if len(curve)]
    return float(min([*times, *_event_times(run)], default=run.written))


def _end(run: Run) -> float:
    """When the run has ended, in seconds since the epoch: files may be copied or added later."""
    return max([] if run.is_done else _event_times(run), default=_updated(run))


def _event_times(run: Run) -> list[float]:
    """The times of what the tasks' logs report, in seconds since the epoch."""
    return [event.time for task in run.tasks for event in task.events]


def _final_values(run: Run) -> dict[str, Curve]:
    """The numbers of the result, as curves of one point; empty if the run is not done."""
    if not run.is_done:
        return {}
    step, time = int(run.result.get("global_step", 0)), _updated(run)
    names = [name for name in run.result if name.startswith("test_")] + ["seconds", "steps_per_second", "goodput"]
    values = {name: run.result.get(name) for name in names}
    return {
        name: Curve(np.array([step]), np.array([time]), np.array([float(value)]))
        for name, value in values.items()
        if isinstance(value, (int, float))
    }


def _updated(run: Run) -> float:
    try:
        return datetime.fromisoformat(str(run.result.get("updated"))).timestamp()
    except ValueError:
        return 0.0 if math.isnan(run.written) else run.written
