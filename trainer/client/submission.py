"""Submits a run: packs the model's files, installs the chart, and hands the files over.

Before anything is installed, the settings are checked, and the model's file is loaded from the packed files alone.
"""

import contextlib
import importlib.util
import json
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer import config, mode
from trainer.client import bundle as bundles
from trainer.client import chart, values
from trainer.client.bundle import Bundle
from trainer.client.cluster import Cluster
from trainer.client.following import wait_for_stage
from trainer.client.runs import INSTANCE, OF_CHART
from trainer.client.values import CODE, COMPLETE, MOUNT, Tasks
from trainer.config import Settings
from trainer.errors import ConfigurationError
from trainer.storage.object_store import is_uri
from trainer.text.yaml_text import dump

NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LONGEST_NAME = 40
UPLOAD_WAIT_SECONDS = 600.0
"""How long the pod that takes large files may need to start."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Submission:
    """What is submitted: all that is known without the cluster."""

    name: str
    values: Mapping[str, Any]
    """What the options determine, unless the user's own files do."""
    files: Sequence[Path]
    """The user's own values files, which come before these values."""
    given: Mapping[str, Any]
    """Their content."""
    bundle: Bundle | None
    folder: str
    """The folder in the pods with the files of the bundle."""

    @property
    def is_uploaded(self) -> bool:
        """Whether the files go to the training volume, and not into a ConfigMap."""
        return self.bundle is not None and not self.bundle.is_small

    @property
    def config_map(self) -> str:
        """The name of the ConfigMap with the files."""
        return f"{self.name}-{CODE}"

    def to_yaml(self) -> str:
        """The values as a file for helm."""
        return dump(self.values)


def prepare(
    settings: Settings,
    tasks: Tasks,
    name: str | None = None,
    values_files: Sequence[Path] = (),
    registry: str | None = None,
) -> Submission:
    """What is to be submitted.

    Args:
        settings: Those of the run. Only those that were given go into the values.
        tasks: The tasks.
        name: That of the run (default: the model's, and four random digits).
        values_files: More values of the chart, which take precedence.
        registry: That of the packaged images.

    Raises:
        ConfigurationError: the settings, the tasks or the name are wrong, or a file cannot be read.
    """
    mode.check_roles("--ps", settings.strategy, tasks.ps, tasks.workers + tasks.chief)
    name = _checked(name) if name else _new_name(settings.model)
    given = values.read(values_files)
    local = _local_paths(settings)
    model = local.get("model")
    bundle = bundles.collect(model, [path for path in local.values() if path != model]) if local else None
    folder = _folder(bundle, values.merged(values.of_settings(settings, {}), given)) if bundle else ""
    paths = {setting: _join(folder, bundle.names[path]) for setting, path in local.items()} if bundle else {}
    found = values.merged(values.of_tasks(tasks), values.of_settings(settings, paths))
    if registry:
        found = values.merged(found, {"image": {"registry": registry}})
    found = values.without(found, given)
    if bundle:
        own = values.in_config_map(f"{name}-{CODE}", bundle.keys())
        code = own if bundle.is_small else values.in_training_volume(folder)
        found = values.merged(found, values.before(code, given))
    return Submission(name, found, values_files, given, bundle, folder)


def _checked(name: str) -> str:
    if NAME.fullmatch(name) and len(name) <= LONGEST_NAME:
        return name
    raise ConfigurationError(
        f"--name: {name!r} was given, but a name has at most {LONGEST_NAME} lower-case letters, digits and dashes, and "
        "begins with a letter."
    )


def _new_name(model: str) -> str:
    path = Path(model)
    stem = path.parent.name if path.name == "model.py" else path.stem.rpartition(".")[2] or path.stem
    word = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[: LONGEST_NAME - 7]
    return f"{word if word[:1].isalpha() else 'run'}-{secrets.token_hex(2)}".replace("--", "-")


def _local_paths(settings: Settings) -> dict[str, Path]:
    """The paths on this machine that the settings name, by setting."""
    found: dict[str, Path] = {}
    if settings.model not in config.BUILT_IN_MODELS:
        config.check_model(settings.model)
        path = Path(settings.model).resolve()
        if path.exists():
            found["model"] = path
    if settings.initial_weights:
        found["initial_weights"] = settings.initial_weights.resolve()
    if "data_dir" in settings.given and not is_uri(settings.data_dir):
        path = Path(settings.data_dir).resolve()
        if path.exists():
            found["data_dir"] = path
        elif not settings.data_dir.startswith("/"):
            raise ConfigurationError(
                f"--data: there is no {settings.data_dir} on this machine; name a file or folder, the URI of an object "
                "store, or the absolute path in the pods of a volume that --values mounts."
            )
    for setting, path in found.items():
        if not path.exists():
            raise ConfigurationError(f"--{setting}: there is no {path}.")
    return found


def _folder(bundle: Bundle, given: Mapping[str, Any]) -> str:
    """Where the pods have the files of the bundle."""
    if bundle.is_small:
        return MOUNT
    directory = given.get("trainingDirectory") or {}
    if directory.get("uri"):
        raise ConfigurationError(
            f"the files that go along ({bundle}) are too large for a ConfigMap, so they go to the training volume, but "
            "train_dir is on an object store; put the data there too, and name its URI with --data."
        )
    return f"{directory.get('path', '/training')}/{values.UPLOADS}/{bundle.digest}"


def _join(folder: str, name: str) -> str:
    return folder if name == "." else f"{folder}/{name}"


def check_model(submission: Submission, settings: Settings) -> bool:
    """Load the model's file from the packed files alone, in a process of its own, if TensorFlow is installed here.

    Returns:
        Whether it was loaded.

    Raises:
        ConfigurationError: it cannot be loaded, or needs a file that is not packed.
    """
    bundle = submission.bundle
    path = Path(settings.model).resolve()
    if bundle is None or path not in bundle.names or importlib.util.find_spec("tensorflow") is None:
        return False
    with tempfile.TemporaryDirectory() as copy:
        bundle.copy_to(Path(copy))
        words = [_join(copy, bundle.names[path]), settings.model_arguments]
        command = [sys.executable, "-m", "trainer.models", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=copy)
        if done.returncode:
            lines = [line.replace(f"{copy}/", "") for line in done.stderr.splitlines() if line.strip()]
            sentence = lines[-1].removeprefix("trainer: ") if lines else f"it ends with code {done.returncode}"
            raise ConfigurationError(
                f"{sentence.rstrip('.')}; nothing was installed; if the image has what this machine lacks, add "
                "--skip_check."
            )
    return True


def install(cluster: Cluster, submission: Submission, say: Say) -> None:
    """Install the run, and hand its files over.

    Raises:
        ConfigurationError: the name is taken, a right is missing, or the chart refuses the values.
    """
    _check_free(cluster, submission.name)
    if submission.bundle and not submission.is_uploaded:
        _create_config_map(cluster, submission, submission.bundle)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "values.yaml")
        file.write_text(submission.to_yaml(), encoding="utf-8")
        try:
            own = [f"--values={each}" for each in submission.files]
            cluster.helm("install", submission.name, str(chart.path()), *own, f"--values={file}")
        except ConfigurationError:
            with contextlib.suppress(ConfigurationError):
                if cluster.has_release(submission.name):  # an object of it was refused
                    cluster.helm("uninstall", submission.name)
            with contextlib.suppress(ConfigurationError):
                cluster.kubectl("delete", "configmap", submission.config_map, "--ignore-not-found")
            raise
    if submission.bundle and not submission.is_uploaded:
        _bind_config_map(cluster, submission)
    if submission.bundle and submission.is_uploaded:
        _upload(cluster, submission, submission.bundle, say)


def _check_free(cluster: Cluster, name: str) -> None:
    if cluster.has_release(name):
        raise ConfigurationError(
            f"--name: there is a release {name} in the namespace already; choose another name, or delete it with "
            f"trainer delete {name}."
        )


def _create_config_map(cluster: Cluster, submission: Submission, bundle: Bundle) -> None:
    cluster.kubectl("delete", "configmap", submission.config_map, "--ignore-not-found")  # of a submission that was cut
    content = bundle.config_map(submission.config_map, OF_CHART | {INSTANCE: submission.name})
    cluster.kubectl("create", "--filename=-", text=json.dumps(content))


def _bind_config_map(cluster: Cluster, submission: Submission) -> None:
    """Let `helm uninstall` delete the ConfigMap: the supervisor's notes own it. A run without a supervisor has none."""
    if (submission.given.get("supervisor") or {}).get("enabled") is False:
        return
    notes = f"{submission.given.get('fullnameOverride') or submission.name}-run"
    uid = cluster.kubectl("get", "configmap", notes, "--output=jsonpath={.metadata.uid}")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": notes, "uid": uid}
    patch = json.dumps({"metadata": {"ownerReferences": [owner]}})
    cluster.kubectl("patch", "configmap", submission.config_map, "--type=merge", f"--patch={patch}")


def _upload(cluster: Cluster, submission: Submission, bundle: Bundle, say: Say) -> None:
    """Write the files to the training volume, through the pod of the stage that waits for them."""
    say(f"copying {bundle} to the training volume")
    pod = wait_for_stage(cluster, submission.name, CODE, UPLOAD_WAIT_SECONDS, say)
    if not pod:  # the volume of an earlier run has these files
        return
    part = f"{submission.folder}.part"
    script = f'rm -rf "$1" && mkdir -p "$1" && tar xf - -C "$1" && rm -rf "$0" && mv "$1" "$0" && touch "$0/{COMPLETE}"'
    words = ("exec", "--stdin", pod, "--", "sh", "-c", script, submission.folder, part)
    with tempfile.TemporaryFile() as file:
        bundle.write_tar(file)
        file.seek(0)
        cluster.pipe(*words, stdin=file)
