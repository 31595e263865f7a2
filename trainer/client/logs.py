"""The logs of a run: that of its supervisor, and those of its tasks, also of tasks whose pods are gone."""

from collections.abc import Iterator
from typing import Any

from trainer.client import files
from trainer.client.cluster import Cluster
from trainer.client.runs import COMPONENT, INSTANCE, OF_CHART, OF_SUPERVISORS
from trainer.telemetry import report


def of_supervisor(cluster: Cluster, name: str, follow: bool = False) -> Iterator[str]:
    """The lines of a run's supervisors, the last one's last. Raises what `Cluster.kubectl` does."""
    pods = cluster.items("pods", OF_SUPERVISORS | {INSTANCE: name})
    names = [pod["metadata"]["name"] for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))]
    for pod in names:
        with cluster.logs(pod, *_following(follow and pod == names[-1])) as lines:
            yield from lines


def of_task(cluster: Cluster, name: str, task: str, follow: bool = False) -> Iterator[str]:
    """The lines of a task, such as worker-1: of its last two containers, or of the training directory.

    Raises:
        ConfigurationError: there are none, or what `Cluster.kubectl` raises.
    """
    pod = _pod(cluster, name, task)
    if pod is None:
        lines: Iterator[str] = iter(files.read_log(cluster, name, task).splitlines())
        yield from (report.split(line)[0] for line in lines)
        return
    statuses = pod["status"].get("containerStatuses") or [{}]
    has_restarted = bool(statuses[0].get("restartCount"))  # such as one that is parked after its end
    for options in ([["--previous"]] if has_restarted else []) + [_following(follow)]:
        with cluster.logs(pod["metadata"]["name"], *options) as lines:
            yield from (report.split(line)[0] for line in lines)


def _following(follow: bool) -> list[str]:
    return ["--follow"] if follow else []


def _pod(cluster: Cluster, name: str, task: str) -> dict[str, Any] | None:
    role, _, index = task.rpartition("-")
    selector = OF_CHART | {INSTANCE: name, COMPONENT: role}
    if role != "client":  # a Job's, of which there is one
        selector["apps.kubernetes.io/pod-index"] = index
    return next(iter(cluster.items("pods", selector)), None)
