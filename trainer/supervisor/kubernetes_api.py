"""The supervisor's hands: everything that it reads from and writes to the Kubernetes API, and nothing else does.

Reads: pods, their logs, and events of the namespace. Writes: the scale of the run's StatefulSets and of TensorBoard,
whether the client's Job is suspended, the data of the ConfigMap STEM-run, and events. lightkube does the talking: it
has a tenth of the size of Kubernetes' own client, and reads a service account's token anew when that has been changed.
"""

import json
import queue
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
from trainer.supervisor.pods import PARKED
from trainer.supervisor.run import Run

Change = tuple[str, Any]
"""("LIST", all pods there are), (ADDED, MODIFIED or DELETED, a pod), ("EVENT", an event), ("STOP", None), or
("BROKEN", an error): nothing more will come."""
Changes = queue.SimpleQueue[Change]
"""Simple, because a signal's handler puts into it while the same thread may be taking from it."""

_WATCH_SECONDS = 240
_STARTS_SECONDS = 60
_AWAY = (httpx2.HTTPError, json.JSONDecodeError)
"""What calls raise while the API server is away; the second where a proxy before it answers in its stead."""
_NOT_ITS_WORDS = (PARKED, "unable to retrieve container logs for ")
"""What task.sh says in a container that was started again after its task's end, and the kubelet of one that is gone."""
_Result = TypeVar("_Result")


class KubernetesApi:
    """The API of one namespace, as far as one run is concerned."""

    def __init__(self, run: Run) -> None:
        """Find the API server and who we are: in a pod by its service account, else by KUBECONFIG.

        Raises:
            ConfigurationError: there is neither.
        """
        try:
            config = KubeConfig.from_env().get()
        except ConfigError as error:
            raise ConfigurationError(f"no Kubernetes API is to be found: {error}.") from None
        if config is None:
            raise ConfigurationError("no Kubernetes API is to be found: KUBECONFIG names no context.")
        self.run = run
        self._client = Client(config, timeout=httpx2.Timeout(30))
        # lightkube waits for ever on a watch, also where the server's machine has vanished without a word.
        self._client._client._watch_timeout = httpx2.Timeout(30, read=_WATCH_SECONDS + 30)
        # For what lightkube's log() has no word: what a container said before it was started again.
        self._raw = client_adapter.Client(config, client_adapter.ConnectionParams(timeout=httpx2.Timeout(30)))

    def follow(self, changes: Changes) -> None:
        """Put into the queue what happens to the run's pods, and the namespace's warnings, for ever, by two threads.

        Each begins with all that there is, and again when the API server was away or has forgotten where we were.
        """
        for known in (Pod, Event, ConfigMap, Job, Status, StatefulSet.Scale, Deployment.Scale):
            # msgspec, which lightkube reads with, learns a type at first use; threads that do so at once crash Python.
            msgspec.json.Decoder(known)
        labels = self._labels()

        def pods() -> None:
            listed = self._client.list(Pod, labels=labels)
            changes.put(("LIST", list(listed)))
            for change in self._client.watch(
                Pod, labels=labels, resource_version=listed.resourceVersion, server_timeout=_WATCH_SECONDS
            ):
                changes.put(change)

        def warnings() -> None:
            fields: dict[str, Any] = {"type": "Warning"}
            listed = self._client.list(Event, fields=fields)
            for event in listed:
                changes.put(("EVENT", event))
            for _, event in self._client.watch(
                Event, fields=fields, resource_version=listed.resourceVersion, server_timeout=_WATCH_SECONDS
            ):
                changes.put(("EVENT", event))

        for follow in (pods, warnings):
            threading.Thread(target=_for_ever, args=(follow, changes), daemon=True).start()

    def pods(self) -> list[Pod]:
        """The pods of the run's tasks."""
        return _insist(lambda: list(self._client.list(Pod, labels=self._labels())))

    def scale(self, role: str) -> int:
        """How many tasks a role has."""
        if job := self.run.roles[role].job:
            spec = _insist(lambda: self._client.get(Job, job)).spec
            return 0 if spec and spec.suspend else 1
        name = self.run.stateful_set(role)
        found = _insist(lambda: self._client.get(StatefulSet.Scale, name))
        return found.spec.replicas or 0 if found.spec else 0

    def set_scale(self, role: str, replicas: int) -> None:
        """Give a role so many tasks."""
        if job := self.run.roles[role].job:
            suspend = {"spec": {"suspend": replicas == 0}}
            _insist(lambda: self._client.patch(Job, job, suspend, patch_type=PatchType.MERGE))
            return
        name, change = self.run.stateful_set(role), {"spec": {"replicas": replicas}}
        _insist(lambda: self._client.patch(StatefulSet.Scale, name, change, patch_type=PatchType.MERGE))

    def set_tensorboard(self, replicas: int) -> None:
        """Start TensorBoard or end it; where somebody has removed it, that is no matter."""
        name, change = f"{self.run.stem}-tensorboard", {"spec": {"replicas": replicas}}
        try:
            _insist(lambda: self._client.patch(Deployment.Scale, name, change, patch_type=PatchType.MERGE))
        except ApiError as error:
            if error.status.code != 404:
                raise

    def read_notes(self) -> dict[str, str]:
        """The data of the run's ConfigMap."""
        return self._notes().data or {}

    def change_notes(self, change: Callable[[Mapping[str, str]], Mapping[str, str | None]]) -> None:
        """Change the data of the run's ConfigMap, from what they are now; None removes a key."""

        def read_and_write() -> None:
            found = self._notes()
            version = found.metadata and found.metadata.resourceVersion
            # With the version, the API server refuses what somebody else has overtaken (409), and we read again.
            patch = {"metadata": {"resourceVersion": version}, "data": dict(change(found.data or {}))}
            self._client.patch(ConfigMap, f"{self.run.stem}-run", patch, patch_type=PatchType.MERGE)

        _insist(read_and_write)

    def _labels(self) -> dict[str, Any]:
        """What selects the run's tasks, also those of a role that it has no more."""
        return {"app.kubernetes.io/instance": self.run.release, "app.kubernetes.io/component": [*ROLES, "client"]}

    def _notes(self) -> ConfigMap:
        return _insist(lambda: self._client.get(ConfigMap, f"{self.run.stem}-run"))

    def last_words(self, pod: str, role: str, lines: int) -> list[str]:
        """The last lines that a task said before it ended, or else says now; empty where there are none."""
        # Between two questions the container may have been started again, to rest: then the first has an answer.
        for previous in ("true", "false", "true"):
            said = self._log(pod, role, lines, previous)
            if said is not None and not said.startswith(_NOT_ITS_WORDS):
                return said.splitlines()
        return []

    def last_lines(self, pod: str, role: str, lines: int) -> list[str]:
        """The last lines of a task's container, after those of the one before it; empty where there are none."""
        # In this order: a container that ends may be started again between the requests, and is the one before then.
        now = self._log(pod, role, lines, "false") or ""
        before = self._log(pod, role, lines, "true") or ""
        return [*before.splitlines(), *now.splitlines()]

    def last_line(self, pod: str, role: str) -> str:
        """The last line of what a task's container says now, which may only rest; empty where it has not spoken."""
        return self._log(pod, role, 1, "false") or ""

    def _log(self, pod: str, role: str, lines: int, previous: str) -> str | None:
        """The last lines of a container, or of the one before it; None where the API server does not give them."""
        address = f"/api/v1/namespaces/{self._client.namespace}/pods/{pod}/log"
        parameters = {"container": role, "tailLines": str(lines), "previous": previous}
        try:
            answer = self._raw.get(address, params=parameters)
        except httpx2.HTTPError:
            return None
        return answer.text if answer.is_success else None

    def follow_log(self, pod: str, role: str) -> Iterator[str]:
        """What a task says, from now on, until its container ends; nothing where it does not run."""
        try:
            yield from self._client.log(pod, container=role, follow=True, tail_lines=1, newlines=False)
        except httpx2.HTTPError:
            return

    def say_event(self, kind: str, reason: str, message: str) -> None:
        """Make an event about the supervisor's Job; it is a courtesy, so a failure is no error."""
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
            message=message[:1000],
            source=EventSource(component="distributed-tensorflow"),
            firstTimestamp=now,
            lastTimestamp=now,
            count=1,
        )
        try:
            self._client.create(event)
        except httpx2.HTTPError:
            return


def _for_ever(follow: Callable[[], None], changes: Changes) -> None:
    while True:
        try:
            follow()
        except _AWAY:  # the server is away, or has forgotten where we were (410 Gone)
            time.sleep(1)
        except Exception as error:
            changes.put(("BROKEN", error))
            raise


def _insist(call: Callable[[], _Result]) -> _Result:
    """Make a call until it succeeds: the API server may be away for a while.

    Raises:
        ApiError: the server answers that this is wrong or absent, or for a minute that it is forbidden.
    """
    began = time.monotonic()
    while True:
        try:
            return call()
        except ApiError as error:
            code = error.status.code or 0
            # A server that has just started forbids what it will allow when it has read its rules.
            starts = code in (401, 403) and time.monotonic() - began < _STARTS_SECONDS
            if 400 <= code < 500 and code not in (408, 409, 429) and not starts:
                raise
        except _AWAY:
            pass
        time.sleep(1)
