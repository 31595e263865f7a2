"""The client: a Job outside the cluster. Its pod equals that of a task, except for what a Job needs."""

import json
from typing import Any

import pytest

from tests.chart.chart import Manifests, render
from tests.chart.test_storage import mounts

CLIENT = {"client.replicas": 1, "common.command": ["serve"], "client.command": ["ask"], "ps.replicas": 0}
UNSUPERVISED = {**CLIENT, "supervisor.enabled": False}


def name(manifests: Manifests) -> str:
    return str(manifests["Job/client"]["metadata"]["name"])


@pytest.mark.parametrize("values", [UNSUPERVISED, CLIENT], ids=["no supervisor", "supervisor"])
def test_its_pod_equals_that_of_a_worker_except_for_the_fields_of_a_job(values: dict[str, Any]) -> None:
    pods = render({**values, "trainingDirectory.accessModes": ["ReadWriteMany"]}).pods()
    client, worker = pods["client"]["spec"], pods["worker"]["spec"]
    (container,), (of_worker,) = client.pop("containers"), worker.pop("containers")
    assert set(client) - set(worker) == {"restartPolicy", "hostname"}
    assert set(of_worker) - set(container) == {"ports", "readinessProbe", "startupProbe"}
    assert {key for key in worker if client[key] != worker[key]} == {"serviceAccountName"}
    assert {key for key in container if container[key] != of_worker[key]} == {"name", "args", "env"}


def test_its_tf_config_has_the_cluster_but_it_is_not_a_member() -> None:
    manifests = render(CLIENT)
    assert manifests.get("ConfigMap/config data cluster.json worker 0") == "mnist-worker-0.mnist-worker:2222"
    assert manifests.get("ConfigMap/config data cluster.json client") is None
    environment = manifests.environment("client")
    assert environment["POD_INDEX"] == "0"
    assert '{"cluster":$(TF_CLUSTER),"task":{"type":"client","index":$(POD_INDEX)}' in environment["TF_CONFIG"]
    assert manifests.get("Service/client kind") is None
    assert manifests.get("PodDisruptionBudget/client kind") is None


def test_the_network_policy_of_tasks_applies_to_it() -> None:
    selector = render(CLIENT)["NetworkPolicy/tasks"]["spec"]["podSelector"]
    assert "client" in selector["matchExpressions"][0]["values"]


def test_it_is_the_only_task_that_mounts_the_training_directory() -> None:
    assert mounts(render(CLIENT), "training") == {"client": True, "tensorboard": False}


@pytest.mark.parametrize(
    ("policy", "permanent"), [("ExitCode", range(1, 128)), ("Never", range(1, 256)), ("OnFailure", [])]
)
def test_without_a_supervisor_its_exit_code_fails_the_job_and_a_drain_does_not(policy: str, permanent: Any) -> None:
    job = render({**UNSUPERVISED, "client.restartPolicy": policy})["Job/client"]["spec"]
    drained, *codes = job["podFailurePolicy"]["rules"]
    assert drained["action"] == "Ignore"
    assert [code for rule in codes for code in rule["onExitCodes"]["values"]] == [*permanent]
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert "suspend" not in job


def test_the_supervisor_starts_it_and_applies_its_restart_policy() -> None:
    job = render(CLIENT)["Job/client"]["spec"]
    assert render(CLIENT).environment("client")["TASK_WAITS"] == "yes"
    assert "podFailurePolicy" not in job
    assert job["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert job["template"]["spec"]["hostname"] == "mnist-client-0"


def test_the_supervisor_may_only_get_and_patch_its_job() -> None:
    manifests = render(CLIENT)
    run = json.loads(manifests["ConfigMap/supervisor"]["data"]["run.json"])
    assert run["leader"] == "mnist-client-0"
    assert run["roles"]["client"] == {"replicas": 1, "exits": "0-127:End 128-255:Restart", "job": name(manifests)}
    rules = [rule for rule in manifests["Role/supervisor"]["rules"] if rule["apiGroups"] == ["batch"]]
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in rules] == [
        (["list", "watch"], None),
        (["get", "patch"], [run["job"], name(manifests)]),
    ]


@pytest.mark.parametrize(
    ("change", "is_new"),
    [
        ({"client.args": ["--more"]}, True),
        ({"client.resources": {"requests": {"cpu": "1"}}}, True),
        ({"worker.replicas": 3}, True),
        ({"run.attempt": 2}, True),
        ({"run.suspend": True}, False),
        ({"run.backoffLimit": 1}, False),
        ({"tensorboard.enabled": False}, False),
    ],
    ids=str,
)
def test_a_changed_client_or_run_gets_a_new_job(change: dict[str, Any], is_new: bool) -> None:
    """The template of a Job is immutable."""
    assert (name(render(CLIENT)) != name(render({**CLIENT, **change}))) == is_new


def test_its_name_leaves_room_for_its_pods() -> None:
    assert len(f"{name(render(CLIENT, release='m' * 40))}-12345") <= 63
