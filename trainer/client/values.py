"""The chart's values of a run: from settings as of `trainer launch`, the user's own files, and what goes along."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainer import config
from trainer.config import Settings
from trainer.errors import ConfigurationError
from trainer.storage.object_store import is_uri

BY_OTHER_KEYS = ("train_dir", "data_dir", "grace_seconds", "model", "initial_weights")
"""Settings for which the chart has keys of its own, or that are paths on this machine."""
GRACE_SECONDS = 5
"""How much longer a pod has than its trainer."""
ROLES = ("worker", "ps", "chief", "evaluator", "client")
SUBMITTED = "submitted"
"""The volume with the files of a run, and the stage that waits for large ones."""
MOUNT = "/code"
UPLOADS = ".code"
"""The folder of the training directory with the files of runs whose files are large."""
UPLOAD_SECONDS = 3600
"""How long the stage that waits for the files waits."""
COMPLETE = ".complete"
"""The file that marks that all files are there."""


@dataclass(frozen=True)
class Tasks:
    """How many tasks a run has, and what each of them gets."""

    ps: int
    workers: int
    chief: bool = False
    evaluator: bool = False
    gpus: int = 0
    """Of each worker and of the chief."""
    max_restarts: int | None = None


def of_tasks(tasks: Tasks) -> dict[str, Any]:
    """The values with the tasks of a run."""
    found: dict[str, Any] = {"ps": {"replicas": tasks.ps}, "worker": {"replicas": tasks.workers}}
    if tasks.gpus:
        found["worker"]["gpus"] = tasks.gpus
    if tasks.chief:
        found["chief"] = {"replicas": 1, **({"gpus": tasks.gpus} if tasks.gpus else {})}
    if tasks.evaluator:
        found["evaluator"] = {"replicas": 1}
    if tasks.max_restarts is not None:
        found["run"] = {"backoffLimit": tasks.max_restarts}
    return found


def of_settings(settings: Settings, paths: Mapping[str, str]) -> dict[str, Any]:
    """The values with the settings that were given.

    Args:
        settings: The settings.
        paths: By the name of a setting: the path in the pods of what is a path on this machine.

    Raises:
        ConfigurationError: the training directory is a path on this machine.
    """
    given = yaml.safe_load(config.to_yaml(settings))
    train = {name: given[name] for name in given[config.GIVEN] if name not in BY_OTHER_KEYS}
    train |= {name: path for name, path in paths.items() if name != "data_dir"}
    if "model" in settings.given and "model" not in paths:  # a built-in one, or a module that the image has
        train["model"] = settings.model
    found: dict[str, Any] = {"train": train} if train else {}
    if "data_dir" in settings.given:
        found["data"] = {"uri": paths.get("data_dir", settings.data_dir)}
    if settings.train_dir:
        if not is_uri(settings.train_dir):
            raise ConfigurationError(
                f"--train_dir: {settings.train_dir} is a path on this machine, but a run in a cluster has a volume; "
                "leave it out, or give a URI on an object store."
            )
        found["trainingDirectory"] = {"uri": settings.train_dir}
    if "grace_seconds" in settings.given:
        found["common"] = {"terminationGracePeriodSeconds": int(settings.grace_seconds) + GRACE_SECONDS}
    return found


def in_config_map(name: str, items: Mapping[str, str]) -> dict[str, Any]:
    """The values that mount a ConfigMap at MOUNT; `items` has the key of each path."""
    entries = [{"key": key, "path": path} for path, key in items.items()]
    volume = {"name": SUBMITTED, "configMap": {"name": name, "items": entries}}
    mount = {"name": SUBMITTED, "mountPath": MOUNT, "readOnly": True}
    return {"common": {"extraVolumes": [volume], "extraVolumeMounts": [mount]}}


def in_training_volume(folder: str) -> dict[str, Any]:
    """The values with a stage that waits until the files are in this folder of the training volume."""
    script = f'trap "exit 143" TERM; until [ -e "$0/{COMPLETE}" ]; do sleep 0.5; done'
    stage = {
        "name": SUBMITTED,
        "command": ["sh", "-c", script, folder],
        "volumes": ["training"],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "activeDeadlineSeconds": UPLOAD_SECONDS,
    }
    return {"stages": {"before": [stage]}}


def read(paths: Iterable[Path]) -> dict[str, Any]:
    """The values of files, of which later ones take precedence.

    Raises:
        ConfigurationError: a file cannot be read.
    """
    files = [config.read_yaml(path, "--values", "the chart's keys to values") for path in paths]
    return functools.reduce(merged, files, {})


def merged(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """The values with others, which take precedence, as Helm merges them: maps key by key."""
    both = {
        key: merged(values[key], other) if isinstance(other, dict) and isinstance(values.get(key), dict) else other
        for key, other in others.items()
    }
    return {**values, **both}


def without(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """The values without what others have too, so that they do not replace it in a file after theirs."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key not in others:
            found[key] = value
        elif isinstance(value, dict) and isinstance(others[key], dict) and (rest := without(value, others[key])):
            found[key] = rest
    return found


def before(code: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The lists of `in_config_map` or `in_training_volume`, each with the user's own list behind it.

    A role whose own list replaces that of `common` has both too.
    """
    found: dict[str, Any] = {}
    for section, keys in code.items():
        for key, entries in keys.items():
            roles = [role for role in ROLES if (given.get(role) or {}).get(key)] if section == "common" else []
            for each in (section, *roles):
                found.setdefault(each, {})[key] = [*entries, *((given.get(each) or {}).get(key) or [])]
    return found
