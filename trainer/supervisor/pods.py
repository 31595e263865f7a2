"""What the status of a task's pod says, reduced to what decides a run. Pure: Kubernetes' objects in, values out."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lightkube.models.core_v1 import ContainerState, PodCondition, PodStatus
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod as KubernetesPod

COMPONENT = "app.kubernetes.io/component"
PARKED = "task: ended with code "
"""So begins what the chart's task.sh says where a task has ended for good and its container was started again."""


@dataclass(frozen=True)
class Ended:
    """How a task's container ended the last time."""

    code: int
    reason: str
    """Kubernetes' own word, such as OOMKilled."""
    at: float
    """Seconds since 1970."""

    def __str__(self) -> str:
        known = "" if self.reason in ("", "Error", "Completed") else f" ({self.reason})"
        return f"code {self.code}{known}"


@dataclass(frozen=True)
class Pod:
    """A task's pod."""

    name: str
    """The task's: a StatefulSet's pod is called as its task is, a client's has that for its host's name."""
    own_name: str
    """The pod's, which its log and its events have."""
    uid: str
    role: str
    run: str
    """The hash of the run that its template is of."""
    created: float
    """Seconds since 1970."""
    placed: bool
    """Whether it has a node."""
    running: bool
    """Whether the task's container runs now; it may only rest."""
    ready: bool
    starts_again: int
    """How often the kubelet has started the container again."""
    ended: Ended | None
    """None also where that is forgotten: the kubelet's garbage collection may remove what it is known by."""
    leaving: bool
    """It is being deleted, or was evicted: what happens to it now is none of the task's doing."""
    problem: str
    """Why it does not run, in Kubernetes' words; empty where it runs, or nothing is known."""


def observe(pod: KubernetesPod) -> Pod:
    """What matters of a pod, from the object as the API server gives it."""
    metadata, status = pod.metadata or ObjectMeta(), pod.status or PodStatus()
    role = (metadata.labels or {})[COMPONENT]
    programs = [container for container in (pod.spec.containers if pod.spec else []) if container.name == role]
    environment = {variable.name: variable.value for program in programs for variable in program.env or []}
    container = next((entry for entry in status.containerStatuses or [] if entry.name == role), None)
    state = (container and container.state) or ContainerState()
    last = (container and container.lastState) or ContainerState()
    ended = state.terminated or last.terminated
    conditions = {entry.type: entry for entry in status.conditions or []}
    return Pod(
        name=(pod.spec and pod.spec.hostname) or metadata.name or "",
        own_name=metadata.name or "",
        uid=metadata.uid or "",
        role=role,
        run=environment.get("TASK_RUN") or "",
        created=_seconds(metadata.creationTimestamp),
        placed=bool(pod.spec and pod.spec.nodeName),
        running=state.running is not None,
        ready="Ready" in conditions and conditions["Ready"].status == "True",
        starts_again=container.restartCount if container else 0,
        ended=Ended(ended.exitCode, ended.reason or "", _seconds(ended.finishedAt)) if ended else None,
        leaving=metadata.deletionTimestamp is not None or status.phase == "Failed",
        problem=_problem(status, conditions),
    )


def is_forgotten(pod: Pod) -> bool:
    """Whether its container runs again, and Kubernetes does not know how it ended before."""
    return pod.running and pod.starts_again > 0 and pod.ended is None


def recall(pod: Pod, says: str, now: float) -> Pod:
    """A forgotten pod with the end of its task, if it says that it rests.

    Args:
        pod: The pod.
        says: Its container's last line.
        now: Seconds since 1970.
    """
    found = re.match(rf"{PARKED}(\d+) and rests", says)
    return dataclasses.replace(pod, ended=Ended(int(found[1]), "", now)) if found else pod


def apply(there: Mapping[str, Pod], kind: str, found: Any) -> dict[str, Pod]:
    """The pods after a change, by their tasks.

    Args:
        there: The pods before it.
        kind: LIST, ADDED, MODIFIED or DELETED.
        found: All pods that there are, or the one that has changed.
    """
    if kind == "LIST":
        return {pod.name: pod for pod in sorted(map(observe, found), key=lambda pod: pod.created)}
    pod = observe(found)
    known = there.get(pod.name)
    if known and known.uid != pod.uid and known.created > pod.created:
        return dict(there)  # a client's pod that was evicted stays beside the one in its place
    others = {name: other for name, other in there.items() if name != pod.name}
    return others if kind == "DELETED" else others | {pod.name: pod}


def _seconds(time: datetime | None) -> float:
    return time.timestamp() if time else 0.0


def _problem(status: PodStatus, conditions: Mapping[str, PodCondition]) -> str:
    scheduled = conditions.get("PodScheduled")
    if scheduled and scheduled.status == "False":
        return scheduled.message or scheduled.reason or "it is not scheduled"
    for container in [*(status.containerStatuses or []), *(status.initContainerStatuses or [])]:
        waiting = container.state.waiting if container.state else None
        if waiting and waiting.reason not in (None, "ContainerCreating", "PodInitializing"):
            return ": ".join(part for part in (waiting.reason, waiting.message) if part)
    return ""
