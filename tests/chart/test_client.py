"""The client: a Job beside the cluster, whose pod is a task's in all but what a Job needs."""

from typing import Any

import pytest
import yaml

from tests.chart.chart import Manifests, render
from tests.chart.test_storage import mounts

CLIENT = {"client.replicas": 1, "common.command": ["serve"], "client.command": ["ask"], "ps.replicas": 0}
ALONE = {**CLIENT, "supervisor.enabled": False}


def name(manifests: Manifests) -> str:
    return str(manifests["Job/client"]["metadata"]["name"])


@pytest.mark.parametrize("values", [ALONE, CLIENT], ids=["alone", "supervised"])
def test_its_pod_is_a_tasks(values: dict[str, Any]) -> None:
    pods = render({**values, "trainingDirectory.accessModes": ["ReadWriteMany"]}).pods()
    client, worker = pods["client"]["spec"], pods["worker"]["spec"]
    (container,), (other,) = client.pop("containers"), worker.pop("containers")
    assert set(client) - set(worker) == {"restartPolicy", "hostname"}
    assert set(other) - set(container) == {"ports", "readinessProbe", "startupProbe"}
    assert {key for key in worker if client[key] != worker[key]} == {"serviceAccountName"}
    assert {key for key in container if container[key] != other[key]} == {"name", "args", "env"}


def test_it_knows_the_cluster_and_is_none_of_it() -> None:
    manifests = render(CLIENT)
    assert manifests.see("ConfigMap/config data cluster.json worker 0") == "mnist-worker-0.mnist-worker:2222"
    assert manifests.see("ConfigMap/config data cluster.json client") is None
    environment = manifests.environment("client")
    assert environment["POD_INDEX"] == "0"
    assert '{"cluster":$(TF_CLUSTER),"task":{"type":"client","index":$(POD_INDEX)}' in environment["TF_CONFIG"]
    assert manifests.see("Service/client kind") is None
    assert manifests.see("PodDisruptionBudget/client kind") is None


def test_no_pod_reaches_it_but_its_run() -> None:
    selector = render(CLIENT)["NetworkPolicy/tasks"]["spec"]["podSelector"]
    assert "client" in selector["matchExpressions"][0]["values"]


def test_it_leads_the_run_and_alone_keeps_something() -> None:
    assert mounts(render(CLIENT), "training") == {"client": True, "tensorboard": False}


@pytest.mark.parametrize(
    ("policy", "permanent"), [("ExitCode", range(1, 128)), ("Never", range(1, 256)), ("OnFailure", [])]
)
def test_alone_it_fails_by_its_exit_code_and_not_by_a_drain(policy: str, permanent: Any) -> None:
    job = render({**ALONE, "client.restartPolicy": policy})["Job/client"]["spec"]
    drained, *codes = job["podFailurePolicy"]["rules"]
    assert drained["action"] == "Ignore"
    assert [code for rule in codes for code in rule["onExitCodes"]["values"]] == [*permanent]
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert "suspend" not in job


def test_the_supervisor_starts_it_and_judges_it() -> None:
    job = render(CLIENT)["Job/client"]["spec"]
    assert job["suspend"] is True
    assert "podFailurePolicy" not in job
    assert job["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert job["template"]["spec"]["hostname"] == "mnist-client-0"


def test_the_supervisor_knows_its_job_and_may_do_nothing_else_to_it() -> None:
    manifests = render(CLIENT)
    told = yaml.safe_load(manifests["ConfigMap/supervisor"]["data"]["run.yaml"])
    assert told["leader"] == "mnist-client-0"
    assert told["roles"]["client"] == {"replicas": 1, "restart_policy": "ExitCode", "job": name(manifests)}
    (rule,) = [rule for rule in manifests["Role/supervisor"]["rules"] if rule["apiGroups"] == ["batch"]]
    assert rule == {
        "apiGroups": ["batch"],
        "resources": ["jobs"],
        "resourceNames": [name(manifests)],
        "verbs": ["get", "patch"],
    }


@pytest.mark.parametrize(
    ("change", "another"),
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
def test_another_program_is_another_job(change: dict[str, Any], another: bool) -> None:
    """A Job's template cannot be changed."""
    assert (name(render(CLIENT)) != name(render({**CLIENT, **change}))) == another


def test_its_name_leaves_room_for_its_pods() -> None:
    assert len(f"{name(render(CLIENT, release='m' * 40))}-12345") <= 63
