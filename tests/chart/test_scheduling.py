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
SHARED = {"trainingDirectory.accessModes": ["ReadWriteMany"]}
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
    name = group["metadata"]["name"]
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": size}}
    assert group["spec"]["disruptionMode"] == {"single" if "run.elastic" in values else "all": {}}
    for item in manifests.of("StatefulSet"):
        assert item["spec"]["template"]["spec"]["schedulingGroup"] == {"podGroupName": name}
    for component in ("tensorboard", "supervisor"):
        assert "schedulingGroup" not in manifests.pods()[component]["spec"]
    gang = run_json(manifests)["gang"]
    assert (gang["kind"], sum(gang["members"].values())) == ("workload", size)


def group_and_run(values: dict[str, Any], api: str) -> tuple[str, str]:
    """The name of the PodGroup, which the pods name, and the hash of the run."""
    manifests = render({**WORKLOAD, **values}, apis=(api,))
    (group,) = manifests.of("PodGroup")
    name = group["metadata"]["name"]
    assert manifests.get("StatefulSet/ps spec template spec schedulingGroup podGroupName") == name
    return name, run_json(manifests)["hash"]


RACKS = {**SHARED, "scheduling.topologyKey": "rack"}


@pytest.mark.parametrize(
    ("api", "before", "after"),
    [
        (BETA, {}, {"common.priorityClassName": "high"}),
        (BETA, {**RACKS, "scheduling.placement": "pack"}, {**RACKS, "scheduling.placement": "exclusive"}),
        (BETA, {"worker.maxReplicas": 4}, {"run.elastic": {"min": 2, "max": 4}}),
        (ALPHA, {}, {"common.priorityClassName": "high"}),
        (ALPHA, {"worker.maxReplicas": 3}, {"worker.maxReplicas": 3, "worker.replicas": 3}),
    ],
)
def test_what_kubernetes_cannot_change_in_a_pod_group_gives_another_one_and_another_run(
    api: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Otherwise the API server would refuse the upgrade half way. A pod alone in a new group would wait for others."""
    one, other = group_and_run(before, api), group_and_run(after, api)
    assert one[0] != other[0]
    assert one[1] != other[1]


def test_from_kubernetes_1_37_on_another_size_is_the_same_pod_group_and_run() -> None:
    two, three = (group_and_run({"worker.replicas": n, "worker.maxReplicas": 3}, BETA) for n in (2, 3))
    assert two == three


def test_in_kubernetes_1_36_a_pod_group_is_disrupted_as_a_whole() -> None:
    (group,) = render(WORKLOAD, apis=(ALPHA,)).of("PodGroup")
    assert (group["apiVersion"], group["spec"]["disruptionMode"]) == ("scheduling.k8s.io/v1alpha2", "PodGroup")


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


@pytest.mark.parametrize(
    "change",
    [
        {"worker.replicas": 3},
        {"scheduling.queue": "other"},
        {"worker.resources.requests.cpu": "100m"},
        {"common.nodeSelector": {"pool": "a100"}},
        {"ps.runtimeClassName": "small"},
    ],
    ids=str,
)
def test_a_run_that_asks_the_queue_for_something_else_is_another_run(change: dict[str, Any]) -> None:
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


FOREIGN = {
    "volcano": (
        "scheduling.volcano.sh/v1beta1/PodGroup",
        {"minMember": 3, "queue": "research", "priorityClassName": "high"},
        {"annotations": {"scheduling.k8s.io/group-name": "mnist"}},
        "volcano",
    ),
    "coscheduling": (
        "scheduling.x-k8s.io/v1alpha1/PodGroup",
        {"minMember": 3},
        {"labels": {"scheduling.x-k8s.io/pod-group": "mnist"}},
        "scheduler-plugins-scheduler",
    ),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_the_pod_group_and_the_marks_of_another_scheduler(kind: str) -> None:
    api, spec, marks, scheduler = FOREIGN[kind]
    queue = {} if kind == "coscheduling" else {"scheduling.queue": "research"}
    values = {"scheduling.gang": kind, **queue, "common.priorityClassName": "high", "common.labels": {"team": "vision"}}
    manifests = render({**values, "ps.schedulerName": "mine"}, apis=(api,))
    (group,) = manifests.of("PodGroup")
    assert (f"{group['apiVersion']}/{group['kind']}", group["metadata"]["name"], group["spec"]) == (api, "mnist", spec)
    pod = manifests.pods()["worker"]
    for place, expected in marks.items():
        assert pod["metadata"][place].items() >= expected.items()
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert (pod["spec"]["schedulerName"], manifests.pods()["ps"]["spec"]["schedulerName"]) == (scheduler, "mine")
    assert "schedulerName" not in manifests.pods()["tensorboard"]["spec"]


def test_spread_puts_the_tasks_of_each_role_evenly_over_nodes_or_other_domains() -> None:
    own = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    values = {**SHARED, "scheduling.placement": "spread", "ps.topologySpreadConstraints": [own]}
    for key in ("", "rack"):
        pods = render({**values, "scheduling.topologyKey": key}).pods()
        (worker,) = pods["worker"]["spec"]["topologySpreadConstraints"]
        assert worker["topologyKey"] == (key or "kubernetes.io/hostname")
        assert worker["whenUnsatisfiable"] == "ScheduleAnyway", "a node that cannot take the task would count as empty"
        assert worker["labelSelector"]["matchLabels"].items() <= pods["worker"]["metadata"]["labels"].items()
        assert pods["ps"]["spec"]["topologySpreadConstraints"][0] == own
        assert len(pods["ps"]["spec"]["topologySpreadConstraints"]) == 2
        terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]}
        only_nodes_of_a_domain = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        assert pods["worker"]["spec"].get("affinity") == (only_nodes_of_a_domain if key else None)
        assert "topologySpreadConstraints" not in pods["tensorboard"]["spec"]


@pytest.mark.parametrize("placement", ["pack", "exclusive"])
def test_pack_and_exclusive_add_to_the_affinity_of_the_values(placement: str) -> None:
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {
        "nodeAffinity": {required: {"nodeSelectorTerms": zones}},
        "podAffinity": {required: [{"topologyKey": "x"}]},
    }
    values = {"scheduling.placement": placement, "scheduling.topologyKey": "rack", "common.affinity": affinity}
    manifests = render({**SHARED, **values, **WORKLOAD}, apis=(BETA,))
    pods = manifests.pods()
    for role in ("worker", "ps"):
        found = pods[role]["spec"]["affinity"]
        terms = found["nodeAffinity"][required]["nodeSelectorTerms"]
        assert [len(term["matchExpressions"]) for term in terms] == [2, 2]
        assert terms[0]["matchExpressions"][1] == {"key": "rack", "operator": "Exists"}
        near = found["podAffinity"][required][1:]
        if placement == "pack":
            assert not near
            (preferred,) = found["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
            near = [preferred["podAffinityTerm"]]
        assert near[0]["topologyKey"] == "rack"
        assert near[0]["labelSelector"]["matchLabels"].items() <= pods[role]["metadata"]["labels"].items()
        assert ("podAntiAffinity" in found) == (placement == "exclusive")
    (spread,) = pods["ps"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    constraints = manifests.of("PodGroup")[0]["spec"].get("schedulingConstraints")
    assert constraints == ({"topology": [{"key": "rack"}]} if placement == "exclusive" else None)


def test_an_exclusive_run_shares_its_domain_with_no_other_release_in_any_namespace() -> None:
    values = {**SHARED, "scheduling.placement": "exclusive", "scheduling.topologyKey": "rack"}
    marks = set()
    for namespace in ("research", "production"):
        pod = render(values, namespace=namespace).pods()["worker"]
        (term,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert (term["namespaceSelector"], term["topologyKey"]) == ({}, "rack")
        mark = pod["metadata"]["labels"]["distributed-tensorflow/exclusive"]
        marks.add(mark)
        own = {"key": "distributed-tensorflow/exclusive", "operator": "NotIn", "values": [mark]}
        assert own in term["labelSelector"]["matchExpressions"]
    assert len(marks) == 2, "the names of releases are unique in a namespace only"
