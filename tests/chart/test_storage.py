"""Which pods mount the training directory and the data, and how pods with a ReadWriteOnce claim get the same node."""

from typing import Any

import pytest

from tests.chart.chart import ALL_ROLES, Manifests, render

UNSUPERVISED = {"supervisor.enabled": False}
SHARED = {"trainingDirectory.accessModes": ["ReadWriteMany"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NO_TRAINING_DIRECTORY = {"trainingDirectory.enabled": False, "tensorboard.enabled": False, "common.command": ["run"]}
NFS = {"trainingDirectory.nfs.server": "nas", "trainingDirectory.nfs.path": "/exports"}


def mounts(manifests: Manifests, volume: str) -> dict[str, bool]:
    """The components that mount a volume, and whether they may write to it."""
    return {
        component: not mount.get("readOnly", False)
        for component, pod in manifests.pods().items()
        for mount in pod["spec"]["containers"][0]["volumeMounts"]
        if mount["name"] == volume
    }


def shared_nodes(manifests: Manifests) -> dict[str, str | None]:
    """The components that must share a node with pods of the run; the component that they follow (None: any)."""
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
def test_only_pods_that_need_the_training_directory_mount_it(values: dict[str, Any], tasks: set[str]) -> None:
    assert mounts(render(values), "training") == {**dict.fromkeys(tasks, True), "tensorboard": False}
    # Without a supervisor, `helm test` reads the result to see whether the run has ended.
    unsupervised = mounts(render({**values, "supervisor.enabled": False}), "training")
    assert unsupervised == {**dict.fromkeys(tasks, True), "tensorboard": False, "test": False}


def test_replicas_and_the_evaluator_mount_the_data() -> None:
    computing = ("chief", "worker", "evaluator")
    assert mounts(render({**ALL_ROLES, "data.enabled": True}), "data") == dict.fromkeys(computing, True)
    read_only = {**ALL_ROLES, "data.enabled": True, "data.readOnly": True}
    assert mounts(render(read_only), "data") == dict.fromkeys(computing, False)


def test_a_run_without_a_training_directory_has_no_claim_and_no_pod_affinity() -> None:
    manifests = render({**ALL_ROLES, **NO_TRAINING_DIRECTORY})
    assert manifests.of("PersistentVolumeClaim") == []
    assert mounts(manifests, "training") == {}
    assert shared_nodes(manifests) == {}
    assert not [pod for pod in manifests.pods().values() if "persistentVolumeClaim" in str(pod["spec"]["volumes"])]
    for role in ("chief", "worker"):
        assert "TASK_LOG" not in manifests.environment(role)


def test_the_output_of_a_custom_program_is_saved_only_on_request() -> None:
    """A program may itself use the folder `logs` of the training directory."""
    own = {**ALL_ROLES, "chief.command": ["run"]}
    logs = {role: render(own).environment(role).get("TASK_LOG") for role in ("chief", "evaluator")}
    assert logs == {"chief": None, "evaluator": "/training/logs/evaluator-$(POD_INDEX).log"}
    asked = render({**own, "trainingDirectory.logs": "output/1"})
    assert asked.environment("chief")["TASK_LOG"] == "/training/output/1/chief-$(POD_INDEX).log"


@pytest.mark.parametrize(
    ("values", "nodes"),
    [
        ({}, {"worker": None, "tensorboard": None}),
        (UNSUPERVISED, {"worker": None, "tensorboard": "worker", "test": "worker"}),
        (ALL_ROLES, {"chief": None, "evaluator": "chief", "tensorboard": None}),
        ({**ALL_ROLES, **UNSUPERVISED}, {"chief": None, "evaluator": "chief", "tensorboard": "chief", "test": "chief"}),
        ({**ALL_ROLES, **SHARED}, {}),
        ({**ALL_ROLES, **NFS}, {}),
    ],
    ids=["no chief", "no supervisor", "a chief", "a chief, no supervisor", "every node can mount it", "NFS"],
)
def test_pods_that_share_a_read_write_once_claim_get_the_same_node(
    values: dict[str, Any], nodes: dict[str, str | None]
) -> None:
    assert shared_nodes(render(values)) == nodes


@pytest.mark.parametrize(
    ("values", "waits"),
    [({}, True), (UNSUPERVISED, False), (SHARED, False), ({**SHARED, **UNSUPERVISED}, False)],
    ids=["started by the supervisor", "no supervisor", "every node can mount it", "both"],
)
def test_tensorboard_waits_for_the_leaders_node_if_it_shares_a_read_write_once_claim(
    values: dict[str, Any], waits: bool
) -> None:
    """Kubernetes creates its pod only when the supervisor has created its service account."""
    manifests = render(values)
    account = manifests.get("Deployment/tensorboard spec template spec serviceAccountName")
    assert account == "mnist-tensorboard"
    assert (manifests.get("ServiceAccount/tensorboard kind") is None) == waits
    assert (manifests.get("ConfigMap/supervisor data run.json tensorboard serviceAccount") == account) == waits


def test_tensorboard_leaves_a_node_with_gpus_after_the_run() -> None:
    path = "ConfigMap/supervisor data run.json tensorboard leavesNode"
    assert [render(values).get(path) for values in ({}, {"worker.gpus": 1})] == [False, True]


def test_pods_on_the_chiefs_node_have_the_chiefs_tolerations() -> None:
    taint = {"key": "dedicated", "operator": "Exists"}
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists"}
    pods = render({**ALL_ROLES, **UNSUPERVISED, "chief.gpus": 1, "chief.tolerations": [taint]}).pods()
    tolerations = {component: pod["spec"].get("tolerations", []) for component, pod in pods.items()}
    on_its_node, elsewhere = [taint, gpu], list[Any]()
    assert tolerations == {
        **dict.fromkeys(("chief", "evaluator", "tensorboard", "test"), on_its_node),
        **dict.fromkeys(("worker", "ps"), elsewhere),
    }


def test_custom_affinity_is_kept_beside_the_affinity_for_the_claim() -> None:
    own: dict[str, Any] = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "zone"}
    affinity = {"podAffinity": {REQUIRED: [own]}, "nodeAffinity": {"preferred": []}}
    found = render({"common.affinity": affinity}).get("StatefulSet/worker spec template spec affinity")
    assert found["nodeAffinity"] == affinity["nodeAffinity"]
    assert len(found["podAffinity"][REQUIRED]) == 2
    assert found["podAffinity"][REQUIRED][0] == own


def test_tensorboard_uses_the_image_pull_secrets_of_common() -> None:
    path = "Deployment/tensorboard spec template spec imagePullSecrets"
    assert render({"common.imagePullSecrets": [{"name": "ours"}]}).get(path) == [{"name": "ours"}]


def test_an_update_of_tensorboard_first_removes_the_old_pod() -> None:
    assert render()["Deployment/tensorboard"]["spec"]["strategy"] == {"type": "Recreate"}


def test_the_storage_class_is_absent_by_default_and_a_dash_makes_it_empty() -> None:
    path = "PersistentVolumeClaim/training spec"
    assert "storageClassName" not in render().get(path)
    assert render({"trainingDirectory.storageClassName": "-"}).get(path)["storageClassName"] == ""
