"""Gangs, queues and placement: what `scheduling` adds to the pods of tasks and to the release."""

from typing import Any

import pytest

from tests.chart.chart import ALL_ROLES, render
from tests.chart.test_supervisor import run_json
from trainer.supervisor.kueue import GATE

WORKLOAD: dict[str, Any] = {"scheduling.gang": "workload"}
ALPHA, BETA = "scheduling.k8s.io/v1alpha2/PodGroup", "scheduling.k8s.io/v1beta1/PodGroup"
KUEUE: dict[str, Any] = {"scheduling.gang": "kueue", "scheduling.queue": "research"}
WORKLOADS = "kueue.x-k8s.io/v1beta2/Workload"
CLIENT: dict[str, Any] = {"client.replicas": 1, "client.command": ["run"]}


@pytest.mark.parametrize(
    ("values", "size"),
    [
        ({}, 3),
        ({**ALL_ROLES, "ps.replicas": 2}, 6),
        ({"worker.replicas": 3, "run.elastic": {"min": 1, "max": 4}}, 2),
    ],
)
def test_kubernetes_pod_group_has_all_tasks_that_must_start_together(values: dict[str, Any], size: int) -> None:
    manifests = render({**WORKLOAD, **values}, apis=(ALPHA, BETA))
    (group,) = manifests.of("PodGroup")
    assert group["apiVersion"] == "scheduling.k8s.io/v1beta1"
    assert group["metadata"]["name"] == "mnist"
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": size}}
    assert group["spec"]["disruptionMode"] == {"single" if "run.elastic" in values else "all": {}}
    for item in manifests.of("StatefulSet"):
        assert item["spec"]["template"]["spec"]["schedulingGroup"] == {"podGroupName": "mnist"}
    for component in ("tensorboard", "supervisor"):
        assert "schedulingGroup" not in manifests.pods()[component]["spec"]
    gang = run_json(manifests)["gang"]
    assert (gang["kind"], sum(gang["members"].values())) == ("workload", size)


def test_in_kubernetes_1_36_another_size_is_another_pod_group_and_another_run() -> None:
    """All of its spec is immutable there."""
    two, three = (render({**WORKLOAD, "worker.replicas": n, "worker.maxReplicas": 3}, apis=(ALPHA,)) for n in (2, 3))
    (group,) = three.of("PodGroup")
    assert (group["apiVersion"], group["metadata"]["name"]) == ("scheduling.k8s.io/v1alpha2", "mnist-4")
    assert group["spec"]["disruptionMode"] == "PodGroup"
    assert three.get("StatefulSet/ps spec template spec schedulingGroup podGroupName") == "mnist-4"
    assert run_json(two)["hash"] != run_json(three)["hash"]
    later = [render({**WORKLOAD, "worker.replicas": n, "worker.maxReplicas": 3}, apis=(BETA,)) for n in (2, 3)]
    assert len({run_json(manifests)["hash"] for manifests in later}) == 1


def test_a_pod_group_has_the_priority_of_the_leader() -> None:
    (group,) = render({**WORKLOAD, "common.priorityClassName": "high"}, apis=(BETA,)).of("PodGroup")
    assert group["spec"]["priorityClassName"] == "high"


def test_tasks_in_a_queue_of_kueue_have_a_gate_that_the_supervisor_removes() -> None:
    gates = {"common.podSpec": {"schedulingGates": [{"name": "mine"}]}}
    manifests = render({**KUEUE, **CLIENT, **gates, "run.elastic": {"min": 1, "max": 4}}, apis=(WORKLOADS,))
    for item in manifests.of("StatefulSet"):
        assert item["spec"]["template"]["spec"]["schedulingGates"] == [{"name": "mine"}, {"name": GATE}]
    assert manifests.pods()["client"]["spec"]["schedulingGates"] == [{"name": "mine"}]
    assert run_json(manifests)["gang"] == {"kind": "kueue", "queue": "research", "members": {"worker": 1, "ps": 1}}


@pytest.mark.parametrize("change", [{"worker.replicas": 3}, {"scheduling.queue": "other"}])
def test_another_number_of_tasks_or_another_queue_is_another_run(change: dict[str, Any]) -> None:
    before = {**KUEUE, "worker.maxReplicas": 4}
    hashes = {run_json(render(values, apis=(WORKLOADS,)))["hash"] for values in (before, {**before, **change})}
    assert len(hashes) == 2


def test_only_a_queue_of_kueue_gives_the_supervisor_more_rights() -> None:
    def rules(values: dict[str, Any]) -> list[Any]:
        found = render(values, apis=(WORKLOADS, BETA))["Role/supervisor"]["rules"]
        found = [rule for rule in found if "jobs" not in rule["resources"]]  # their names have hashes
        return [(rule["resources"], rule.get("resourceNames"), rule["verbs"]) for rule in found]

    assert rules(WORKLOAD) == rules({})
    *same, pods = rules({})
    tasks = ["mnist-worker-0", "mnist-worker-1", "mnist-worker-2", "mnist-worker-3", "mnist-ps-0"]
    assert pods == (["pods"], tasks, ["delete"])
    assert rules(KUEUE) == [
        *same,
        (["pods"], tasks, ["delete", "patch"]),
        (["workloads"], None, ["create"]),
        (["workloads"], ["mnist"], ["list", "watch", "patch", "delete"]),
        (["workloads/status"], ["mnist"], ["patch"]),
    ]
