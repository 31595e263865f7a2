"""The gang scheduling of a TFJob as the chart's `scheduling`, and notes on what differs.

The operator creates a PodGroup, and so does the chart. Where the pods name a PodGroup of the user's own, the chart
creates none. Pure. Source: pkg/controller.v1/control/podgroup_control.go and pkg/controller.v1/common/job.go in
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

    gang: str
    """The chart's scheduling.gang."""

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
    "coscheduling",
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


def convert(
    policy: Fields, pods: Sequence[tuple[str, Map]], tasks: int, others: Sequence[Map], queue: str
) -> tuple[Map, list[str]]:
    """The chart's `scheduling` and notes; without a gang, or with a PodGroup of the user's own, `scheduling` is empty.

    A job that has only a policy is Volcano's. Each field of the schedulingPolicy that is lost gets a note of its own.

    Args:
        policy: The map with the job's schedulingPolicy, if any.
        pods: The path of each role's template, and the role's values. They get the priority class of the policy.
        tasks: The number of tasks of the job.
        others: The other objects of the manifest, which may have the PodGroups.
        queue: The queue of Kueue that admits the job; empty if there is none.
    """
    scheduling = policy.inner("schedulingPolicy")
    stated = _typed(scheduling)
    uses = _uses(pods)
    own = {scheduler: found for scheduler, found in uses.items() if found[1] is not None}
    values: Map = {}
    found = []
    if queue:
        for key in stated:
            scheduling.note(key, "not carried over; the job is in a queue of Kueue.")
    elif own:
        found = _notes_on_own(own, scheduling.path, stated, tasks, others)
        for key in stated.keys() - {key for scheduler in own for key in scheduler.fields}:
            scheduling.note(key, "not carried over; the scheduler's PodGroup has no such field.")
    elif uses or stated:
        scheduler = next(iter(uses), VOLCANO)
        values = {"gang": scheduler.gang}
        if not uses:
            found = [
                f"{scheduling.path}: carried over for Volcano; if the operator has another gang scheduler "
                "(--gang-scheduler-name), set scheduling.gang to its name."
            ]
        values |= _carry(scheduling, stated, scheduler, pods, tasks)
    scheduling.close({}, "not carried over; a PodGroup has no such field.")
    return values, found


def _carry(scheduling: Fields, stated: Map, scheduler: Scheduler, pods: Sequence[tuple[str, Map]], tasks: int) -> Map:
    """What of a schedulingPolicy belongs to the chart's `scheduling`; the rest is noted, or goes to the pods."""
    least = stated.get("minAvailable", tasks)
    if least != tasks:
        scheduling.note("minAvailable", f"not carried over; the gang is all {tasks} tasks, or fewer by run.elastic.")
    for key in stated.keys() - {"minAvailable", "queue", "priorityClass"}:
        scheduling.note(key, "not carried over; the chart's PodGroup has no such field.")
    if priority := stated.get("priorityClass"):
        if any(values["priorityClassName"] for _, values in pods):
            scheduling.note("priorityClass", "not carried over; the PodGroup has the priorityClassName of the pods.")
        else:
            scheduling.note(
                "priorityClass", "carried over as the pods' priorityClassName, which is the PodGroup's too."
            )
            for _, values in pods:
                values["priorityClassName"] = priority
    if "queue" not in stated or scheduler is VOLCANO:
        return {"queue": stated["queue"]} if "queue" in stated else {}
    scheduling.note("queue", "not carried over; the scheduler has no queues.")
    return {}


def _notes_on_own(
    uses: Mapping[Scheduler, tuple[str, Any]],
    policy: str,
    stated: Map,
    tasks: int,
    others: Sequence[Map],
) -> list[str]:
    """A note on each PodGroup that the pods name: with its manifest, unless the file has it."""
    found = []
    for scheduler, (path, group) in uses.items():
        if group not in [_name(item) for item in others if item.get("kind") == "PodGroup"]:
            pod_group = _pod_group(scheduler, stated, tasks, group)
            found.append(
                f"{path}: carried over, but the chart creates no PodGroup; for gang scheduling add to extraObjects "
                f"{pod_group}, unless it exists."
            )
        elif stated:
            found.append(f"{policy}: not carried over; the PodGroup {group} of the file has its own spec.")
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
