"""The runs in a namespace, as their supervisors' notes and Jobs show them, and what ends, resumes and deletes one."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import trainer
from trainer.client import chart
from trainer.client.cluster import Cluster, Release
from trainer.errors import ConfigurationError
from trainer.text import did_you_mean

ANNOTATIONS = "distributed-tensorflow/"
"""The prefix of the annotations of the supervisor's Job."""
INSTANCE = "app.kubernetes.io/instance"
COMPONENT = "app.kubernetes.io/component"
OF_CHART = {"app.kubernetes.io/name": chart.NAME}
OF_SUPERVISORS = OF_CHART | {COMPONENT: "supervisor"}
BY_HELM = {"app.kubernetes.io/managed-by": "Helm"}


@dataclass(frozen=True)
class Run:
    """A run in a namespace."""

    name: str
    state: str
    """That of the supervisor's notes, such as Running, Suspended or Succeeded; Failed also if its Job has failed.

    Pending until the supervisor that the release wants has written notes.
    """
    progress: str
    """The last progress, such as "step 800/2000: loss 0.1, …"; empty before the first."""
    outcome: str
    """How the run has ended, in a sentence; empty before."""
    job: str
    """The supervisor's Job."""
    has_job: bool
    """Whether it exists."""
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


def list_runs(cluster: Cluster) -> list[Run]:
    """The runs of a namespace that have a supervisor, the newest first. Raises what `Cluster.kubectl` does."""
    return _runs(cluster.items("configmaps,jobs", OF_SUPERVISORS))


def find(cluster: Cluster, name: str) -> Run:
    """The run of this name.

    Raises:
        ConfigurationError: there is none, or what `Cluster.kubectl` raises.
    """
    if found := _runs(cluster.items("configmaps,jobs", OF_SUPERVISORS | {INSTANCE: name})):
        return found[0]
    raise _absent(cluster, name)


def release_of(cluster: Cluster, name: str) -> Release:
    """The release of a run.

    Raises:
        ConfigurationError: there is none, or it is that of another chart, or what `Cluster.helm` raises.
    """
    found = cluster.release(name)
    if found is None:
        raise _absent(cluster, name)
    if found.chart != chart.NAME:
        raise ConfigurationError(f"{name} is a release of the chart {found.chart}, and not a run.")
    return found


def _absent(cluster: Cluster, name: str) -> ConfigurationError:
    others = [each.name for each in list_runs(cluster)]
    listed = f"; the runs are {', '.join(others)}" if others else ", nor any other"
    return ConfigurationError(f"there is no run {name} in the namespace{did_you_mean(name, others)}{listed}.")


def _runs(objects: list[dict[str, Any]]) -> list[Run]:
    jobs = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Job"}
    found = []
    for each in objects:
        metadata = each["metadata"]
        job = metadata.get("annotations", {}).get(f"{ANNOTATIONS}supervisor")
        if job:  # the other ConfigMaps of a supervisor do not name its Job
            found.append(_run(metadata, each.get("data", {}), job, jobs.get(job)))
    return sorted(found, key=lambda run: run.created, reverse=True)


def _run(metadata: Mapping[str, Any], data: Mapping[str, str], name: str, job: Mapping[str, Any] | None) -> Run:
    notes: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        notes = json.loads(data.get("notes.json", "{}"))
    annotations = (job or {}).get("metadata", {}).get("annotations", {})
    conditions = {each["type"]: each for each in (job or {}).get("status", {}).get("conditions") or ()}
    state = str(notes.get("state") or "Pending") if notes.get("job") == name else "Pending"
    outcome = annotations.get(f"{ANNOTATIONS}outcome") or str(notes.get("reason", ""))
    failed = conditions.get("Failed", {})
    if failed.get("status") == "True" and state != "Succeeded":
        state, outcome = "Failed", outcome or f"the supervisor's Job has failed: {failed.get('message', '')}"
    return Run(
        name=metadata["labels"][INSTANCE],
        state=state,
        progress=annotations.get(f"{ANNOTATIONS}progress", ""),
        outcome=outcome,
        job=name,
        has_job=job is not None,
        created=datetime.fromisoformat(metadata["creationTimestamp"].replace("Z", "+00:00")),
    )


def suspend(cluster: Cluster, name: str) -> None:
    """End the tasks of a run, which save first, and free their resources.

    Raises:
        ConfigurationError: there is no such run, it has ended, its release has another version, or what
            `Cluster.helm` raises.
    """
    _set_suspend(cluster, name, True)


def resume(cluster: Cluster, name: str) -> None:
    """Let a run go on from its last checkpoint. Raises what `suspend` does."""
    _set_suspend(cluster, name, False)


def _set_suspend(cluster: Cluster, name: str, value: bool) -> None:
    release, run = release_of(cluster, name), find(cluster, name)
    if run.has_ended:
        raise ConfigurationError(f"the run {name} has ended: {run.outcome or run.state}.")
    option = f"run.suspend={'true' if value else 'false'}"
    if release.version != chart.version():
        raise ConfigurationError(
            f"the run {name} has version {release.version} of the chart, and trainer {trainer.__version__} has "
            f"{chart.version()}, whose upgrade would change the run; use that version of trainer, or helm upgrade "
            f"{name} CHART --version {release.version} --reset-then-reuse-values --set {option}."
        )
    cluster.helm("upgrade", name, str(chart.path()), "--reset-then-reuse-values", "--set", option)


def delete(cluster: Cluster, name: str, data: bool = False) -> list[str]:
    """Uninstall a run. With `data`, also delete the claims that it has made, and all files in them.

    Returns:
        The claims that are kept.

    Raises:
        ConfigurationError: there is no such run, a pod uses a claim, or what `Cluster.helm` raises.
    """
    is_installed = cluster.release(name) is not None
    labels = OF_CHART | {INSTANCE: name, **SUBMITTED}
    left = [each["metadata"]["name"] for each in cluster.items("configmaps", labels)]  # of a submission that was cut
    if is_installed or not (left or (data and claims_of(cluster, name))):
        release_of(cluster, name)
        cluster.helm("uninstall", name, "--wait")
    if left:
        cluster.kubectl("delete", "configmaps", *left, "--ignore-not-found")
    claims = claims_of(cluster, name)
    if not data or not claims:
        return claims
    delete_claims(cluster, name, claims)
    return []


SUBMITTED = {"app.kubernetes.io/managed-by": "trainer"}
"""Labels of what this package makes."""


def claims_of(cluster: Cluster, name: str) -> list[str]:
    """The claims that a release of this name has made. Raises what `Cluster.kubectl` does."""
    found = cluster.items("persistentvolumeclaims", OF_CHART | BY_HELM | {INSTANCE: name})
    names = []
    for each in found:
        metadata = each["metadata"]
        is_own = metadata.get("annotations", {}).get("meta.helm.sh/release-name") == name
        if is_own and "deletionTimestamp" not in metadata:
            names.append(metadata["name"])
    return names


def delete_claims(cluster: Cluster, name: str, claims: list[str]) -> None:
    """Delete claims of a run.

    Raises:
        ConfigurationError: a pod of another one uses one, or what `Cluster.kubectl` raises.
    """
    for pod in json.loads(cluster.kubectl("get", "pods", "--output=json"))["items"]:
        for volume in pod["spec"].get("volumes", []):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            is_other = pod["metadata"].get("labels", {}).get(INSTANCE) != name
            if claim in claims and is_other and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                raise ConfigurationError(
                    f"the claim {claim} is not deleted, because the pod {pod['metadata']['name']} uses it; delete that "
                    "first."
                )
    cluster.kubectl("delete", "persistentvolumeclaims", *claims, "--ignore-not-found", "--wait=false")
