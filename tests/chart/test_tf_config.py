"""What a task learns of its cluster is understood by the trainer and by TensorFlow itself."""

import argparse
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.chart.chart import ALL_ROLES, Manifests, render
from trainer import config
from trainer.cluster.spec import ROLES, ClassicFlags, ClusterFile, Role, Task, resolve


def environment_of(manifests: Manifests, role: str, index: int) -> dict[str, str]:
    """The cluster's part of a container's environment, put together as the kubelet does."""
    composed: dict[str, str] = {}
    for name, value in manifests.environment(role).items():
        if isinstance(value, str):
            composed[name] = re.sub(r"\$\((\w+)\)", lambda found: composed[found[1]], value)
        elif "configMapKeyRef" in value:
            config = manifests["ConfigMap/config"]
            assert config["metadata"]["name"] == value["configMapKeyRef"]["name"]
            composed[name] = config["data"][value["configMapKeyRef"]["key"]]
        else:
            known = {
                "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
                "metadata.name": f"mnist-{role}-{index}",
            }
            composed[name] = known[value["fieldRef"]["fieldPath"]]
    return composed


CLUSTERS: dict[str, dict[str, Any]] = {
    "by default": {},
    "with every role": {**ALL_ROLES, "worker.replicas": 3, "ps.replicas": 2, "port": 3333},
    "with a chief alone": {"chief.replicas": 1, "worker.replicas": 0},
    "with workers that hold the parameters": {"train.strategy": "allreduce", "ps.replicas": 0, "chief.replicas": 1},
    "with room for more workers": {"worker.replicas": 1, "worker.maxReplicas": 12},
}


@pytest.mark.parametrize("case", CLUSTERS)
def test_each_task_finds_its_cluster_and_itself(case: str) -> None:
    manifests = render(CLUSTERS[case])
    tasks = [Task(role, index) for role in ROLES for index in range(manifests.replicas(role))]
    port = CLUSTERS[case].get("port", 2222)
    for task in tasks:
        text = environment_of(manifests, task.role, task.index)["TF_CONFIG"]
        cluster, _ = resolve(text, ClassicFlags(), strategy=CLUSTERS[case].get("train.strategy", "ps"))
        assert cluster
        assert cluster.task == task
        for peer in set(tasks) - {Task("evaluator", 0)}:
            # The name that a StatefulSet's pod has in the domain of its headless Service.
            assert manifests.see(f"StatefulSet/{peer.role} spec serviceName") == f"mnist-{peer.role}"
            assert manifests.see(f"Service/{peer.role} spec clusterIP") == "None"
            assert cluster.address(peer) == f"mnist-{peer.role}-{peer.index}.mnist-{peer.role}:{port}"


def test_tasks_start_together_and_find_each_other_before_they_are_ready() -> None:
    manifests = render(ALL_ROLES)
    for role in ROLES:
        assert manifests.see(f"StatefulSet/{role} spec podManagementPolicy") == "Parallel"
        assert manifests.see(f"Service/{role} spec publishNotReadyAddresses") is True


def test_room_for_workers_is_in_the_cluster() -> None:
    manifests = render({"worker.replicas": 1, "worker.maxReplicas": 12})
    cluster, _ = resolve(environment_of(manifests, "ps", 0)["TF_CONFIG"], ClassicFlags())
    assert cluster
    assert len(cluster.worker) == 12


def test_tensorflow_understands_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.tensorflow import tf1

    manifests = render({**ALL_ROLES, "worker.replicas": 3})
    for role, index in (("chief", 0), ("worker", 2), ("ps", 0), ("evaluator", 0)):
        monkeypatch.setenv("TF_CONFIG", environment_of(manifests, role, index)["TF_CONFIG"])
        resolver = tf1.distribute.cluster_resolver.TFConfigClusterResolver()
        assert (resolver.task_type, resolver.task_id) == (role, index)
        assert resolver.cluster_spec().as_dict() == {
            "chief": ["mnist-chief-0.mnist-chief:2222"],
            "worker": [f"mnist-worker-{worker}.mnist-worker:2222" for worker in range(3)],
            "ps": ["mnist-ps-0.mnist-ps:2222"],
        }


def test_a_cluster_too_large_for_tf_config_comes_from_a_file() -> None:
    manifests = render({"worker.replicas": 1300}, release="m" * 40)
    text = manifests.see("ConfigMap/config data")["cluster.json"]
    tasks: tuple[tuple[Role, int], ...] = (("worker", 1299), ("ps", 0))
    for role, index in tasks:
        environment = environment_of(manifests, role, index)
        assert not {"TF_CONFIG", "TF_CLUSTER"} & set(environment)
        settings = config.load(argparse.Namespace(config=None), environment)
        mount = manifests.see(f"StatefulSet/{role} spec template spec containers {role} volumeMounts config mountPath")
        assert settings.cluster_file == Path(mount) / "cluster.json"
        file = ClusterFile(str(settings.cluster_file), text)
        cluster, conflicts = resolve(None, ClassicFlags(None, None, settings.job_name, settings.task_index), file)
        assert cluster
        assert (cluster.task, len(cluster.worker), conflicts) == (Task(role, index), 1300, [])


def test_the_largest_tf_config_is_one_that_linux_takes() -> None:
    fullname = "m" * 40

    def length(workers: int) -> int:
        hosts = [f"{fullname}-worker-{index}.{fullname}-worker:2222" for index in range(workers)]
        return len(json.dumps({"ps": [f"{fullname}-ps-0.{fullname}-ps:2222"], "worker": hosts}, separators=(",", ":")))

    workers = max(number for number in range(1000, 1300) if length(number) <= 128 * 1024 - 200)
    largest = environment_of(render({"worker.replicas": workers}, release=fullname), "worker", workers - 1)
    assert subprocess.run(["true"], env={"TF_CONFIG": largest["TF_CONFIG"]}, check=True).returncode == 0
    assert "TF_CONFIG" not in render({"worker.replicas": workers + 1}, release=fullname).environment("worker")


@pytest.mark.parametrize("values", [{}, {**ALL_ROLES, "chief.taskType": "master"}], ids=["by default", "with a master"])
def test_helm_test_knows_how_many_tasks_each_role_of_the_cluster_has(values: dict[str, Any]) -> None:
    manifests = render(values)
    counted = json.loads(manifests.environment("test")["REPLICAS"])
    cluster = json.loads(manifests["ConfigMap/config"]["data"]["cluster.json"])
    assert {role: count for role, count in counted.items() if count} == {
        role: len(hosts) for role, hosts in cluster.items()
    }
