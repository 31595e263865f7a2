"""The runs in a namespace, as their supervisors' notes and Jobs show them, and what ends, resumes and deletes one."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from trainer.client import chart
from trainer.client.cluster import Cluster
from trainer.errors import ConfigurationError
from trainer.text import did_you_mean

ANNOTATIONS = "distributed-tensorflow/"
"""The prefix of the annotations of the supervisor's Job."""
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
OF_CHART = {"app.kubernetes.io/name": chart.NAME}
OF_SUPERVISORS = OF_CHART | {COMPONENT: "supervisor"}


@dataclass(frozen=True)
class Run:
    """A run in a namespace."""

    name: str
    state: str
    """That of the supervisor's notes, such as Running, Suspended or Succeeded; Pending before the supervisor runs."""
    progress: str
    """The last progress, such as "step 800/2000: loss 0.1, …"; empty before the first."""
    outcome: str
    """How the run has ended, in a sentence; empty before."""
    job: str
    """The supervisor's Job."""
    created: datetime

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended: its resources are free."""
        return self.state in ("Succeeded", "Failed")

    @property
    def age(self) -> str:
        """How long ago it was installed, as kubectl shows it."""
        seconds = int((datetime.now(timezone.utc) - self.created).total_seconds())
        for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
            if seconds >= 2 * size:
                return f"{seconds // size}{unit}"
        return f"{max(seconds, 0)}s"


def find_all(cluster: Cluster) -> list[Run]:
    """The runs of a namespace that have a supervisor, the newest first. Raises what `Cluster.kubectl` does."""
    return _runs(cluster.items("configmaps,jobs", OF_SUPERVISORS))


def find(cluster: Cluster, name: str) -> Run:
    """The run of this name.

    Raises:
        ConfigurationError: there is none, or what `Cluster.kubectl` raises.
    """
    if found := _runs(cluster.items("configmaps,jobs", OF_SUPERVISORS | {INSTANCE: name})):
        return found[0]
    others = [each.name for each in find_all(cluster)]
    listed = f"; the runs are {', '.join(others)}" if others else ", nor any other"
    raise ConfigurationError(f"there is no run {name} in the namespace{did_you_mean(name, others)}{listed}.")


def _runs(objects: list[dict[str, Any]]) -> list[Run]:
    jobs = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Job"}
    found = []
    for each in objects:
        metadata = each["metadata"]
        job = metadata.get("annotations", {}).get(f"{ANNOTATIONS}supervisor")
        if job:  # the other ConfigMaps of a supervisor do not name its Job
            found.append(_run(metadata, each.get("data", {}), job, jobs.get(job, {})))
    return sorted(found, key=lambda run: run.created, reverse=True)


def _run(metadata: Mapping[str, Any], data: Mapping[str, str], name: str, job: Mapping[str, Any]) -> Run:
    notes: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        notes = json.loads(data.get("notes.json", "{}"))
    annotations = job.get("metadata", {}).get("annotations", {})
    return Run(
        name=metadata["labels"][INSTANCE],
        state=str(notes.get("state") or "Pending"),
        progress=annotations.get(f"{ANNOTATIONS}progress", ""),
        outcome=annotations.get(f"{ANNOTATIONS}outcome") or str(notes.get("reason", "")),
        job=name,
        created=datetime.fromisoformat(metadata["creationTimestamp"].replace("Z", "+00:00")),
    )


def suspend(cluster: Cluster, name: str, is_suspended: bool = True) -> None:
    """End the tasks of a run and free their resources, or let them go on from the last checkpoint.

    Raises:
        ConfigurationError: there is no such run, it has ended, or what `Cluster.helm` raises.
    """
    run = find(cluster, name)
    if run.has_ended:
        raise ConfigurationError(f"the run {name} has ended: {run.outcome or run.state}.")
    value = f"run.suspend={'true' if is_suspended else 'false'}"
    cluster.helm("upgrade", name, str(chart.path()), "--reset-then-reuse-values", "--set", value)


def delete(cluster: Cluster, name: str, data: bool = False) -> list[str]:
    """Uninstall a run. With `data`, also delete its claims and all files in them.

    Returns:
        The claims that are kept.

    Raises:
        ConfigurationError: there is no such run, or what `Cluster.helm` raises.
    """
    selector = ",".join(f"{label}={value}" for label, value in (OF_CHART | {INSTANCE: name}).items())
    claims = [each["metadata"]["name"] for each in cluster.items("persistentvolumeclaims", OF_CHART | {INSTANCE: name})]
    is_installed = cluster.has_release(name)
    if not is_installed and not (data and claims):
        find(cluster, name)  # which says that there is none
    if is_installed:
        cluster.helm("uninstall", name, "--wait")
    cluster.kubectl("delete", "configmaps", f"--selector={selector}", "--ignore-not-found")
    if data and claims:
        cluster.kubectl("delete", "persistentvolumeclaims", *claims, "--ignore-not-found")
        return []
    return [each["metadata"]["name"] for each in cluster.items("persistentvolumeclaims", OF_CHART | {INSTANCE: name})]
