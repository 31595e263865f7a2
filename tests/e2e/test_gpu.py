"""Only tasks with GPUs are scheduled to nodes that advertise `nvidia.com/gpu`.

No GPU is needed. One test adds a node that advertises two GPUs and has the usual taint. The node has no kubelet, so
this shows the decision of the scheduler only. The other test advertises GPUs on a real node, where the pods run.
"""

import json
import subprocess
from collections.abc import Iterator

import pytest
import yaml

import trainer
from tests.e2e.releases import UNSUPERVISED, Release, advertised, wait

GPU_NODE = "distributed-tensorflow-gpu"
SHARED = {"accessModes": ["ReadWriteMany"], "existingClaim": "shared"}


def kubectl(*words: str, text: str | None = None) -> str:
    return subprocess.run(["kubectl", *words], input=text, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def gpu_node(kubeconfig: object) -> Iterator[str]:
    """A node that advertises two GPUs."""
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": GPU_NODE}, "spec": {"taints": [taint]}}
    kubectl("apply", "-f-", text=yaml.safe_dump(node))
    resources = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "2"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "advertised by a test"}
    status = {"status": {"capacity": resources, "allocatable": resources, "conditions": [ready]}}
    kubectl("patch", "node", GPU_NODE, "--subresource=status", "--patch", json.dumps(status))
    yield GPU_NODE
    kubectl("delete", "node", GPU_NODE)


@pytest.fixture
def shared_claim(release: Release) -> Iterator[None]:
    """A claim that every node can mount. It is bound at once, so no provisioner affects the scheduling."""
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": release.namespace},
        "spec": {**spec, "capacity": {"storage": "1Gi"}, "hostPath": {"path": f"/tmp/{release.namespace}"}},  # noqa: S108
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared"},
        "spec": {**spec, "volumeName": release.namespace, "resources": {"requests": {"storage": "1Gi"}}},
    }
    release.kubectl("apply", "-f-", text=yaml.safe_dump_all([volume, claim]))
    yield
    kubectl("delete", "persistentvolume", release.namespace, "--wait=false")


def node_of(release: Release, pod: str) -> str | None:
    name = release.tasks().get(pod, {}).get("spec", {}).get("nodeName")
    return None if name is None else str(name)


@pytest.mark.alone  # it adds a node with GPUs, where pods of other tests may be placed
@pytest.mark.usefixtures("shared_claim")
def test_gpu_workers_are_scheduled_to_the_gpu_node_until_its_gpus_are_used(release: Release, gpu_node: str) -> None:
    release.install({"worker": {"replicas": 3, "gpus": 1}, "trainingDirectory": SHARED} | UNSUPERVISED)
    workers = [f"mnist-worker-{index}" for index in range(3)]

    def placed() -> list[str]:
        return [worker for worker in workers if node_of(release, worker) == gpu_node]

    wait(lambda: len(placed()) == 2 and node_of(release, "mnist-ps-0"), 60, release.describe)
    assert node_of(release, "mnist-ps-0") != gpu_node

    def node_of_tensorboard() -> str | None:
        pods = release.get("pods", labelSelector="app.kubernetes.io/component=tensorboard")["items"]
        return pods[0]["spec"].get("nodeName") if pods else None

    wait(node_of_tensorboard, 60, release.describe)
    assert node_of_tensorboard() != gpu_node

    (container,) = release.tasks()["mnist-worker-0"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["image"].endswith("-gpu")
    (pending,) = set(workers) - set(placed())
    assert release.tasks()[pending]["status"]["phase"] == "Pending"

    def why() -> str:
        # Not by events: Kubernetes adds one to an earlier one with another message, as that of a claim not bound yet.
        conditions = release.tasks()[pending]["status"].get("conditions", [])
        return str(next((each["message"] for each in conditions if each["type"] == "PodScheduled"), ""))

    wait(lambda: "Insufficient nvidia.com/gpu" in why(), 60, release.describe)


@pytest.mark.alone  # GPUs of a node are for every pod that asks for some
def test_gpu_workers_train_on_a_real_node_that_advertises_gpus(release: Release) -> None:
    """With the CPU image, because the machine has no GPU; only the advertised resource is real."""
    with advertised("nvidia.com/gpu", 2):
        release.install({"worker": {"gpus": 1, "image": {"tag": trainer.__version__}}, "train": {"train_steps": 300}})
        assert release.wait_for_result(300)["workers"] == 2
