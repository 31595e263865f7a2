"""The state of a task's pod, reduced to what decides a run. Pure: Kubernetes objects in, values out."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from lightkube.models.core_v1 import ContainerState, ContainerStateTerminated, PodCondition, PodSpec, PodStatus
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod as KubernetesPod

from trainer.telemetry import report

COMPONENT = "app.kubernetes.io/component"
REVISION = "controller-revision-hash"
SETTLE_SECONDS = 10.0
"""After this time, the end of a container that has not started again counts as the task's own."""


@dataclass(frozen=True)
class Parked:
    """What the chart's task.sh reports when a container restarts after its task has ended for good."""

    exit_code: int


@dataclass(frozen=True)
class Terminated:
    """The last termination of a task's container."""

    code: int
    reason: str
    """The reason that Kubernetes gives, such as OOMKilled."""
    finished_at: float
    """Seconds since 1970."""
    ran_seconds: float = 0.0
    """How long the container ran."""

    def __str__(self) -> str:
        reason = "" if self.reason in ("", "Error", "Completed") else f" ({self.reason})"
        return f"code {self.code}{reason}"


@dataclass(frozen=True)
class Template:
    """What the new pods of a StatefulSet are made from."""

    revision: str
    """The name that the pods have for it; empty before the StatefulSet's controller has given one."""
    run_hash: str
    """The hash of the run that it belongs to. That is another one after an upgrade that failed half-way."""


@dataclass(frozen=True)
class Pod:
    """The pod of a task."""

    name: str
    """The task's name. It equals the pod's name in a StatefulSet, and the pod's hostname in the client's Job."""
    pod_name: str
    """The pod's name, which its log and its events use."""
    uid: str
    role: str
    run_hash: str
    """The hash of the run that the pod's template belongs to."""
    created: float
    """Seconds since 1970."""
    gated: bool
    """Whether the pod has scheduling gates: a queue such as Kueue has not admitted it yet."""
    node: str
    """The name of the pod's node; empty before it has one."""
    scheduled: float
    """When the pod got its node, in seconds since 1970; 0 before that."""
    running: bool
    """Whether the task's container runs. A parked container runs too."""
    ready: bool
    restart_count: int
    """How often the kubelet has restarted the container."""
    terminated: Terminated | None
    """None before the first termination, and when the kubelet has garbage-collected the container that had it."""
    succeeded: bool
    """Whether all containers of the pod have ended with 0, and none starts again."""
    terminating: bool
    """Whether the pod is being deleted or was evicted. The task does not cause what happens to the pod after that."""
    disrupted_at: float | None
    """When the pod was told to end, in seconds since 1970; None if it was not, or Kubernetes does not report when."""
    deadline: float | None
    """The end of the grace period of a pod that is being deleted, in seconds since 1970."""
    conditions: Mapping[str, str]
    """The status of each condition, by its type."""
    has_sidecar: bool
    """Whether another container than the task's runs."""
    awaits_restart: bool
    """Whether the container has ended, and the kubelet has not started it again yet."""
    problem: str
    """Why the container does not run, as Kubernetes reports it; empty if it runs or Kubernetes reports no reason."""
    image: str = ""
    """The digest of the image that the container runs, as sha256:…; empty before the node has reported it."""
    revision: str = ""
    """The revision of the StatefulSet's template that the pod was made from; empty for a Job's pod."""

    @property
    def is_steady(self) -> bool:
        """Whether the container runs, and no time at which something follows from the pod comes until it changes."""
        waits = self.gated or self.awaits_restart or self.problem or not self.node
        ends = self.terminating or self.succeeded or self.deadline is not None
        return self.running and not (waits or ends)

    @property
    def ending(self) -> str:
        """How the container last terminated, with the remedy if it used too much memory."""
        remedy = f"OOMKilled: raise {self.role}.resources.limits.memory"
        return str(self.terminated).replace("OOMKilled", remedy)


def run_hash_in(spec: PodSpec | None, role: str) -> str:
    """The hash of the run that the pods of a role with this specification belong to; empty if it has none."""
    programs = [container for container in (spec.containers if spec else []) if container.name == role]
    environment = {variable.name: variable.value for program in programs for variable in program.env or []}
    return (environment.get("TASK_RUN") or "").partition(".")[0]  # without .v$(DATA_VERSION)


def observe(pod: KubernetesPod) -> Pod:
    """The state of a pod, from the object that the API server returns."""
    metadata, status = pod.metadata or ObjectMeta(), pod.status or PodStatus()
    role = (metadata.labels or {})[COMPONENT]
    container = next((entry for entry in status.containerStatuses or [] if entry.name == role), None)
    state = (container and container.state) or ContainerState()
    last = (container and container.lastState) or ContainerState()
    terminated = state.terminated or last.terminated
    conditions = {entry.type: entry for entry in status.conditions or []}
    return Pod(
        name=_task_name(pod, metadata),
        pod_name=metadata.name or "",
        uid=metadata.uid or "",
        role=role,
        run_hash=run_hash_in(pod.spec, role),
        created=_seconds(metadata.creationTimestamp),
        gated=bool(pod.spec and pod.spec.schedulingGates),
        node=(pod.spec and pod.spec.nodeName) or "",
        scheduled=_true_since(conditions.get("PodScheduled")),
        running=state.running is not None,
        ready="Ready" in conditions and conditions["Ready"].status == "True",
        restart_count=container.restartCount if container else 0,
        terminated=_terminated(terminated) if terminated else None,
        succeeded=status.phase == "Succeeded",
        terminating=metadata.deletionTimestamp is not None or status.phase == "Failed",
        disrupted_at=_disrupted_at(metadata, conditions),
        deadline=_seconds(metadata.deletionTimestamp) if metadata.deletionTimestamp else None,
        conditions={entry.type: entry.status for entry in status.conditions or []},
        has_sidecar=any(
            entry.name != role and entry.state and entry.state.running for entry in status.containerStatuses or []
        ),
        awaits_restart=state.terminated is not None
        or (state.waiting is not None and state.waiting.reason == "CrashLoopBackOff"),
        problem=_problem(status, conditions),
        image=_digest((container and container.imageID) or ""),
        revision=(metadata.labels or {}).get(REVISION, ""),
    )


def lacks_termination(pod: Pod) -> bool:
    """Whether the container has restarted, but Kubernetes no longer reports its last termination."""
    return pod.running and pod.restart_count > 0 and pod.terminated is None


def with_logged_termination(pod: Pod, line: str, now: float) -> Pod:
    """The pod with the exit code that task.sh logged, if its container is parked.

    Args:
        pod: A pod that lacks its termination.
        line: The last line of its container's log.
        now: Seconds since 1970.
    """
    parked = parse_parked(line)
    return dataclasses.replace(pod, terminated=Terminated(parked.exit_code, "", now)) if parked else pod


def parse_parked(line: str) -> Parked | None:
    """What task.sh reports in a log line; None for any other line."""
    return report.read(line, "parked", Parked)


def ended_by_itself(pod: Pod, now: float) -> bool:
    """Whether the task ended before its pod was told to end. A program may answer SIGTERM with code 0.

    A kubelet that evicts a pod, or whose node shuts down, says so only after the containers have ended. So an end
    counts when the container has started again, or after a while in which Kubernetes has reported no such cause.
    """
    if not pod.terminated:
        return False
    if not pod.terminating:
        return pod.running or pod.succeeded or now - pod.terminated.finished_at >= SETTLE_SECONDS
    return pod.disrupted_at is not None and pod.terminated.finished_at < pod.disrupted_at


def _task_name(pod: KubernetesPod, metadata: ObjectMeta) -> str:
    # A copy that `kubectl debug` makes keeps the hostname, and has no owner.
    is_of_job = any(owner.kind == "Job" for owner in metadata.ownerReferences or [])
    return (is_of_job and pod.spec and pod.spec.hostname) or metadata.name or ""


def _terminated(state: ContainerStateTerminated) -> Terminated:
    began, ended = _seconds(state.startedAt), _seconds(state.finishedAt)
    return Terminated(state.exitCode, state.reason or "", ended, ended - began if began else 0.0)


def _disrupted_at(metadata: ObjectMeta, conditions: Mapping[str, PodCondition]) -> float | None:
    """The first time at which the pod was told to end, by an eviction or a deletion."""
    times = []
    disruption = conditions.get("DisruptionTarget")
    # The kubelet sets this condition when the containers have ended. When it told them to end is not reported.
    if disruption and disruption.status == "True" and disruption.reason != "TerminationByKubelet":
        times.append(_seconds(disruption.lastTransitionTime))
    # The deletion time is the end of the grace period. A period of 0 means that the kubelet removes the pod now.
    if metadata.deletionTimestamp and metadata.deletionGracePeriodSeconds:
        times.append(_seconds(metadata.deletionTimestamp) - metadata.deletionGracePeriodSeconds)
    return min(times, default=None)


def _true_since(condition: PodCondition | None) -> float:
    return _seconds(condition.lastTransitionTime) if condition and condition.status == "True" else 0.0


def _seconds(time: datetime | None) -> float:
    return time.timestamp() if time else 0.0


def _digest(image: str) -> str:
    """The digest at the end of an image's ID; empty if it has none. Container runtimes differ in what is before it."""
    found = re.search(r"sha256:[0-9a-f]{64}$", image)
    return found.group() if found else ""


def _problem(status: PodStatus, conditions: Mapping[str, PodCondition]) -> str:
    scheduled = conditions.get("PodScheduled")
    if scheduled and scheduled.status == "False":
        return scheduled.message or scheduled.reason or "it is not scheduled"
    for container in [*(status.containerStatuses or []), *(status.initContainerStatuses or [])]:
        waiting = container.state.waiting if container.state else None
        if waiting and waiting.reason not in (None, "ContainerCreating", "PodInitializing"):
            return ": ".join(part for part in (waiting.reason, waiting.message) if part)
    return ""
