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
from trainer.client import chart, runs, values
from trainer.client.bundle import Bundle
from trainer.client.cluster import TEXT, Cluster, UnreachableError
from trainer.client.following import wait_for_stage
from trainer.client.runs import INSTANCE, OF_CHART
from trainer.client.values import COMPLETE, MOUNT, SUBMITTED, Tasks
from trainer.config import Settings
from trainer.errors import ConfigurationError
from trainer.storage.object_store import is_uri
from trainer.text.yaml_text import dump

NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LONGEST_NAME = 40
UPLOAD_WAIT_SECONDS = 600.0
"""How long the pod for large files may need to start."""
CHECK_SECONDS = 300.0
"""How long the import of a model's file may take."""
USED = re.compile("re-?use a name|release: already exists")
"""What helm says of a name that has a release."""
ROLES = "roles.rbac.authorization.k8s.io"

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
    config_map: str
    """The name of the ConfigMap with the files, which no other submission has."""

    @property
    def is_uploaded(self) -> bool:
        """Whether the files go to the training volume, and not into a ConfigMap."""
        return self.bundle is not None and self.folder != MOUNT

    @property
    def fullname(self) -> str:
        """The prefix of the names of its objects."""
        return str(self.given.get("fullnameOverride") or self.name)

    @property
    def has_supervisor(self) -> bool:
        """Whether a supervisor starts, watches and ends the run."""
        return (self.given.get("supervisor") or {}).get("enabled") is not False

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
    config.check_count("ps", tasks.ps, 0)
    config.check_count("workers", tasks.workers, 0 if tasks.chief else 1)
    mode.check_roles("--ps", settings.strategy, tasks.ps, tasks.workers + tasks.chief)
    name = _checked(name) if name else _new_name(settings)
    given = values.read(values_files)
    local = _local_paths(settings)
    model = local.get("model")
    bundle = bundles.collect(model, [path for path in local.values() if path != model]) if local else None
    config_map = f"{name}-{SUBMITTED}-{secrets.token_hex(2)}"
    of_tasks = values.of_tasks(tasks)
    if bundle is None:
        folder, paths, code = "", {}, {}
    elif bundle.is_small:
        folder, code = MOUNT, values.in_config_map(config_map, bundle.keys())
    else:
        chosen = values.merged(values.merged(of_tasks, values.of_settings(settings, {})), given)
        folder = _folder_in_volume(bundle, chosen)
        code = values.in_training_volume(folder)
    if bundle:
        paths = {setting: _join(folder, bundle.names[path]) for setting, path in local.items()}
    found = values.merged(of_tasks, values.of_settings(settings, paths))
    if registry:
        found = values.merged(found, {"image": {"registry": registry}})
    found = values.merged(values.without(found, given), values.before(code, given))
    return Submission(name, found, values_files, given, bundle, folder, config_map)


def _checked(name: str) -> str:
    if NAME.fullmatch(name) and len(name) <= LONGEST_NAME:
        return name
    raise ConfigurationError(
        f"--name: {name!r} was given, but a name has at most {LONGEST_NAME} lower-case letters, digits and dashes, and "
        "begins with a letter."
    )


def _new_name(settings: Settings) -> str:
    path = Path(settings.model if "model" in settings.given else settings.data_dir)
    if not settings.given.intersection(("model", "data_dir")):
        path = Path(settings.dataset or "digits")
    stem = path.parent.name if path.name == "model.py" else path.stem.rpartition(".")[2] or path.stem
    word = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[: LONGEST_NAME - 7]
    return f"{word if word[:1].isalpha() else 'run'}-{secrets.token_hex(2)}".replace("--", "-")


def _local_paths(settings: Settings) -> dict[str, Path]:
    """The paths on this machine that the settings name, by setting."""
    found: dict[str, Path] = {}
    if settings.model not in config.BUILT_IN_MODELS:
        config.check_model(settings.model)
        path = Path(settings.model).resolve()
        module = Path(settings.model.replace(".", "/"))
        if path.exists():
            found["model"] = path
        elif own := next((each for each in (module.with_suffix(".py"), module) if each.exists()), None):
            raise ConfigurationError(
                f"model={settings.model}: it names a module, which is not packed; name the path, --model {own}."
            )
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


def _folder_in_volume(bundle: Bundle, chosen: Mapping[str, Any]) -> str:
    """Where the training volume has the files of a large bundle.

    Raises:
        ConfigurationError: not every replica mounts it.
    """
    directory = chosen.get("trainingDirectory") or {}
    large = f"the files to pack ({bundle}) are too large for a ConfigMap, so they go to the training volume, but"
    if directory.get("uri"):
        raise ConfigurationError(
            f"{large} train_dir is on an object store; put the data there too, and name its URI with --data."
        )
    is_shared = (directory.get("nfs") or {}).get("server") or "ReadWriteMany" in (directory.get("accessModes") or ())
    if (chosen.get("chief") or {}).get("replicas") and not is_shared:
        raise ConfigurationError(
            f"{large} with a chief no other task mounts that; leave out --chief, or set trainingDirectory.accessModes "
            "to [ReadWriteMany] in a file of --values."
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
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        bundle.copy_to(copy)
        words = [_join(str(copy), bundle.names[path]), settings.model_arguments]
        command = [sys.executable, "-m", "trainer.models", *words]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, cwd=folder, timeout=CHECK_SECONDS, **TEXT
            )
        except subprocess.TimeoutExpired:
            raise ConfigurationError(
                f"model={settings.model}: its import takes more than {CHECK_SECONDS:.0f} s; nothing was installed; add "
                "--skip_check if the cluster shall wait for it."
            ) from None
        if done.returncode:
            lines = [line.replace(f"{copy}/", "") for line in done.stderr.splitlines() if line.strip()]
            sentence = lines[-1].removeprefix("trainer: ") if lines else f"it ends with code {done.returncode}"
            raise ConfigurationError(
                f"{sentence.rstrip('.')}; nothing was installed; if the image has what this machine lacks, add "
                "--skip_check."
            )
    return True


def install(cluster: Cluster, submission: Submission, say: Say = lambda line: None) -> None:
    """Install the run, and copy its files to the cluster.

    Raises:
        ConfigurationError: the name is taken, a right is missing, or the chart refuses the values; then nothing is
            left. Or the files cannot be copied; then the sentence says that the run is installed.
    """
    name, bundle = submission.name, submission.bundle
    claims = runs.claims_of(cluster, name)
    if bundle and not submission.is_uploaded:
        content = bundle.config_map(submission.config_map, OF_CHART | {INSTANCE: name, **runs.SUBMITTED})
        cluster.kubectl("create", "--filename=-", text=json.dumps(content))
    try:
        _install_chart(cluster, submission)
    except UnreachableError:  # it may be installed
        raise
    except ConfigurationError as error:
        _remove_config_map(cluster, submission)
        if USED.search(str(error)):
            raise _taken(name) from None
        _remove_release(cluster, name, claims)
        if ROLES not in str(error):
            raise
        raise ConfigurationError(
            f"{str(error).rstrip('.')}; without the right to create Roles, name a service account for the supervisor "
            "in supervisor.serviceAccount.name, in a file of --values, as docs/submit.md says."
        ) from None
    try:
        if bundle and not submission.is_uploaded:
            _bind_config_map(cluster, submission)
        elif bundle:
            _upload(cluster, submission, bundle, say)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{str(error).rstrip('.')}; the run {name} is installed: trainer delete {name} removes it."
        ) from None


def check_free(cluster: Cluster, submission: Submission) -> None:
    """Check that the cluster answers, and has no release of this name.

    Raises:
        ConfigurationError: there is one, or what `Cluster.helm` raises.
    """
    if cluster.release(submission.name):
        raise _taken(submission.name)


def _taken(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"--name: there is a release {name} in the namespace already; choose another name, or delete it with trainer "
        f"delete {name}."
    )


def _install_chart(cluster: Cluster, submission: Submission) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "values.yaml")
        file.write_text(submission.to_yaml(), encoding="utf-8")
        own = [f"--values={each}" for each in submission.files]
        cluster.helm("install", submission.name, str(chart.path()), *own, f"--values={file}")


def _remove_config_map(cluster: Cluster, submission: Submission) -> None:
    with contextlib.suppress(ConfigurationError):
        cluster.kubectl("delete", "configmap", submission.config_map, "--ignore-not-found")


def _remove_release(cluster: Cluster, name: str, claims: Sequence[str]) -> None:
    """Remove what an installation that failed has left, but for claims of earlier runs."""
    with contextlib.suppress(ConfigurationError):
        if cluster.release(name):
            cluster.helm("uninstall", name)
        if new := [claim for claim in runs.claims_of(cluster, name) if claim not in claims]:
            runs.delete_claims(cluster, name, new)


def _bind_config_map(cluster: Cluster, submission: Submission) -> None:
    """Let `helm uninstall` delete the ConfigMap: the supervisor's notes own it. A run without a supervisor has none."""
    if not submission.has_supervisor:
        return
    notes = f"{submission.fullname}-run"
    uid = cluster.kubectl("get", "configmap", notes, "--output=jsonpath={.metadata.uid}")
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": notes, "uid": uid}
    patch = json.dumps({"metadata": {"ownerReferences": [owner]}})
    cluster.kubectl("patch", "configmap", submission.config_map, "--type=merge", f"--patch={patch}")


def _upload(cluster: Cluster, submission: Submission, bundle: Bundle, say: Say) -> None:
    """Write the files to the training volume, through the pod of the stage that waits for them."""
    say(f"copying {bundle} to the training volume")
    prefix = f"{submission.fullname}-stage-{SUBMITTED}-"
    pod = wait_for_stage(cluster, submission.name, prefix, UPLOAD_WAIT_SECONDS, say)
    if not pod:  # the volume of an earlier run has these files
        return
    part = f"{submission.folder}.{secrets.token_hex(4)}"
    script = f'mkdir -p "$1" && tar xf - -C "$1" && rm -rf "$0" && mv "$1" "$0" && touch "$0/{COMPLETE}"'
    words = ("exec", "--stdin", pod, "--", "sh", "-c", script, submission.folder, part)
    with tempfile.TemporaryFile() as file:
        bundle.write_tar(file)
        file.seek(0)
        cluster.pipe(*words, stdin=file)
