"""Hundreds of tasks, and where tasks go: the real control plane, and simulated nodes, whose pods run nothing."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightkube import Client
from lightkube.resources.core_v1 import Pod

from benchmarks.scale import cluster, supervisor
from hack.cluster import simulation
from tests.e2e.releases import wait

pytestmark = [
    pytest.mark.alone,  # one process has the simulated cluster
    pytest.mark.skipif("KUBECONFIG" in os.environ, reason="KUBECONFIG names a cluster without simulated nodes"),
]
WORKERS = 200
TASKS = WORKERS + WORKERS // 10 + 2
RACK = "example.com/rack"
POOL = "example.com/pool"
RACKED: dict[str, Any] = {
    "worker": {"replicas": 2},
    "common": {"resources": {"requests": {"cpu": "1"}, "limits": None}},
    "trainingDirectory": {"nfs": {"server": "nfs.example.com", "path": "/models"}},
    "supervisor": {"enabled": False},
    "tensorboard": {"enabled": False},
}
"""A run of three tasks. Each of two racks has two nodes, and a node has room for two tasks."""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """The simulated cluster: enough nodes with GPUs for one run of WORKERS, and two racks."""
    with simulation.running(), cluster.connect() as client:
        cluster.create_nodes(client, WORKERS + 10)
        cluster.create_nodes(client, 4, "racked", {"cpu": "2", "memory": "8Gi"}, lambda n: {RACK: f"rack-{n % 2}"})
        yield client


def pods(client: Client, namespace: str) -> list[Any]:
    """The pods of the tasks."""
    labels: Any = cluster.TASKS
    return list(client.list(Pod, namespace=namespace, labels=labels))


def nodes(client: Client, namespace: str) -> dict[str, str]:
    """The node of each task that has one."""
    return {pod.metadata.name: pod.spec.nodeName for pod in pods(client, namespace) if pod.spec.nodeName}


def refused(client: Client, namespace: str) -> int:
    """The number of tasks of which the scheduler has said that no node takes them."""
    conditions = [each for pod in pods(client, namespace) for each in pod.status.conditions or ()]
    return sum(each.type == "PodScheduled" and each.reason == "Unschedulable" for each in conditions)


def racks(client: Client, namespace: str, role: str = "") -> Counter[str]:
    """How many tasks are in each rack, of one role or of all."""
    found = nodes(client, namespace).items()
    return Counter(f"rack-{int(node.removeprefix('racked-')) % 2}" for name, node in found if f"-{role}" in name)


def test_of_two_gangs_of_two_hundred_workers_one_has_all_nodes_and_then_the_other(
    client: Client, tmp_path: Path
) -> None:
    # Both supervisors are in one sandbox, so they cannot listen on the same port.
    given = cluster.values(WORKERS) | {"scheduling": {"gang": "workload"}, "metrics": {"enabled": False}}
    simulation.resolve_in("one")
    started = []
    for namespace in ("one", "two"):
        cluster.install(client, "mnist", namespace, given, tmp_path)
        started.append(supervisor.start(client, "mnist", namespace, tmp_path))
    try:
        wait(lambda: max(len(nodes(client, each)) for each in ("one", "two")) == TASKS, 300)
        first, second = sorted(("one", "two"), key=lambda each: -len(nodes(client, each)))
        wait(lambda: refused(client, second) == TASKS, 300)
        assert not nodes(client, second), "it holds nothing"
        requests = cluster.requests(f"system:serviceaccount:{first}:mnist-supervisor")
        cluster.end_task(client, first, "mnist-chief-0", "chief")
        wait(lambda: cluster.are_gone(client, first), 300)
        wait(lambda: cluster.are_ready(client, second, TASKS), 300)
        cluster.end_task(client, second, "mnist-chief-0", "chief")
        wait(lambda: cluster.are_gone(client, second), 300)
        wait(lambda: [each.code() for each in started] == [0, 0], 120)
    finally:
        for each in started:
            each.stop()
    assert 0 < sum(requests.values()) < WORKERS / 2, f"{requests} would grow with the tasks"


def place(
    client: Client, namespace: str, placement: str, tmp_path: Path, topology_key: str = RACK, **values: Any
) -> None:
    """Install a run of three tasks with this placement, and wait until the scheduler has looked at each."""
    scheduling = {"placement": placement, "topologyKey": topology_key}
    cluster.install(client, "mnist", namespace, RACKED | {"scheduling": scheduling} | values, tmp_path)
    wait(lambda: len(nodes(client, namespace)) + refused(client, namespace) >= 3, 120)


def remove(client: Client, namespace: str) -> None:
    simulation.helm("uninstall", "mnist", f"--namespace={namespace}")
    wait(lambda: cluster.are_gone(client, namespace), 120)


def test_exclusive_runs_have_a_rack_each_and_the_third_waits_for_the_end_of_one(client: Client, tmp_path: Path) -> None:
    for namespace in ("red", "green", "blue"):
        place(client, namespace, "exclusive", tmp_path)
    red, green = racks(client, "red"), racks(client, "green")
    assert [list(red.values()), list(green.values())] == [[3], [3]]
    assert red != green
    assert not nodes(client, "blue")
    remove(client, "red")
    wait(lambda: racks(client, "blue") == red, 120)
    for namespace in ("green", "blue"):
        remove(client, namespace)


def test_packed_runs_share_a_rack_and_spread_ones_are_in_both(client: Client, tmp_path: Path) -> None:
    place(client, "packed", "pack", tmp_path)
    assert list(racks(client, "packed").values()) == [3]
    remove(client, "packed")
    place(client, "spread", "spread", tmp_path, worker={"replicas": 4}, ps={"replicas": 2})
    wait(lambda: len(nodes(client, "spread")) == 6, 120)
    assert racks(client, "spread", "worker") == {"rack-0": 2, "rack-1": 2}
    assert racks(client, "spread", "ps") == {"rack-0": 1, "rack-1": 1}
    remove(client, "spread")


def test_workers_with_gpus_are_spread_over_the_nodes_that_take_them(client: Client, tmp_path: Path) -> None:
    """Nodes without GPUs, and those of others, are not domains: no worker waits until each of them has one too."""
    room = {"cpu": "16", "memory": "64Gi"}
    for prefix, gpus in (("gpus", "8"), ("plain", "0"), ("tainted", "8")):
        has = room | {"nvidia.com/gpu": gpus}
        cluster.create_nodes(client, 2, f"mixed-{prefix}", has, lambda _: {POOL: "mixed"})
    simulation.kubectl("taint", "nodes", "mixed-tainted-0", "mixed-tainted-1", "example.com/team=other:NoSchedule")
    common = RACKED["common"] | {"nodeSelector": {POOL: "mixed"}}
    place(client, "mixed", "spread", tmp_path, topology_key="", worker={"replicas": 4, "gpus": 1}, common=common)
    wait(lambda: len(nodes(client, "mixed")) == 5, 120)
    workers = Counter(node for name, node in nodes(client, "mixed").items() if "-worker-" in name)
    assert workers == {"mixed-gpus-0": 2, "mixed-gpus-1": 2}
    remove(client, "mixed")


def test_tasks_wait_for_a_node_with_the_label_of_a_rack(client: Client, tmp_path: Path) -> None:
    place(client, "absent", "pack", tmp_path, topology_key="example.com/absent")
    assert not nodes(client, "absent")
    remove(client, "absent")
