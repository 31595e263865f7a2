"""The supervisor's hands: everything that it reads from and writes to the Kubernetes API, and nothing else does.

Reads: pods, their logs, and events of the namespace. Writes: the scale of the run's StatefulSets, whether the client's
Job is suspended, the data of the ConfigMap STEM-run, and events. lightkube does the talking: it has a tenth of the size
of Kubernetes' own client, and reads a service account's token anew when that has been changed.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, TypeVar

import httpx2
from lightkube import ApiError, Client, ConfigError, KubeConfig
from lightkube.config import client_adapter
from lightkube.models.core_v1 import EventSource, ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import StatefulSet
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Event, Pod
from lightkube.types import PatchType

from trainer.errors import ConfigurationError
from trainer.supervision.run import Run

Change = tuple[str, Any]
"""("LIST", all pods there are), (ADDED, MODIFIED or DELETED, a pod), ("EVENT", an event), or ("STOP", None)."""
Changes = queue.SimpleQueue[Change]
"""Simple, because a signal's handler puts into it while the same thread may be taking from it."""

_WATCH_SECONDS = 240
_Result = TypeVar("_Result")


class Cluster:
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
        # For what lightkube's log() has no word: what a container said before it was started again.
        self._raw = client_adapter.Client(config, client_adapter.ConnectionParams(timeout=httpx2.Timeout(30)))

    def follow(self, changes: Changes) -> None:
        """Put into the queue what happens to the run's pods, and the namespace's warnings, for ever, by two threads.

        Each begins with all that there is, and again when the API server was away or has forgotten where we were.
        """
        labels: dict[str, Any] = {
            "app.kubernetes.io/instance": self.run.release,
            "app.kubernetes.io/component": list(self.run.roles),
        }

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
            threading.Thread(target=_for_ever, args=(follow,), daemon=True).start()

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

    def read_notes(self) -> dict[str, str]:
        """The data of the run's ConfigMap."""
        return dict(_insist(lambda: self._client.get(ConfigMap, f"{self.run.stem}-run")).data or {})

    def write_notes(self, change: Mapping[str, str | None]) -> None:
        """Change the data of the run's ConfigMap; None removes a key."""
        name, patch = f"{self.run.stem}-run", {"data": dict(change)}
        _insist(lambda: self._client.patch(ConfigMap, name, patch, patch_type=PatchType.MERGE))

    def last_words(self, pod: str, role: str, lines: int) -> list[str]:
        """The last lines that a task said before it ended, or else says now; empty where there are none."""
        address = f"/api/v1/namespaces/{self._client.namespace}/pods/{pod}/log"
        for previous in ("true", "false"):
            parameters = {"container": role, "tailLines": str(lines), "previous": previous}
            try:
                answer = self._raw.get(address, params=parameters)
            except httpx2.HTTPError:
                continue
            if answer.is_success:
                return answer.text.splitlines()
        return []

    def follow_log(self, pod: str, role: str) -> Iterator[str]:
        """What a task says, from now on, until its container ends; nothing where it does not run."""
        try:
            yield from self._client.log(pod, container=role, follow=True, tail_lines=1, newlines=False)
        except httpx2.HTTPError:
            return

    def say_event(self, kind: str, reason: str, message: str) -> None:
        """Make an event about the supervisor's Job; it is a courtesy, so a failure is no error."""
        now = datetime.now(timezone.utc)
        job = ObjectReference(apiVersion="batch/v1", kind="Job", name=self.run.job, namespace=self._client.namespace)
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


def _for_ever(follow: Callable[[], None]) -> None:
    while True:
        try:
            follow()
        except httpx2.HTTPError:  # the server is away, or has forgotten where we were (410 Gone)
            time.sleep(1)


def _insist(call: Callable[[], _Result]) -> _Result:
    """Make a call until it succeeds: the API server may be away for a while.

    Raises:
        ApiError: the server answers that this is wrong, forbidden or absent.
    """
    while True:
        try:
            return call()
        except ApiError as error:
            if 400 <= (error.status.code or 0) < 500 and error.status.code not in (408, 409, 429):
                raise
        except httpx2.HTTPError:
            pass
        time.sleep(1)
