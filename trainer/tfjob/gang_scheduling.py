"""Notes on the gang scheduling of a TFJob: the operator creates a PodGroup, and the chart does not.

Pure. Source: pkg/controller.v1/control/podgroup_control.go in https://github.com/kubeflow/training-operator, v1.9.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.tfjob.manifest import Fields, Map, shorten


@dataclass(frozen=True)
class Scheduler:
    """A gang scheduler."""

    api_version: str
    """The apiVersion of its PodGroup."""

    place: str
    """Where pods name their PodGroup: annotations or labels."""

    key: str
    """The annotation or label with the name of the PodGroup."""


VOLCANO = Scheduler("scheduling.volcano.sh/v1beta1", "annotations", "scheduling.k8s.io/group-name")
SCHEDULER_PLUGINS = Scheduler("scheduling.x-k8s.io/v1alpha1", "labels", "scheduling.x-k8s.io/pod-group")
BY_NAME = {"volcano": VOLCANO, "scheduler-plugins-scheduler": SCHEDULER_PLUGINS}
BY_KEY = {
    VOLCANO.key: VOLCANO,
    "scheduling.volcano.sh/group-name": VOLCANO,
    SCHEDULER_PLUGINS.key: SCHEDULER_PLUGINS,
}

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
REASONS = {
    key: f"not carried over; the operator ignores it here; set it in common.{scheduler.place}, and add the PodGroup "
    f"({scheduler.api_version}) to extraObjects."
    for key, scheduler in BY_KEY.items()
}
"""Why the name of a PodGroup in the TFJob's own metadata is not carried over."""
KUEUE = f"or let Kueue admit the pods, with the label {QUEUE_LABEL} in common.labels"


def notes(policy: Fields, pods: Sequence[tuple[str, Map]], tasks: int, others: Sequence[Map]) -> list[str]:
    """A note for each gang scheduler that the job uses, and one for its schedulingPolicy.

    Args:
        policy: The map with the job's schedulingPolicy, if any.
        pods: The path of each role's template, and the role's values.
        tasks: The number of tasks of the job.
        others: The other objects of the manifest, which may have the PodGroups.
    """
    scheduling = policy.inner("schedulingPolicy").content
    members = shorten(scheduling.get("minAvailable") or tasks)
    groups = [_name(item) for item in others if item.get("kind") == "PodGroup"]
    lost = "but the chart creates no PodGroup; for gang scheduling"
    found = []
    for scheduler, (path, group) in _uses(pods).items():
        group_of = f"({scheduler.api_version}) with minMember: {members} to extraObjects"
        if group is None:
            text = f"add one {group_of}, and set its name as {scheduler.key} in common.{scheduler.place}"
        else:
            text = f"add {shorten(group)} {group_of}, unless it exists"
        if group is None or group not in groups:
            found.append(f"{path}: carried over, {lost} {text}; {KUEUE}.")
    if scheduling:
        keys = " or ".join(f"{item.key} in common.{item.place}" for item in (VOLCANO, SCHEDULER_PLUGINS))
        found.append(
            f"{policy.at('schedulingPolicy')}: not carried over; {lost.removeprefix('but ')} add one with minMember: "
            f"{members} to extraObjects, and set its name as {keys}; {KUEUE}."
        )
    return found


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
