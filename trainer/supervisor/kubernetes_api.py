"""All access of the supervisor to the Kubernetes API. No other module calls the API.

Reads: pods, their logs, and events of the namespace. Writes: the scale of the run's StatefulSets and of TensorBoard,
`suspend` of the client's Job, the data of the ConfigMap FULLNAME-run, and events. The client library is lightkube: it
has a tenth of the size of the official Python client, and reads a service account's token again when it has changed.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, TypeVar

import httpx2
import msgspec
from lightkube import ApiError, Client, ConfigError, KubeConfig
from lightkube.config import client_adapter
from lightkube.models.core_v1 import EventSource, ObjectReference
from lightkube.models.meta_v1 import ObjectMeta, Status
from lightkube.resources.apps_v1 import Deployment, StatefulSet
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Event, Pod
from lightkube.types import PatchType

from trainer.cluster.spec import ROLES
from trainer.errors import ConfigurationError
from trainer.supervisor.changes import Changes, PodChanged, PodsListed, WarningReported, WatchFailed
from trainer.supervisor.pods import parse_parked
from trainer.supervisor.run import Run
from trainer.text import truncate

_WATCH_SECONDS = 240
_FORBIDDEN_GRACE_SECONDS = 60
_UNAVAILABLE = (httpx2.HTTPError, json.JSONDecodeError)
"""What calls raise while the API server is unavailable; the second if a proxy in front of it answers instead."""
_GONE = "unable to retrieve container logs for "
"""The start of the kubelet's answer for a container that is gone."""
_Result = TypeVar("_Result")


class KubernetesApi:
    """The calls that one run needs, in its namespace."""

    def __init__(self, run: Run) -> None:
        """Connect with the pod's service account, or with KUBECONFIG outside a pod.

        Raises:
            ConfigurationError: neither exists.
        """
        try:
            config = KubeConfig.from_env().get()
        except ConfigError as error:
            raise ConfigurationError(
                f"no Kubernetes API found: {error}; run this in a pod with a service account, or set KUBECONFIG."
            ) from None
        if config is None:
            raise ConfigurationError("no Kubernetes API found: KUBECONFIG has no current context; set one.")
        self.run = run
        self._client = Client(config, timeout=httpx2.Timeout(30))
        # By default lightkube waits on a watch without a limit, even if the server's machine has disappeared.
        self._client._client._watch_timeout = httpx2.Timeout(30, read=_WATCH_SECONDS + 30)
        # lightkube's log() cannot read the log of a container's previous instance.
        self._raw = client_adapter.Client(config, client_adapter.ConnectionParams(timeout=httpx2.Timeout(30)))

    def watch(self, changes: Changes) -> None:
        """Put changes of the run's pods, and the namespace's warnings, into the queue without end, by two threads.

        Each thread begins with a list, and again after the API server was unavailable or the watch expired.
        """
        for kind in (Pod, Event, ConfigMap, Job, Status, StatefulSet.Scale, Deployment.Scale):
            # msgspec, which lightkube decodes with, analyses a type at first use. Python crashes if two threads do so.
            msgspec.json.Decoder(kind)
        labels = self._labels()

        def pods() -> None:
            listed = self._client.list(Pod, labels=labels)
            changes.put(PodsListed(list(listed)))
            for kind, pod in self._client.watch(
                Pod, labels=labels, resource_version=listed.resourceVersion, server_timeout=_WATCH_SECONDS
            ):
                changes.put(PodChanged(kind, pod))

        def warnings() -> None:
            fields: dict[str, Any] = {"type": "Warning"}
            listed = self._client.list(Event, fields=fields)
            for event in listed:
                changes.put(WarningReported(event))
            for _, event in self._client.watch(
                Event, fields=fields, resource_version=listed.resourceVersion, server_timeout=_WATCH_SECONDS
            ):
                changes.put(WarningReported(event))

        for watch in (pods, warnings):
            threading.Thread(target=_watch_forever, args=(watch, changes), daemon=True).start()

    def pods(self) -> list[Pod]:
        """The pods of the run's tasks."""
        return _retry(lambda: list(self._client.list(Pod, labels=self._labels())))

    def get_scale(self, role: str) -> int:
        """The replicas of a role."""
        if job := self.run.roles[role].job:
            spec = _retry(lambda: self._client.get(Job, job)).spec
            return 0 if spec and spec.suspend else 1
        name = self.run.stateful_set(role)
        found = _retry(lambda: self._client.get(StatefulSet.Scale, name))
        return found.spec.replicas or 0 if found.spec else 0

    def set_scale(self, role: str, replicas: int) -> None:
        """Set the replicas of a role."""
        if job := self.run.roles[role].job:
            suspend = {"spec": {"suspend": replicas == 0}}
            _retry(lambda: self._client.patch(Job, job, suspend, patch_type=PatchType.MERGE))
            return
        name, change = self.run.stateful_set(role), {"spec": {"replicas": replicas}}
        _retry(lambda: self._client.patch(StatefulSet.Scale, name, change, patch_type=PatchType.MERGE))

    def set_tensorboard_scale(self, replicas: int) -> None:
        """Set the replicas of TensorBoard. An absent Deployment is no error: a user may have deleted it."""
        name, change = f"{self.run.fullname}-tensorboard", {"spec": {"replicas": replicas}}
        try:
            _retry(lambda: self._client.patch(Deployment.Scale, name, change, patch_type=PatchType.MERGE))
        except ApiError as error:
            if error.status.code != 404:
                raise

    def read_notes(self) -> dict[str, str]:
        """The data of the run's ConfigMap."""
        return self._config_map().data or {}

    def update_notes(self, update: Callable[[Mapping[str, str]], Mapping[str, str | None]]) -> None:
        """Update the data of the run's ConfigMap from its current data; None removes a key."""

        def read_and_write() -> None:
            found = self._config_map()
            version = found.metadata and found.metadata.resourceVersion
            # With the version, the API server refuses a concurrent change (409), and the call is retried.
            patch = {"metadata": {"resourceVersion": version}, "data": dict(update(found.data or {}))}
            self._client.patch(ConfigMap, f"{self.run.fullname}-run", patch, patch_type=PatchType.MERGE)

        _retry(read_and_write)

    def _labels(self) -> dict[str, Any]:
        """The labels of the run's tasks, including tasks of a role that the run no longer has."""
        return {
            "app.kubernetes.io/name": self.run.chart,
            "app.kubernetes.io/instance": self.run.release,
            "app.kubernetes.io/component": [*ROLES, "client"],
        }

    def _config_map(self) -> ConfigMap:
        return _retry(lambda: self._client.get(ConfigMap, f"{self.run.fullname}-run"))

    def tail_task_log(self, pod: str, role: str, lines: int) -> list[str]:
        """The last lines of a task before it terminated, or else of its running container; empty if there are none."""
        # Between two requests the container may restart and be parked. The log is then the previous container's.
        for previous in ("true", "false", "true"):
            text = self._read_log(pod, role, lines, previous)
            if text is not None and not text.startswith(_GONE) and not parse_parked(text):
                return text.splitlines()
        return []

    def tail_both_logs(self, pod: str, role: str, lines: int) -> list[str]:
        """The last lines of the previous container, then of the current one; empty if there are none."""
        # In this order: if the container restarts between the two requests, its log is the previous one in the second.
        current = self._read_log(pod, role, lines, "false") or ""
        previous = self._read_log(pod, role, lines, "true") or ""
        return [*previous.splitlines(), *current.splitlines()]

    def tail_current_log(self, pod: str, role: str) -> str:
        """The last line of the current container, which may be parked; empty if it has no output."""
        return self._read_log(pod, role, 1, "false") or ""

    def _read_log(self, pod: str, role: str, lines: int, previous: str) -> str | None:
        """The last lines of a container, or of its previous instance; None if the API server does not return them."""
        address = f"/api/v1/namespaces/{self._client.namespace}/pods/{pod}/log"
        parameters = {"container": role, "tailLines": str(lines), "previous": previous}
        try:
            answer = self._raw.get(address, params=parameters)
        except httpx2.HTTPError:
            return None
        return answer.text if answer.is_success else None

    def follow_log(self, pod: str, role: str) -> Iterator[str]:
        """The lines of a task's log from now on, until its container ends; no line if the container does not run."""
        try:
            yield from self._client.log(pod, container=role, follow=True, tail_lines=1, newlines=False)
        except httpx2.HTTPError:
            return

    def record_event(self, kind: str, reason: str, message: str) -> None:
        """Create an event for the supervisor's Job. Events are best effort, so a failure is ignored."""
        now = datetime.now(timezone.utc)
        job = ObjectReference(
            apiVersion="batch/v1",
            kind="Job",
            name=self.run.job,
            namespace=self._client.namespace,
            uid=self.run.job_uid,
        )
        event = Event(
            metadata=ObjectMeta(generateName=f"{self.run.job}-", namespace=self._client.namespace),
            involvedObject=job,
            type=kind,
            reason=reason,
            message=truncate(message, 1000),
            source=EventSource(component="distributed-tensorflow"),
            firstTimestamp=now,
            lastTimestamp=now,
            count=1,
        )
        try:
            self._client.create(event)
        except httpx2.HTTPError:
            return


def _watch_forever(watch: Callable[[], None], changes: Changes) -> None:
    while True:
        try:
            watch()
        except _UNAVAILABLE:  # the server is unavailable, or the watch's resource version has expired (410 Gone)
            time.sleep(1)
        except Exception as error:
            changes.put(WatchFailed(error))
            raise


def _retry(call: Callable[[], _Result]) -> _Result:
    """Repeat a call until it succeeds, while the API server is unavailable.

    Raises:
        ApiError: the server answers that the request is invalid, that the object is absent, or, for a minute, that the
            request is forbidden.
    """
    started = time.monotonic()
    while True:
        try:
            return call()
        except ApiError as error:
            code = error.status.code or 0
            # A server that has just started forbids every request until it has loaded its RBAC rules.
            starting = code in (401, 403) and time.monotonic() - started < _FORBIDDEN_GRACE_SECONDS
            if 400 <= code < 500 and code not in (408, 409, 429) and not starting:
                raise
        except _UNAVAILABLE:
            pass
        time.sleep(1)
