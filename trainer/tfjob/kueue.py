"""Notes on Kueue: the labels with which it admits a TFJob, and those with which it admits the chart's pods all at once.

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
    return {key: labels.take(key) for key in sorted(labels.content) if key.startswith(PREFIX)}


def notes(own: Map, pods: Sequence[tuple[str, Map]], tasks: int, name: str) -> list[str]:
    """A note with the labels and annotations of the pods, if the job or its pods name a queue.

    Args:
        own: Kueue's labels of the TFJob itself, from `take`.
        pods: The path of each role's template, and the role's values.
        tasks: The number of tasks of the job.
        name: The name of the release.
    """
    places = [
        (f"{path}.metadata.labels.{QUEUE}", values["labels"]) for path, values in pods if QUEUE in values["labels"]
    ]
    if own:
        path, labels, lost = f"metadata.labels.{QUEUE}", own, "not carried over"
    elif places and GROUP not in places[0][1]:
        path, labels, lost = *places[0], "carried over, but Kueue then admits each pod alone"
    else:
        return []
    group = {key: value for key, value in labels.items() if key.startswith(PREFIX)} | {GROUP: name}
    annotations = {COUNT: str(tasks), RETRIABLE: "false"}
    return [
        f"{path}: {lost}; for Kueue to admit all {tasks} pods at once, enable its integration pod, and add to "
        f"common.labels {json.dumps(group)} and to common.annotations {json.dumps(annotations)}."
    ]
