"""Kueue's Workload of a run: what the supervisor asks for, and what Kueue has answered. Pure.

A run has one Workload, with the release's name and a pod set for each role. Its tasks start when Kueue has admitted it.
https://kueue.sigs.k8s.io/docs/concepts/workload/ describes the fields, as of kueue.x-k8s.io/v1beta2.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.supervisor.pods import Pod
from trainer.supervisor.run import Run
from trainer.text import truncate

GATE = "distributed-tensorflow/queue"
"""The scheduling gate of tasks, which the supervisor removes. templates/_scheduling.tpl has the same name."""
RUN = "distributed-tensorflow/run"
"""The annotation of a Workload with the hash of the run that it is for."""
NOT_ANSWERED = "Kueue has not answered yet: check that Kueue runs"
_REQUEUED = ("Preempted", "NodeFailures")
"""After these evictions the Workload waits in its queue at once; after others Kueue requeues it."""
_DEACTIVATED = "Deactivated"
"""The reason of these evictions, or its beginning. Kueue requeues a reactivated Workload only with just this reason."""
_KEPT = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "priorityClassName",
    "runtimeClassName",
    "overhead",
    "resources",
    "resourceClaims",
)
"""What of a pod's spec Kueue looks at, beside its containers."""
_REMEDIES: Sequence[tuple[str, str]] = (
    (r"(?P<what>LocalQueue \S+) doesn't exist", "{what} does not exist: create it, or set scheduling.queue to another"),
    (
        r"(?P<what>ClusterQueue \S+) doesn't exist",
        "{what}, to which the LocalQueue belongs, does not exist: create it, or set scheduling.queue to another",
    ),
    (
        r"(?P<what>(Local|Cluster)Queue \S+) (is inactive|is stopped|stopped)",
        "{what} is stopped or misses something: `kubectl describe` shows which, or set scheduling.queue to another",
    ),
)


@dataclass(frozen=True)
class Workload:
    """A Workload, as Kueue has left it."""

    uid: str
    version: str
    """Its resource version."""
    run_hash: str
    """The hash of the run that it is for."""
    active: bool = True
    """False if somebody, or Kueue after too many tries, has deactivated it."""
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By type."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """By role: the number of tasks that are admitted."""
    flavors: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By role: the names of the flavors of its resources."""
    updates: Mapping[str, "Placement"] = field(default_factory=dict)
    """By role: what admission checks add to its pods."""
    topologies: Sequence[str] = ()
    """The roles for whose pods Kueue has chosen nodes, which the supervisor does not pass on."""
    checks: Sequence[str] = ()
    """The admission checks that are not ready."""

    def has(self, condition: str) -> bool:
        """Whether it has this condition."""
        return self.conditions.get(condition, {}).get("status") == "True"

    def admits(self, run: Run) -> bool:
        """Whether the tasks of the run may run."""
        lost = self.has("Evicted") or self.has("Finished")
        return self.run_hash == run.hash and self.has("Admitted") and bool(self.counts) and not lost

    def covers(self, pod: Pod) -> bool:
        """Whether the pod is one of the admitted tasks. Anybody may scale a StatefulSet further."""
        return int(pod.name.rpartition("-")[2]) < self.counts.get(pod.role, 0)

    @property
    def eviction(self) -> str:
        """Why Kueue has evicted it."""
        return _text(self.conditions.get("Evicted", {}))

    @property
    def problem(self) -> str:
        """Why Kueue has not admitted it, in one sentence with the remedy."""
        if not self.active:
            why = f" ({self.eviction})" if self.eviction else ""
            return f"its Workload is deactivated{why}: set spec.active to true to queue it again"
        if self.has("QuotaReserved") and self.has("Evicted"):
            return f"Kueue has evicted it ({self.eviction})"
        if self.has("QuotaReserved"):
            return f"its quota is reserved, and admission checks are not ready: {', '.join(self.checks) or 'unknown'}"
        message = str(self.conditions.get("QuotaReserved", {}).get("message", ""))
        for pattern, sentence in _REMEDIES:
            if found := re.search(pattern, message):
                return sentence.format(**found.groupdict())
        return truncate(" ".join(message.split()), 300) or NOT_ANSWERED


@dataclass(frozen=True)
class Placement:
    """What a pod must have to run on the nodes whose quota it uses."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Of the pod, such as the name of the request by which an autoscaler has made room for it."""

    def __or__(self, other: "Placement") -> "Placement":
        new = [each for each in other.tolerations if each not in self.tolerations]
        return Placement(
            {**self.node_selector, **other.node_selector},
            [*self.tolerations, *new],
            {**self.labels, **other.labels},
            {**self.annotations, **other.annotations},
        )


def observe(content: Mapping[str, Any]) -> Workload:
    """A Workload from the object that the API server returns."""
    metadata, spec, status = (content.get(key) or {} for key in ("metadata", "spec", "status"))
    assigned = (status.get("admission") or {}).get("podSetAssignments") or []
    asked = {each["name"]: each.get("count", 1) for each in spec.get("podSets") or []}
    checks = status.get("admissionChecks") or []
    updates: dict[str, Placement] = {}
    for update in (each for check in checks for each in check.get("podSetUpdates") or []):
        updates[update["name"]] = updates.get(update["name"], Placement()) | Placement(
            update.get("nodeSelector") or {},
            update.get("tolerations") or [],
            update.get("labels") or {},
            update.get("annotations") or {},
        )
    return Workload(
        uid=metadata.get("uid", ""),
        version=metadata.get("resourceVersion", ""),
        run_hash=(metadata.get("annotations") or {}).get(RUN, ""),
        active=spec.get("active", True),
        conditions={each["type"]: each for each in status.get("conditions") or []},
        counts={each["name"]: each.get("count", asked.get(each["name"], 1)) for each in assigned},
        flavors={each["name"]: frozenset((each.get("flavors") or {}).values()) for each in assigned},
        updates=updates,
        topologies=[each["name"] for each in assigned if each.get("topologyAssignment")],
        checks=[f"{check.get('name')} ({_text(check)})" for check in checks if check.get("state") != "Ready"],
    )


def of_flavor(content: Mapping[str, Any]) -> Placement:
    """What a ResourceFlavor adds to pods."""
    spec = content.get("spec") or {}
    return Placement(spec.get("nodeLabels") or {}, spec.get("tolerations") or [])


def manifest(
    run: Run, templates: Mapping[str, Mapping[str, Any]], owner: Mapping[str, Any], priority: int = 0
) -> dict[str, Any]:
    """The Workload of a run.

    Args:
        run: The run, which has a gang of Kueue.
        templates: By role: the pod template of its StatefulSet.
        owner: The reference to the object with which it is deleted.
        priority: The value of the tasks' priority class, if they have one.
    """
    pod_sets = []
    for role, least in (run.gang.members if run.gang else {}).items():
        count = run.roles[role].replicas
        pod_set = {"name": role, "count": count, "template": _reduced(templates[role])}
        pod_sets.append(pod_set | ({"minCount": least} if least < count else {}))
    spec: dict[str, Any] = {"queueName": run.gang.queue if run.gang else "", "podSets": pod_sets}
    if name := priority_class(templates):
        spec["priorityClassRef"] = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": name}
        spec["priority"] = priority
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": run.fullname,
            "labels": dict(run.labels),
            "annotations": {**run.annotations, RUN: run.hash},
            "ownerReferences": [dict(owner)],
        },
        "spec": spec,
    }


def priority_class(templates: Mapping[str, Mapping[str, Any]]) -> str:
    """The name of the first role's priority class, as in Kueue's own integrations; empty if no role has one."""
    return next((name for each in templates.values() if (name := each["spec"].get("priorityClassName"))), "")


def _reduced(template: Mapping[str, Any]) -> dict[str, Any]:
    """What of a pod template Kueue looks at: resources, and on which nodes the pod can run."""
    spec = template["spec"]
    found = {key: spec[key] for key in _KEPT if spec.get(key)}
    for key in ("containers", "initContainers"):
        if spec.get(key):
            found[key] = [_container(each) for each in spec[key]]
    return {"metadata": {"labels": (template.get("metadata") or {}).get("labels") or {}}, "spec": found}


def _container(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    # Kubernetes takes the limit of a resource for an absent request, such as that of GPUs.
    reduced = {**resources, "requests": {**limits, **(resources.get("requests") or {})}, "limits": limits}
    restart = {"restartPolicy": container["restartPolicy"]} if container.get("restartPolicy") else {}
    return {"name": container["name"], "image": container.get("image", ""), "resources": reduced, **restart}


def released(workload: Workload) -> dict[str, tuple[bool, str, str]]:
    """The conditions of an evicted Workload whose tasks have ended: status, reason and message, by type."""
    evicted = workload.conditions["Evicted"]
    reason, message = str(evicted.get("reason", "")), str(evicted.get("message", ""))
    requeued = _DEACTIVATED if reason.startswith(_DEACTIVATED) else reason
    return {
        "QuotaReserved": (False, "Pending", message),
        "Admitted": (False, "NoReservation", "The workload has no reservation"),
        "PodsReady": (False, "WaitForStart", "The tasks have ended"),
        "Requeued": (reason in _REQUEUED, requeued, message),
    }


def _text(condition: Mapping[str, Any]) -> str:
    """The reason or state, and the message, of a condition or an admission check."""
    parts = (condition.get("reason") or condition.get("state"), condition.get("message"))
    return truncate(": ".join(" ".join(str(part).split()) for part in parts if part), 300)
