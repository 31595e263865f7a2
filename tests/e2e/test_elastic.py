"""Workers that come and go during a run on a real cluster, by hand, by an autoscaler, and by the supervisor."""

import json
from typing import Any

import pytest

from tests.e2e.releases import ROOT, YIELDING, Release, wait

LONG: dict[str, Any] = {"train": {"train_steps": 100_000_000}} | YIELDING


def scale(release: Release, workers: int) -> None:
    release.kubectl("scale", "statefulset", "mnist-worker", f"--replicas={workers}")


def wait_for_line(release: Release, *parts: str) -> None:
    """Wait for a line of the supervisor's log with all these parts."""
    wait(
        lambda: any(all(part in line for part in parts) for line in release.supervisor_log().splitlines()),
        300,
        release.describe,
    )


@pytest.mark.parametrize(
    "is_synchronous",
    [pytest.param(False, id="asynchronous"), pytest.param(True, id="synchronous", marks=pytest.mark.long)],
)
def test_workers_are_added_to_and_removed_from_a_default_run(release: Release, is_synchronous: bool) -> None:
    release.install(LONG | {"train": LONG["train"] | {"sync_replicas": is_synchronous}})
    wait_for_line(release, "steps/s")
    kept = release.containers()
    scale(release, 4)
    wait_for_line(release, "take", "part from step", "4 replicas")
    assert release.containers().items() >= kept.items(), "the others go on"
    scale(release, 1)
    wait_for_line(release, "goes on without worker 1", "replica")  # if it cannot tell, it is "gone"
    wait(lambda: set(release.tasks()) == {"mnist-worker-0", "mnist-ps-0"}, 120, release.describe)
    wait_for_line(release, "goes on without worker", "1 replica")
    steps = release.supervisor_log().count("steps/s")
    wait(lambda: release.supervisor_log().count("steps/s") > steps, 60, release.describe)
    joined = release.supervisor_log().count("3 replicas")
    scale(release, 3)
    wait_for_line(release, "the workers have been scaled to 3")
    wait(lambda: release.supervisor_log().count("3 replicas") > joined, 120, release.describe)
    scale(release, 6)
    wait_for_line(release, "worker had the scale 6 instead of 3: set it again; the cluster has addresses for 4")
    text = release.supervisor_log()
    assert "was replaced" not in text, "a worker that is scaled away is not a loss"
    assert (release.notes()["counted"]["incidents"], release.notes()["state"]) == (0, "Running")
    assert release.notes()["scales"]["worker"] == 3
    assert "TasksLost" not in release.kubectl("get", "events")


@pytest.mark.long
def test_an_elastic_run_goes_on_with_the_workers_that_fit(release: Release) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "four"}, "spec": {"hard": {"pods": "4"}}}
    release.kubectl("apply", "--filename=-", text=json.dumps(quota))  # the supervisor, a parameter server, two workers
    values = {"worker": {"replicas": 3}, "run": {"elastic": {"min": 1, "max": 4}}, "tensorboard": {"enabled": False}}
    release.install(LONG | values)
    wait_for_line(
        release, "mnist-worker-2 cannot be scheduled", "quota four is exhausted", "going on with 2 instead of 3"
    )
    wait_for_line(release, "steps/s")
    assert "ScaledDown" in release.kubectl("get", "events")
    release.kubectl("delete", "resourcequota", "four")
    wait_for_line(release, "trying 3 instead of 2 workers (run.elastic)")
    wait_for_line(release, "part from step", "3 replicas")


def test_a_scale_that_an_autoscaler_sets_is_kept(release: Release) -> None:
    release.install(LONG | {"worker": {"maxReplicas": 6}})
    wait_for_line(release, "steps/s")
    release.kubectl("apply", f"--filename={ROOT / 'examples' / 'hpa.yaml'}")
    found = release.get("horizontalpodautoscaler", "mnist-worker")
    assert found["spec"]["scaleTargetRef"]["name"] == "mnist-worker"
    # The cluster has no metrics, so the test sets the scale as the autoscaler does.
    patch = ["--subresource=scale", "--type=merge", '--patch={"spec":{"replicas":3}}']
    release.kubectl("patch", "statefulset", "mnist-worker", *patch)
    wait_for_line(release, "the workers have been scaled to 3")
    wait_for_line(release, "part from step", "3 replicas")
    assert release.notes()["scales"]["worker"] == 3
