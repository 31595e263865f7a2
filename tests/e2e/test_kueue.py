"""A run in a queue of Kueue, on a real cluster with Kueue's API; the test decides in Kueue's place."""

import json
import subprocess
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import hack.cluster
from tests.chart.chart import EXAMPLES
from tests.e2e.releases import YIELDING, Release, wait

CRDS = Path(hack.cluster.__file__).with_name("kueue-crds.yaml")
WORKLOAD = "workloads.kueue.x-k8s.io"
FLAVOR: dict[str, Any] = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ResourceFlavor",
    "metadata": {"name": "e2e"},
    "spec": {
        "nodeLabels": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "e2e", "operator": "Exists", "effect": "NoSchedule"}],
    },
}
RIGHTS = f"--filename={EXAMPLES / 'rbac' / 'kueue.yaml'}"
PRIORITY = "e2e-queued"
RUN: dict[str, Any] = {
    "scheduling": {"gang": "kueue", "queue": "research"},
    "run": {"elastic": {"min": 1, "max": 2}},
    "tensorboard": {"enabled": False},
    "train": {"train_steps": 100_000_000, "save_seconds": 2},
    "common": YIELDING["common"] | {"priorityClassName": PRIORITY},
}


def kubectl(*words: str, text: str | None = None) -> None:
    subprocess.run(["kubectl", *words], input=text, text=True, check=True, capture_output=True)


@pytest.fixture
def kueue(release: Release) -> Iterator[Release]:
    """A release on a cluster that has Kueue's API and a flavor that its supervisor may read."""
    if release.try_kubectl("get", "customresourcedefinitions", WORKLOAD).returncode == 0:
        pytest.skip("the cluster has Kueue, which would decide instead of the test")
    kubectl("apply", f"--filename={CRDS}")
    kubectl("wait", "--for=condition=Established", "--timeout=60s", f"--filename={CRDS}")
    kubectl("apply", "--filename=-", text=json.dumps(FLAVOR))
    kubectl("create", "priorityclass", PRIORITY, "--value=1000", "--preemption-policy=Never")
    kubectl("apply", RIGHTS)
    yield release
    release.try_kubectl("delete", f"{WORKLOAD}", "--all", "--wait=false")
    kubectl("delete", RIGHTS)
    kubectl("delete", "priorityclass", PRIORITY)
    kubectl("delete", f"--filename={CRDS}", "--wait=false")


def workload(release: Release) -> dict[str, Any]:
    """The run's Workload; empty if there is none."""
    done = release.try_kubectl("get", WORKLOAD, "mnist", "--output=json")
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}


def has(release: Release, kind: str) -> bool:
    """Whether the Workload has a condition."""
    listed = workload(release).get("status", {}).get("conditions", [])
    return any(each["type"] == kind and each["status"] == "True" for each in listed)


def decide(release: Release, reason: str, workers: int = 0, **conditions: bool) -> None:
    """Set conditions of the Workload, and the number of workers that are admitted, as Kueue does."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    common = {"reason": "Test", "message": reason, "lastTransitionTime": now}
    listed = {each["type"]: each for each in workload(release).get("status", {}).get("conditions", [])}
    listed |= {kind: {"type": kind, "status": str(status), **common} for kind, status in conditions.items()}
    status: dict[str, Any] = {"conditions": list(listed.values())}
    if workers:
        counts = {"worker": workers, "ps": 1}
        assigned = [{"name": role, "count": n, "flavors": {"cpu": "e2e"}} for role, n in counts.items()]
        status["admission"] = {"clusterQueue": "e2e", "podSetAssignments": assigned}
    patch = json.dumps({"status": status})
    release.kubectl("patch", WORKLOAD, "mnist", "--subresource=status", "--type=merge", f"--patch={patch}")


def admit(release: Release, workers: int) -> None:
    decide(release, "admitted", workers, QuotaReserved=True, Admitted=True, Evicted=False)


def wait_for_line(release: Release, part: str) -> None:
    wait(lambda: part in release.supervisor_log(), 200, release.describe)


def test_a_run_in_a_queue_starts_when_it_is_admitted_and_lets_go_when_it_is_evicted(kueue: Release) -> None:
    release = kueue
    release.install(RUN)
    wait(lambda: workload(release), 120, release.describe)
    spec = workload(release)["spec"]
    assert (spec["priorityClassRef"]["name"], spec["priority"]) == (PRIORITY, 1000)
    decide(release, "LocalQueue research doesn't exist", QuotaReserved=False)
    wait_for_line(release, "waiting in the queue research: LocalQueue research does not exist: create it")
    wait(lambda: not release.tasks(), 60, release.describe)
    admit(release, workers=1)
    wait_for_line(release, "Kueue has admitted 1 of 2 worker")
    wait_for_line(release, "steps/s")
    wait(lambda: has(release, "PodsReady"), 60, release.describe)
    annotation = "distributed-tensorflow/checkpoint"
    wait(lambda: annotation in workload(release)["metadata"]["annotations"], 120, release.describe)
    tasks = release.tasks()
    assert set(tasks) == {"mnist-worker-0", "mnist-ps-0"}
    for pod in tasks.values():
        assert pod["spec"]["nodeSelector"] == FLAVOR["spec"]["nodeLabels"]
        assert FLAVOR["spec"]["tolerations"][0] in pod["spec"]["tolerations"]
    decide(release, "preempted", Evicted=True)
    wait(lambda: not workload(release)["status"].get("admission"), 120, release.describe)
    assert not release.tasks(), "the quota is free when the tasks are gone"
    assert not has(release, "QuotaReserved")
    admit(release, workers=2)
    wait_for_line(release, "2 replicas")
    assert "CheckpointRestored" in release.kubectl("get", "events")
    release.kubectl("delete", WORKLOAD, "mnist")
    wait_for_line(release, "the Workload mnist was deleted: the tasks save a checkpoint and end")
    wait(lambda: workload(release), 120, release.describe)
    asked = workload(release)["metadata"]["uid"]
    release.upgrade(RUN | {"train": {"train_steps": 1}})  # another run, which is done when it starts
    wait(lambda: workload(release).get("metadata", {}).get("uid", asked) != asked, 120, release.describe)
    admit(release, workers=2)
    release.finish()
    assert has(release, "Finished")
