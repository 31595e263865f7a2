"""Who mounts the training directory and the data, and how pods that need a ReadWriteOnce claim come to one node."""

from typing import Any

import pytest

from tests.chart.chart import ALL_ROLES, Manifests, render

ALONE = {"supervisor.enabled": False}
SHARED = {"trainingDirectory.accessModes": ["ReadWriteMany"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NOTHING_KEPT = {"trainingDirectory.enabled": False, "tensorboard.enabled": False, "common.command": ["run"]}
NFS = {"trainingDirectory.nfs.server": "nas", "trainingDirectory.nfs.path": "/exports"}


def mounts(manifests: Manifests, volume: str) -> dict[str, bool]:
    """The components that mount a volume, and whether they may write there."""
    return {
        component: not mount.get("readOnly", False)
        for component, pod in manifests.pods().items()
        for mount in pod["spec"]["containers"][0]["volumeMounts"]
        if mount["name"] == volume
    }


def follows(manifests: Manifests) -> dict[str, str | None]:
    """The components that must be on a node with others of the run, and whose node that is (None: anybody's)."""
    nodes = {}
    for component, pod in manifests.pods().items():
        for term in pod["spec"].get("affinity", {}).get("podAffinity", {}).get(REQUIRED, []):
            assert term["topologyKey"] == "kubernetes.io/hostname"
            nodes[component] = term["labelSelector"]["matchLabels"].get("app.kubernetes.io/component")
    return nodes


@pytest.mark.parametrize(
    ("values", "tasks"),
    [
        ({}, {"worker"}),
        (ALL_ROLES, {"chief", "evaluator"}),
        ({**ALL_ROLES, **SHARED}, {"chief", "worker", "ps", "evaluator"}),
        ({**ALL_ROLES, **NFS}, {"chief", "worker", "ps", "evaluator"}),
    ],
    ids=["no chief", "a chief", "every node can mount it", "NFS"],
)
def test_the_training_directory_is_mounted_by_whom_it_must_be(values: dict[str, Any], tasks: set[str]) -> None:
    assert mounts(render(values), "training") == {**dict.fromkeys(tasks, True), "tensorboard": False}
    # Whether a run is over is known from its result, where no supervisor has noted it.
    unsupervised = mounts(render({**values, "supervisor.enabled": False}), "training")
    assert unsupervised == {**dict.fromkeys(tasks, True), "tensorboard": False, "test": False}


def test_data_are_mounted_by_those_who_compute() -> None:
    computing = ("chief", "worker", "evaluator")
    assert mounts(render({**ALL_ROLES, "data.enabled": True}), "data") == dict.fromkeys(computing, True)
    read_only = {**ALL_ROLES, "data.enabled": True, "data.readOnly": True}
    assert mounts(render(read_only), "data") == dict.fromkeys(computing, False)


def test_a_program_that_keeps_nothing_has_no_claim_and_is_tied_to_no_node() -> None:
    manifests = render({**ALL_ROLES, **NOTHING_KEPT})
    assert manifests.of("PersistentVolumeClaim") == []
    assert mounts(manifests, "training") == {}
    assert follows(manifests) == {}
    assert not [pod for pod in manifests.pods().values() if "persistentVolumeClaim" in str(pod["spec"]["volumes"])]
    for role in ("chief", "worker"):
        assert "TASK_LOG" not in manifests.environment(role)


@pytest.mark.parametrize(
    ("values", "nodes"),
    [
        ({}, {"worker": None, "tensorboard": None}),
        (ALONE, {"worker": None, "tensorboard": "worker", "test": "worker"}),
        (ALL_ROLES, {"chief": None, "evaluator": "chief", "tensorboard": None}),
        ({**ALL_ROLES, **ALONE}, {"chief": None, "evaluator": "chief", "tensorboard": "chief", "test": "chief"}),
        ({**ALL_ROLES, **SHARED}, {}),
        ({**ALL_ROLES, **NFS}, {}),
    ],
    ids=["no chief", "no supervisor", "a chief", "a chief, no supervisor", "every node can mount it", "NFS"],
)
def test_a_claim_for_one_node_brings_its_pods_there(values: dict[str, Any], nodes: dict[str, str | None]) -> None:
    assert follows(render(values)) == nodes


@pytest.mark.parametrize(
    ("values", "replicas"),
    [({}, 0), (ALONE, 1), (SHARED, 1), ({**SHARED, **ALONE}, 1)],
    ids=["held by the supervisor", "no supervisor", "every node can mount it", "both"],
)
def test_tensorboard_waits_for_the_supervisor_where_it_could_take_the_claim_away(
    values: dict[str, Any], replicas: int
) -> None:
    manifests = render(values)
    assert manifests["Deployment/tensorboard"]["spec"]["replicas"] == replicas
    told = manifests.see("ConfigMap/supervisor data run.yaml tensorboard_gated")
    assert told == (None if "supervisor.enabled" in values else replicas == 0)


def test_what_follows_the_chief_tolerates_what_it_does() -> None:
    taint = {"key": "dedicated", "operator": "Exists"}
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists"}
    pods = render({**ALL_ROLES, **ALONE, "chief.gpus": 1, "chief.tolerations": [taint]}).pods()
    tolerations = {component: pod["spec"].get("tolerations", []) for component, pod in pods.items()}
    on_its_node, elsewhere = [taint, gpu], list[Any]()
    assert tolerations == {
        **dict.fromkeys(("chief", "evaluator", "tensorboard", "test"), on_its_node),
        **dict.fromkeys(("worker", "ps"), elsewhere),
    }


def test_affinity_of_ones_own_stays_beside_the_way_to_the_claim() -> None:
    own: dict[str, Any] = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "zone"}
    affinity = {"podAffinity": {REQUIRED: [own]}, "nodeAffinity": {"preferred": []}}
    found = render({"common.affinity": affinity}).see("StatefulSet/worker spec template spec affinity")
    assert found["nodeAffinity"] == affinity["nodeAffinity"]
    assert len(found["podAffinity"][REQUIRED]) == 2
    assert found["podAffinity"][REQUIRED][0] == own


def test_tensorboard_pulls_with_the_secrets_of_common() -> None:
    path = "Deployment/tensorboard spec template spec imagePullSecrets"
    assert render({"common.imagePullSecrets": [{"name": "ours"}]}).see(path) == [{"name": "ours"}]


def test_tensorboard_leaves_the_claim_before_another_one_takes_it() -> None:
    assert render()["Deployment/tensorboard"]["spec"]["strategy"] == {"type": "Recreate"}


def test_a_class_of_none_and_the_clusters_own_are_two_things() -> None:
    path = "PersistentVolumeClaim/training spec"
    assert "storageClassName" not in render().see(path)
    assert render({"trainingDirectory.storageClassName": "-"}).see(path)["storageClassName"] == ""
