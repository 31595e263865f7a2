"""The files of a run: copies them from its training volume or its object store, and reads the logs that it has saved.

The volume is read in a pod that mounts it: TensorBoard's, that of a task, or one that is made for this.
"""

import contextlib
import json
import secrets
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.client import runs
from trainer.client.cluster import Cluster
from trainer.client.runs import COMPONENT, INSTANCE, OF_CHART
from trainer.errors import ConfigurationError
from trainer.storage.object_store import ObjectStore
from trainer.text import truncate

CHECKPOINTS = ("model.ckpt-*", "checkpoint", "best", "callbacks.npz")
"""Those of a training directory, as `tar` and `fnmatch` take patterns."""
IN_PROGRESS = (".candidate", ".saving", ".evaluating", ".publishing", ".code", "lost+found")
"""What belongs to a process that runs, or was copied there."""
READER_SECONDS = 3600
"""How long a pod lives that is made to read a volume."""


@dataclass(frozen=True)
class Place:
    """Where a pod has the training directory."""

    pod: str
    container: str
    path: str

    def exec(self, *command: str) -> tuple[str, ...]:
        """The words of kubectl that run a command there."""
        return ("exec", self.pod, f"--container={self.container}", "--", *command)


def fetch(cluster: Cluster, name: str, folder: Path, with_checkpoints: bool = False) -> list[str]:
    """Copy the files of a run into a folder: result, settings, exported models, curves and logs.

    Args:
        cluster: The cluster.
        name: The run.
        folder: The folder. Files with the same names are replaced.
        with_checkpoints: Whether to copy the checkpoints too.

    Returns:
        The names of the files.

    Raises:
        ConfigurationError: the run has no files, or the folder cannot be written, or what `Cluster.kubectl` raises.
        StoreError: the object store does not respond.
    """
    left_out = [*IN_PROGRESS, *([] if with_checkpoints else CHECKPOINTS)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if uri := _values(cluster, name).get("trainingDirectory", {}).get("uri"):
            return _from_store(uri, folder, left_out)
        with _place(cluster, name) as place:
            return _from_pod(cluster, place, folder, left_out)
    except OSError as error:
        raise ConfigurationError(f"{error.filename or folder} cannot be written ({error.strerror}).") from None


def read_result(cluster: Cluster, name: str) -> dict[str, Any]:
    """The content of result.json of a run.

    Raises:
        ConfigurationError: there is none, or what `Cluster.kubectl` raises.
        StoreError: the object store does not respond.
    """
    if uri := _values(cluster, name).get("trainingDirectory", {}).get("uri"):
        found: bytes | str = ObjectStore(uri, "trainingDirectory.uri").read("result.json") or "{}"
    else:
        with _place(cluster, name) as place:
            found = cluster.kubectl(*place.exec("cat", f"{place.path}/result.json"))
    return dict(json.loads(found))


def read_log(cluster: Cluster, name: str, task: str) -> str:
    """The saved log of a task, such as worker-1.

    Raises:
        ConfigurationError: there is none, or what `Cluster.kubectl` raises.
    """
    if uri := _values(cluster, name).get("trainingDirectory", {}).get("uri"):
        raise ConfigurationError(f"{task} has no pod any more, and the logs of a run at {uri} end with its pods.")
    with _place(cluster, name) as place:
        try:
            return cluster.kubectl(*place.exec("cat", f"{place.path}/logs/{task}.log"))
        except ConfigurationError as error:
            if "No such file" in str(error):
                raise ConfigurationError(f"the run {name} has no log of {task}, nor a pod of it.") from None
            raise


def _values(cluster: Cluster, name: str) -> dict[str, Any]:
    """The values of a run that were given."""
    runs.release_of(cluster, name)
    return dict(json.loads(cluster.helm("get", "values", name, "--output=json")) or {})


def _from_pod(cluster: Cluster, place: Place, folder: Path, left_out: Sequence[str]) -> list[str]:
    excluded = [f"--exclude=./{pattern}" for pattern in left_out]
    # It ends with code 1 if a task has written a file meanwhile.
    words = place.exec("sh", "-c", 'tar "$@" || [ $? -eq 1 ]', "tar", "cf", "-", "-C", place.path, *excluded, ".")
    with tempfile.TemporaryFile(dir=folder) as file:
        cluster.pipe(*words, stdout=file)
        file.seek(0)
        try:
            with tarfile.open(fileobj=file) as archive:
                archive.extractall(folder, filter=_without_links)  # noqa: S202 - it is the data filter
                return [entry.name.removeprefix("./") for entry in archive if entry.isfile()]
        except tarfile.TarError as error:
            raise ConfigurationError(f"the files of the run cannot be unpacked ({error}); try again.") from None


def _without_links(entry: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """The entry as `tarfile.data_filter` has it; None for a link that leads out of the folder."""
    try:
        return tarfile.data_filter(entry, folder)
    except tarfile.FilterError:
        return None


def _from_store(uri: str, folder: Path, left_out: Sequence[str]) -> list[str]:
    store = ObjectStore(uri, "trainingDirectory.uri")
    names = [each for each in store.names() if not any(Path(each.split("/")[0]).match(word) for word in left_out)]
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        store.download(name, file)
    return names


@contextlib.contextmanager
def _place(cluster: Cluster, name: str) -> Iterator[Place]:
    """A running container that mounts the training volume of a run; one is made if there is none."""
    objects = cluster.items("pods,deployments,statefulsets", OF_CHART | {INSTANCE: name})
    by_tensorboard = sorted(objects, key=lambda each: each["metadata"]["labels"].get(COMPONENT) != "tensorboard")
    for each in by_tensorboard:
        is_there = each["kind"] == "Pod" and each["status"].get("phase") == "Running"
        if is_there and "deletionTimestamp" not in each["metadata"] and (found := _mount(each["spec"])):
            yield Place(each["metadata"]["name"], *found)
            return
    templates = [each["spec"]["template"]["spec"] for each in by_tensorboard if each["kind"] != "Pod"]
    template, mount = next(((each, found) for each in templates if (found := _mount(each))), (None, None))
    if template is None or mount is None:
        raise ConfigurationError(
            f"there is no run {name} in the namespace that has a training volume: trainer runs lists the runs."
        )
    pod = f"{truncate(name, 40)}-fetch-{secrets.token_hex(2)}"
    try:
        cluster.kubectl("create", "--filename=-", text=json.dumps(_reader(pod, name, template, mount[0])))
        cluster.kubectl("wait", "--for=condition=Ready", "--timeout=120s", f"pod/{pod}")
        yield Place(pod, *mount)
    finally:
        with contextlib.suppress(ConfigurationError):
            cluster.kubectl("delete", "pod", pod, "--wait=false", "--ignore-not-found")


def _mount(spec: dict[str, Any]) -> tuple[str, str] | None:
    """The container of a pod that mounts the training volume, and the path."""
    for container in spec["containers"]:
        for mount in container.get("volumeMounts", []):
            if mount["name"] == "training":
                return container["name"], mount["mountPath"]
    return None


def _reader(pod: str, name: str, template: dict[str, Any], container: str) -> dict[str, Any]:
    """A pod that mounts the training volume as a container of this template, and only sleeps."""
    original = next(each for each in template["containers"] if each["name"] == container)
    mounts = [each for each in original["volumeMounts"] if each["name"] == "training"]
    kept = ("securityContext", "imagePullSecrets", "nodeSelector", "tolerations")
    spec = {key: template[key] for key in kept if key in template} | {
        "containers": [
            {
                "name": container,
                "command": ["sleep", str(READER_SECONDS)],
                "volumeMounts": mounts,
                "resources": {kind: {"cpu": "100m", "memory": "128Mi"} for kind in ("requests", "limits")},
                **{key: original[key] for key in ("image", "imagePullPolicy", "securityContext") if key in original},
            }
        ],
        "volumes": [each for each in template["volumes"] if each["name"] == "training"],
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": READER_SECONDS,
        "terminationGracePeriodSeconds": 0,
    }
    labels = {INSTANCE: name, COMPONENT: "fetch"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "labels": labels}, "spec": spec}
