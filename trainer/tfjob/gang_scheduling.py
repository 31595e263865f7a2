"""Notes on the gang scheduling of a TFJob: the operator creates a PodGroup, and the chart does not.

Pure. Source: pkg/controller.v1/control/podgroup_control.go and pkg/controller.v1/common/job.go in
https://github.com/kubeflow/training-operator, v1.9.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.tfjob.manifest import Fields, Map, is_empty


@dataclass(frozen=True, eq=False)
class Scheduler:
    """A gang scheduler."""

    name: str
    """The schedulerName of pods."""

    api_version: str
    """The apiVersion of its PodGroup."""

    place: str
    """Where pods name their PodGroup: annotations or labels."""

    key: str
    """The annotation or label with the name of the PodGroup."""

    fields: Mapping[str, str]
    """The fields of its PodGroup's spec, by the fields of schedulingPolicy."""


VOLCANO = Scheduler(
    "volcano",
    "scheduling.volcano.sh/v1beta1",
    "annotations",
    "scheduling.k8s.io/group-name",
    {
        "minAvailable": "minMember",
        "queue": "queue",
        "priorityClass": "priorityClassName",
        "minResources": "minResources",
    },
)
SCHEDULER_PLUGINS = Scheduler(
    "scheduler-plugins-scheduler",
    "scheduling.x-k8s.io/v1alpha1",
    "labels",
    "scheduling.x-k8s.io/pod-group",
    {
        "minAvailable": "minMember",
        "minResources": "minResources",
        "scheduleTimeoutSeconds": "scheduleTimeoutSeconds",
    },
)
BY_NAME = {scheduler.name: scheduler for scheduler in (VOLCANO, SCHEDULER_PLUGINS)}
BY_KEY = {
    VOLCANO.key: VOLCANO,
    "scheduling.volcano.sh/group-name": VOLCANO,
    SCHEDULER_PLUGINS.key: SCHEDULER_PLUGINS,
}

REASONS = {
    key: f"not carried over; the operator ignores it here; set it in common.{scheduler.place}, and add the PodGroup "
    f"({scheduler.api_version}) to extraObjects."
    for key, scheduler in BY_KEY.items()
}
"""Why the name of a PodGroup in the TFJob's own metadata is not carried over."""


def notes(policy: Fields, pods: Sequence[tuple[str, Map]], tasks: int, name: str, others: Sequence[Map]) -> list[str]:
    """A note with a finished PodGroup for each gang scheduler that the job uses; Volcano's if it has only a policy.

    Each field of the schedulingPolicy that these PodGroups lack gets a note of its own.

    Args:
        policy: The map with the job's schedulingPolicy, if any.
        pods: The path of each role's template, and the role's values.
        tasks: The number of tasks of the job.
        name: The name of the release, and of a PodGroup that the job does not name.
        others: The other objects of the manifest, which may have the PodGroups.
    """
    scheduling = policy.inner("schedulingPolicy")
    stated = _typed(scheduling)
    uses = _uses(pods)
    carried = {key for scheduler in uses or [VOLCANO] for key in scheduler.fields}
    found = []
    for scheduler, (path, group) in uses.items():
        if group is None or group not in [_name(item) for item in others if item.get("kind") == "PodGroup"]:
            exists = "" if group is None else ", unless it exists"
            naming = f" and to {_naming(scheduler, name)}" if group is None else ""
            pod_group = _pod_group(scheduler, stated, tasks, name if group is None else group)
            found.append(
                f"{path}: carried over, but the chart creates no PodGroup; for gang scheduling add to extraObjects "
                f"{pod_group}{exists}{naming}."
            )
        elif stated:
            found.append(f"{scheduling.path}: not carried over; the PodGroup {group} of the file has its own spec.")
    if stated and not uses:
        found.append(
            f"{scheduling.path}: not carried over; the chart creates no PodGroup; for gang scheduling with Volcano add "
            f"to extraObjects {_pod_group(VOLCANO, stated, tasks, name)} and to {_naming(VOLCANO, name)}, and set "
            f"common.schedulerName: {VOLCANO.name}."
        )
    for key in stated.keys() - carried:
        scheduling.note(key, "not carried over; the scheduler's PodGroup has no such field.")
    scheduling.close({}, "not carried over; a PodGroup has no such field.")
    return found


def _typed(scheduling: Fields) -> Map:
    """The known fields of a schedulingPolicy that are not empty."""
    found = {
        "minAvailable": scheduling.whole("minAvailable"),
        "queue": scheduling.text("queue"),
        "priorityClass": scheduling.text("priorityClass"),
        "minResources": scheduling.inner("minResources").content,
        "scheduleTimeoutSeconds": scheduling.whole("scheduleTimeoutSeconds"),
    }
    return {key: value for key, value in found.items() if not is_empty(value)}


def _pod_group(scheduler: Scheduler, stated: Map, tasks: int, name: Any) -> str:
    """The manifest of a PodGroup, as JSON."""
    spec = {field: stated[key] for key, field in scheduler.fields.items() if key in stated}
    spec["minMember"] = spec.get("minMember") or tasks
    metadata = {"name": name}
    return json.dumps({"apiVersion": scheduler.api_version, "kind": "PodGroup", "metadata": metadata, "spec": spec})


def _naming(scheduler: Scheduler, name: str) -> str:
    """The label or annotation with which pods name their PodGroup."""
    return f"common.{scheduler.place} {json.dumps({scheduler.key: name})}"


def _uses(pods: Sequence[tuple[str, Map]]) -> dict[Scheduler, tuple[str, Any]]:
    """For each scheduler the first path that names it, and the name of the PodGroup if the job states it."""
    unnamed: dict[Scheduler, tuple[str, Any]] = {}
    named: dict[Scheduler, tuple[str, Any]] = {}
    for template, values in pods:
        name = values["schedulerName"]
        if isinstance(name, str) and name in BY_NAME:
            unnamed.setdefault(BY_NAME[name], (f"{template}.spec.schedulerName", None))
        for place in ("labels", "annotations"):
            for key, group in values[place].items():
                if key in BY_KEY:
                    named.setdefault(BY_KEY[key], (f"{template}.metadata.{place}.{key}", group))
    return {**unnamed, **named}


def _name(item: Map) -> Any:
    metadata = item.get("metadata")
    return metadata.get("name") if isinstance(metadata, dict) else None
