"""The trainer and TensorFlow can read the TF_CONFIG, or the cluster file, of each task."""

import argparse
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.chart.chart import ALL_ROLES, Manifests, refusal, render
from trainer import config
from trainer.cluster.spec import ROLES, ClassicFlags, ClusterFile, Role, Task, resolve


def environment_of(manifests: Manifests, role: str, index: int) -> dict[str, str]:
    """The container's environment, with references resolved as the kubelet does."""
    composed: dict[str, str] = {}
    for name, value in manifests.environment(role).items():
        if isinstance(value, str):
            composed[name] = re.sub(r"\$\((\w+)\)", lambda found: composed[found[1]], value)
        elif "configMapKeyRef" in value:
            config = manifests["ConfigMap/config"]
            assert config["metadata"]["name"] == value["configMapKeyRef"]["name"]
            composed[name] = config["data"][value["configMapKeyRef"]["key"]]
        else:
            fields = {
                "metadata.labels['apps.kubernetes.io/pod-index']": str(index),
                "metadata.name": f"mnist-{role}-{index}",
            }
            composed[name] = fields[value["fieldRef"]["fieldPath"]]
    return composed


CLUSTERS: dict[str, dict[str, Any]] = {
    "default": {},
    "every role": {**ALL_ROLES, "worker.replicas": 3, "ps.replicas": 2, "port": 3333},
    "a chief without workers": {"chief.replicas": 1, "worker.replicas": 0},
    "all-reduce": {"train.strategy": "allreduce", "ps.replicas": 0, "chief.replicas": 1},
    "more maxReplicas than replicas": {"worker.replicas": 1, "worker.maxReplicas": 12},
}


@pytest.mark.parametrize("case", CLUSTERS)
def test_tf_config_names_the_cluster_and_the_task(case: str) -> None:
    manifests = render(CLUSTERS[case])
    tasks = [Task(role, index) for role in ROLES for index in range(manifests.replicas(role))]
    port = CLUSTERS[case].get("port", 2222)
    for task in tasks:
        text = environment_of(manifests, task.role, task.index)["TF_CONFIG"]
        cluster, _ = resolve(text, ClassicFlags(), strategy=CLUSTERS[case].get("train.strategy", "ps"))
        assert cluster
        assert cluster.task == task
        for peer in set(tasks) - {Task("evaluator", 0)}:
            # The DNS name of a StatefulSet's pod in the domain of its headless Service.
            assert manifests.get(f"StatefulSet/{peer.role} spec serviceName") == f"mnist-{peer.role}"
            assert manifests.get(f"Service/{peer.role} spec clusterIP") == "None"
            assert cluster.address(peer) == f"mnist-{peer.role}-{peer.index}.mnist-{peer.role}:{port}"


def test_pods_start_in_parallel_and_resolve_before_they_are_ready() -> None:
    manifests = render(ALL_ROLES)
    for role in ROLES:
        assert manifests.get(f"StatefulSet/{role} spec podManagementPolicy") == "Parallel"
        assert manifests.get(f"Service/{role} spec publishNotReadyAddresses") is True


def test_the_cluster_lists_max_replicas_workers() -> None:
    manifests = render({"worker.replicas": 1, "worker.maxReplicas": 12})
    cluster, _ = resolve(environment_of(manifests, "ps", 0)["TF_CONFIG"], ClassicFlags())
    assert cluster
    assert len(cluster.worker) == 12


@pytest.mark.parametrize(
    ("values", "listed"),
    [
        ({}, 4),
        ({"worker.replicas": 3, "chief.replicas": 1}, 6),
        ({"worker.replicas": 100}, 108),
        ({"worker.maxReplicas": 2}, 2),
        ({"run.elastic": {"min": 1, "max": 3}}, 3),
        ({"supervisor.enabled": False}, 2),
        ({"worker.image.repository": "mine", "worker.command": ["run"]}, 2),
        ({"common.image.repository": "mine", "common.command": ["run"]}, 2),
        ({"ps.image.repository": "mine", "ps.command": ["run"]}, 2),
        ({"train.strategy": "allreduce", "ps.replicas": 0}, 2),
    ],
    ids=str,
)
def test_only_the_packaged_trainer_with_parameter_servers_gets_more_addresses_than_workers(
    values: dict[str, Any], listed: int
) -> None:
    """Programs of the user may count the listed workers, as with TFJob."""
    manifests = render(values)
    cluster = json.loads(environment_of(manifests, "worker", 0)["TF_CONFIG"])["cluster"]
    assert len(cluster["worker"]) == listed
    spare = manifests.get("ConfigMap/config data trainer.yaml spare_workers") or 0
    is_default = "worker.maxReplicas" not in values and "run.elastic" not in values
    assert spare == (listed - manifests.replicas("worker") if is_default else 0)


def test_tensorflow_parses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.tensorflow import tf1

    manifests = render({**ALL_ROLES, "worker.replicas": 3})
    for role, index in (("chief", 0), ("worker", 2), ("ps", 0), ("evaluator", 0)):
        monkeypatch.setenv("TF_CONFIG", environment_of(manifests, role, index)["TF_CONFIG"])
        resolver = tf1.distribute.cluster_resolver.TFConfigClusterResolver()
        assert (resolver.task_type, resolver.task_id) == (role, index)
        assert resolver.cluster_spec().as_dict() == {
            "chief": ["mnist-chief-0.mnist-chief:2222"],
            "worker": [f"mnist-worker-{worker}.mnist-worker:2222" for worker in range(6)],
            "ps": ["mnist-ps-0.mnist-ps:2222"],
        }


def test_a_cluster_too_large_for_tf_config_is_read_from_a_file() -> None:
    manifests = render({"worker.replicas": 1300, "worker.maxReplicas": 1300}, release="m" * 40)
    text = manifests.get("ConfigMap/config data")["cluster.json"]
    tasks: tuple[tuple[Role, int], ...] = (("worker", 1299), ("ps", 0))
    for role, index in tasks:
        environment = environment_of(manifests, role, index)
        assert not {"TF_CONFIG", "TF_CLUSTER"} & set(environment)
        settings = config.load(argparse.Namespace(config=None), environment)
        mount = manifests.get(f"StatefulSet/{role} spec template spec containers {role} volumeMounts config mountPath")
        assert settings.cluster_file == Path(mount) / "cluster.json"
        file = ClusterFile(str(settings.cluster_file), text)
        cluster, conflicts = resolve(None, ClassicFlags(None, None, settings.job_name, settings.task_index), file)
        assert cluster
        assert (cluster.task, len(cluster.worker), conflicts) == (Task(role, index), 1300, [])


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"worker.replicas": 4000}, "worker.replicas"),
        ({"worker.replicas": 100, "worker.maxReplicas": 2000, "ps.replicas": 90}, "worker.maxReplicas"),
        ({"worker.replicas": 12, "ps.replicas": 4000, "chief.replicas": 1}, "ps.replicas"),
    ],
    ids=str,
)
def test_a_program_of_the_user_gets_the_largest_tf_config_or_the_number_that_fits(
    values: dict[str, Any], key: str
) -> None:
    release, values = "m" * 40, {**values, "common.command": ["run"]}
    found = re.search(
        f"{key}: {values[key]} tasks do not fit into TF_CONFIG.*; set at most ([0-9]+),", refusal(values, release)
    )
    assert found
    fitting = int(found[1])
    manifests = render({**values, key: fitting}, release=release)
    role = key.partition(".")[0]
    largest = environment_of(manifests, role, fitting - 1)["TF_CONFIG"]
    assert subprocess.run(["true"], env={"TF_CONFIG": largest}, check=True).returncode == 0
    hosts = json.loads(largest)["cluster"][role]
    assert len(hosts) == fitting
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["true"], env={"TF_CONFIG": largest + f',"{hosts[-1]}"'}, check=True)
    assert f"set at most {fitting}," in refusal({**values, key: fitting + 1}, release)


def test_the_packaged_trainer_reads_a_cluster_from_a_file_only_if_it_does_not_fit() -> None:
    limit = 128 * 1024  # of Linux, for one environment string with its name and the terminating zero
    rest = len('TF_CONFIG={"cluster":,"task":{"type":"evaluator","index":1299},"environment":"cloud"}') + 1
    fullname = "m" * 40

    def length(workers: int) -> int:
        hosts = [f"{fullname}-worker-{index}.{fullname}-worker:2222" for index in range(workers)]
        return len(json.dumps({"ps": [f"{fullname}-ps-0.{fullname}-ps:2222"], "worker": hosts}, separators=(",", ":")))

    workers = max(number for number in range(1000, 1300) if length(number) + rest <= limit)
    for number, fits in ((workers, True), (workers + 1, False)):
        manifests = render({"worker.replicas": number, "worker.maxReplicas": number}, release=fullname)
        assert ("TF_CONFIG" in manifests.environment("worker")) == fits


@pytest.mark.parametrize("values", [{}, {**ALL_ROLES, "chief.taskType": "master"}], ids=["default", "master"])
def test_helm_test_gets_the_number_of_tasks_of_each_role(values: dict[str, Any]) -> None:
    manifests = render(values)
    replicas = json.loads(manifests.environment("test")["REPLICAS"])
    cluster = json.loads(manifests["ConfigMap/config"]["data"]["cluster.json"])
    assert {role: count for role, count in replicas.items() if count} == {
        role: manifests.replicas({"master": "chief"}.get(role, role)) for role in cluster
    }
