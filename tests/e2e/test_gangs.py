"""Runs that each fit on a real node, but not together, as gangs of Kubernetes' own scheduler."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.releases import YIELDING, Release, advertised, wait

SLOT = "example.com/slot"
"""An extended resource, of which the node has three."""
POD_GROUP = "podgroups.scheduling.k8s.io"


def run(workers: int, **train: object) -> dict[str, Any]:
    """The values of a run that needs a slot for each worker."""
    return {
        "scheduling": {"gang": "workload"},
        "worker": {"replicas": workers, "resources": {"limits": {SLOT: "1"}}},
        "tensorboard": {"enabled": False},
        "train": {"save_seconds": 2, "train_steps": 100_000_000, **train},
        **YIELDING,
    }


@pytest.fixture
def slots(release: Release) -> Iterator[None]:
    """A node with three slots; skips on a cluster that has no gangs of its own."""
    if release.try_kubectl("get", POD_GROUP).returncode:
        pytest.skip("the cluster lacks the API scheduling.k8s.io/v1beta1: see docs/scheduling.md")
    with advertised(SLOT, 3):
        yield


@pytest.fixture
def high(release: Release) -> Iterator[str]:
    """The name of a priority class above the default."""
    name = f"{release.namespace}-high"
    release.kubectl("create", "priorityclass", name, "--value=1000")
    yield name
    release.kubectl("delete", "priorityclass", name)


def placed(release: Release) -> set[str]:
    """The tasks that have a node."""
    return {name for name, pod in release.tasks().items() if pod["spec"].get("nodeName")}


def beside(release: Release, name: str, folder: Path) -> Release:
    """Another release in the namespace of this one."""
    (folder / name).mkdir()
    return Release(name, release.namespace, folder / name)


@pytest.mark.usefixtures("slots")
def test_of_gangs_that_do_not_fit_together_each_holds_all_or_nothing(
    release: Release, high: str, tmp_path: Path
) -> None:
    """Two runs of which the second waits; then a more important one, which takes the place of the first for a while."""
    first, second, urgent = release, beside(release, "second", tmp_path), beside(release, "urgent", tmp_path)
    first.install(run(2))
    wait(lambda: "steps/s" in first.supervisor_log(), 200, first.describe)
    second.install(run(3, train_steps=300))
    waiting = f"waiting for room for 4 tasks at once (scheduling.gang): no node has enough {SLOT} left"
    wait(lambda: waiting in second.supervisor_log(), 200, second.describe)
    assert not placed(second)
    first.kubectl("delete", "pod", "mnist-worker-1")  # leaves room for two workers, but the second run has three
    wait(lambda: len(placed(first)) == 3, 120, first.describe)

    urgent.install(run(2, train_steps=300) | {"common": {"priorityClassName": high}})
    wait(lambda: placed(urgent), 200, urgent.describe)
    wait(lambda: not placed(first), 120, first.describe)  # of all tasks, also of the parameter server
    urgent.finish()
    wait(lambda: "CheckpointRestored" in first.kubectl("get", "events"), 300, first.describe)

    # Another priority is another PodGroup, as Kubernetes changes none. The run is done when it starts.
    first.upgrade(run(2, train_steps=1) | {"common": {"priorityClassName": high}})
    first.finish()
    second.finish()
