"""Watches of the run's objects. Each runs in a thread of its own, and puts what it sees into the supervisor's queue."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import httpx2
import msgspec
from lightkube.models.meta_v1 import ObjectMeta, Status
from lightkube.operators import not_in
from lightkube.resources.apps_v1 import Deployment, StatefulSet
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Event, Pod

from trainer.cluster.spec import ROLES
from trainer.supervisor import kueue_api, pods, stages
from trainer.supervisor.changes import (
    Changes,
    PodChanged,
    PodsListed,
    ScalesObserved,
    StagesObserved,
    WarningReported,
    WatchFailed,
)
from trainer.supervisor.connection import UNAVAILABLE, WATCH_SECONDS, Backoff, Connection, StoppedError
from trainer.supervisor.run import Run

WARNINGS = ("FailedMount", "FailedAttachVolume", "FailedCreate", "FailedCreatePodSandBox")
"""Reasons of events that explain why a task does not run, and that no status has."""
COMMON = ("BackOff", "Evicted", "Failed", "FailedScheduling", "NodeNotReady", "Unhealthy")
"""Reasons of most warnings, which statuses tell too: the other runs of a namespace may have many of them."""
PAGE = 100
"""How many pods or events an answer has at most: all those of a large run at once would take much memory."""


_Watch = Callable[[Run, Connection, Changes], None]


class _Named(Protocol):
    @property
    def metadata(self) -> ObjectMeta | None: ...


def start(run: Run, connection: Connection, changes: Changes) -> None:
    """Put changes of the run's pods and scales, and its warnings, into the queue without end.

    Each watch begins with a list, and again after the API server was unavailable or the watch expired.
    """
    for kind in (Pod, Event, ConfigMap, Job, Status, StatefulSet, Deployment, StatefulSet.Scale, Deployment.Scale):
        # msgspec, which lightkube decodes with, analyses a type at first use. Python crashes if two threads do so.
        msgspec.json.Decoder(kind)
    watches: list[_Watch] = [_pods, _warnings]
    stateful_sets = {run.stateful_set(role): role for role, values in run.roles.items() if not values.job}
    jobs = {values.job: role for role, values in run.roles.items() if values.job}
    deployments = {f"{run.fullname}-tensorboard": "tensorboard"} if run.tensorboard else {}
    for kind, components, scale in (
        (StatefulSet, stateful_sets, _replicas),
        (Deployment, deployments, _replicas),
        (Job, jobs, _active),
    ):
        watches += [_scales(kind, name, component, scale) for name, component in components.items()]
    if run.stages.all:
        watches.append(_stages)
    if run.is_queued:
        watches.append(kueue_api.watch)
    for watch in watches:
        threading.Thread(target=_watch_forever, args=(watch, run, connection, changes), daemon=True).start()


def task_labels(run: Run) -> dict[str, Any]:
    """The labels of the run's tasks, including tasks of a role that the run no longer has."""
    return _labels(run, [*ROLES, "client"])


def _labels(run: Run, components: Sequence[str]) -> dict[str, Any]:
    """The labels of the run's objects with one of these components."""
    return {
        "app.kubernetes.io/name": run.chart,
        "app.kubernetes.io/instance": run.release,
        "app.kubernetes.io/component": components,
    }


def _pods(run: Run, connection: Connection, changes: Changes) -> None:
    labels = task_labels(run)
    listed = connection.client.list(Pod, labels=labels, chunk_size=PAGE)
    changes.put(PodsListed([pod for pod in map(pods.observe, listed) if run.is_task(pod.name)]))
    for kind, pod in connection.client.watch(
        Pod, labels=labels, resource_version=listed.resourceVersion, server_timeout=WATCH_SECONDS
    ):
        observed = pods.observe(pod)
        if run.is_task(observed.name):
            changes.put(PodChanged(kind, observed))


def _warnings(run: Run, connection: Connection, changes: Changes) -> None:
    fields: dict[str, Any] = {"type": "Warning", "reason": not_in(COMMON)}

    def put(events: Iterable[Event]) -> None:
        for event in events:
            about = event.involvedObject.name or ""
            if event.reason in WARNINGS and about.startswith(f"{run.fullname}-"):
                changes.put(WarningReported(event))

    listed = connection.client.list(Event, fields=fields, chunk_size=PAGE)
    put(listed)
    put(
        event
        for _, event in connection.client.watch(
            Event, fields=fields, resource_version=listed.resourceVersion, server_timeout=WATCH_SECONDS
        )
    )


def _scales(kind: Any, name: str, component: str, scale: Callable[[Any], int]) -> _Watch:
    """A watch of one object. A namespace may have hundreds of runs, and each would see the objects of all others."""

    def watch(run: Run, connection: Connection, changes: Changes) -> None:
        def put(item: Any | None) -> None:
            scales = {} if item is None else {component: scale(item)}
            templates = {component: _template(item, component)} if isinstance(item, StatefulSet) else {}
            changes.put(ScalesObserved(frozenset({component}), scales, templates))

        fields: dict[str, Any] = {"metadata.name": name}
        listed = connection.client.list(kind, fields=fields)
        put(next(iter(listed), None))
        for change, item in connection.client.watch(
            kind, fields=fields, resource_version=listed.resourceVersion, server_timeout=WATCH_SECONDS
        ):
            put(None if change == "DELETED" else item)

    return watch


def _stages(run: Run, connection: Connection, changes: Changes) -> None:
    names = {stage.job: stage.name for stage in run.stages.all}

    def put() -> None:
        changes.put(StagesObserved(dict(jobs)))

    labels = _labels(run, ["stage"])
    listed = connection.client.list(Job, labels=labels)
    jobs = {names[_name(job)]: stages.observe(job) for job in listed if _name(job) in names}
    put()
    for change, job in connection.client.watch(
        Job, labels=labels, resource_version=listed.resourceVersion, server_timeout=WATCH_SECONDS
    ):
        if stage := names.get(_name(job)):
            jobs.pop(stage, None)
            if change != "DELETED":
                jobs[stage] = stages.observe(job)
            put()


def _name(item: _Named) -> str:
    return (item.metadata and item.metadata.name) or ""


def _replicas(item: StatefulSet | Deployment) -> int:
    return (item.spec and item.spec.replicas) or 0


def _template(item: StatefulSet, role: str) -> pods.Template:
    spec = item.spec.template.spec if item.spec else None
    return pods.Template((item.status and item.status.updateRevision) or "", pods.run_hash_in(spec, role))


def _active(job: Job) -> int:
    return 0 if job.spec and job.spec.suspend else 1


def _watch_forever(watch: _Watch, run: Run, connection: Connection, changes: Changes) -> None:
    backoff = Backoff(connection)
    try:
        while True:
            try:
                watch(run, connection, changes)
            except UNAVAILABLE as error:  # the server is unavailable, or the resource version has expired (410 Gone)
                # lightkube leaves it open, and the connections of its pool run out. An error in the stream has none.
                if isinstance(error, httpx2.HTTPStatusError) and error.response is not None:
                    error.response.close()
                backoff.wait(error)
    except StoppedError:
        return
    except Exception as error:
        changes.put(WatchFailed(error))
        raise
