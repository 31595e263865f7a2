"""A TFJob in a queue of Kueue as the chart's `scheduling`; and notes on pods that name a queue themselves.

Pure. Source: https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/.
"""

import json
from collections.abc import Sequence

from trainer.tfjob.manifest import Fields, Map

PREFIX = "kueue.x-k8s.io/"
QUEUE = f"{PREFIX}queue-name"
GROUP = f"{PREFIX}pod-group-name"
COUNT = f"{PREFIX}pod-group-total-count"
RETRIABLE = f"{PREFIX}retriable-in-group"
"""With false, Kueue frees the quota when all pods of the group have ended, also if some failed or were stopped."""


def take(labels: Fields) -> Map:
    """Take Kueue's labels from the TFJob's own: the queue, and the priority if the job has one."""
    if QUEUE not in labels.content:
        return {}
    return {key: labels.text(key) for key in sorted(labels.content) if key.startswith(PREFIX)}


def convert(own: Map, pods: Sequence[tuple[str, Map]], tasks: int, name: str) -> tuple[Map, list[str]]:
    """The chart's `scheduling`, if the job names a queue, and notes.

    Args:
        own: Kueue's labels of the TFJob itself, from `take`.
        pods: The path of each role's template, and the role's values.
        tasks: The number of tasks of the job.
        name: The name of the release.
    """
    places = [
        (f"{path}.metadata.labels.{QUEUE}", values["labels"]) for path, values in pods if QUEUE in values["labels"]
    ]
    if own.get(QUEUE):
        why = "not carried over; the chart's Workload has no such setting."
        lost = [f"metadata.labels.{key}: {why}" for key in own if key != QUEUE]
        return {"gang": "kueue", "queue": own[QUEUE]}, lost
    if not places or GROUP in places[0][1]:
        return {}, []
    path, labels = places[0]
    group = {key: value for key, value in labels.items() if key.startswith(PREFIX)} | {GROUP: name}
    annotations = {COUNT: str(tasks), RETRIABLE: "false"}
    return {}, [
        f"{path}: carried over, but Kueue then admits each pod alone; remove it and set scheduling.gang: kueue and "
        f"scheduling.queue: {labels[QUEUE]}; or, for Kueue to admit all {tasks} pods at once, enable its integration "
        f"pod, and add to common.labels {json.dumps(group)} and to common.annotations {json.dumps(annotations)}."
    ]
