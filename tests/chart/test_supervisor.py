"""The supervisor's objects: its permissions, its run.json, and which changes of values start another run."""

import json
import re
from typing import Any

import pytest

from tests.chart.chart import ALL_ROLES, Manifests, render, template
from trainer.supervisor.run import read


def run_json(manifests: Manifests) -> dict[str, Any]:
    found = json.loads(manifests["ConfigMap/supervisor"]["data"]["run.json"])
    assert isinstance(found, dict)
    return found


def test_the_supervisor_reads_the_rendered_run_json(tmp_path: Any) -> None:
    manifests = render({**ALL_ROLES, "worker.restartPolicy": "Never"})
    file = tmp_path / "run.json"
    file.write_text(manifests["ConfigMap/supervisor"]["data"]["run.json"])
    run = read(file, "uid")
    assert run.leader == "mnist-chief-0"
    assert {role: (values.replicas, values.restart_policy) for role, values in run.roles.items()} == {
        "chief": (1, "ExitCode"),
        "worker": (2, "Never"),
        "ps": (1, "ExitCode"),
        "evaluator": (1, "ExitCode"),
    }
    assert run.job == manifests["Job/run"]["metadata"]["name"]
    assert (run.job_uid, run.tensorboard_gated, run.metrics_port) == ("uid", True, 9100)
    assert {run.stateful_set(role) for role in run.roles} == {
        item["metadata"]["name"] for item in manifests.of("StatefulSet")
    }
    assert manifests.environment("worker")["TASK_RUN"] == run.hash


@pytest.mark.parametrize("number", [0, 1, 1_000_000, 2_147_483_647, None])
def test_the_supervisor_reads_a_number_as_it_is_set(number: int | None, tmp_path: Any) -> None:
    """Helm reads a number as a float, and removes a value that is null."""
    file = tmp_path / "run.json"
    file.write_text(render({"run.backoffLimit": number})["ConfigMap/supervisor"]["data"]["run.json"])
    assert read(file, "uid").backoff_limit == number


@pytest.mark.parametrize(
    ("values", "command"),
    [
        ({}, "kubectl exec --namespace default deployment/mnist-tensorboard -- cat /training/result.json"),
        (
            {"trainingDirectory.path": "/runs"},
            "kubectl exec --namespace default deployment/mnist-tensorboard -- cat /runs/result.json",
        ),
        ({"tensorboard.enabled": False}, None),
    ],
)
def test_run_json_has_the_command_that_shows_the_result(values: dict[str, Any], command: str | None) -> None:
    assert run_json(render(values))["resultCommand"] == command


@pytest.mark.parametrize(
    ("values", "is_new"),
    [
        ({"train.train_steps": 3000}, True),
        ({"image.tag": "2"}, True),
        ({"worker.command": ["true"]}, True),
        ({"worker.env": [{"name": "A", "value": "b"}]}, True),
        ({"worker.replicas": 3}, True),
        ({"ps.replicas": 2}, True),
        ({"extraArgs": ["--seed=1"]}, True),
        ({"run.attempt": 2}, True),
        ({"worker.replicas": 1, "worker.maxReplicas": 2}, False),
        ({"run.suspend": True}, False),
        ({"run.backoffLimit": 1}, False),
        ({"tensorboard.enabled": False}, False),
        ({"supervisor.resources.requests.cpu": "1"}, False),
        ({"metrics.podMonitor.enabled": True}, False),
    ],
)
def test_a_change_of_what_defines_the_run_changes_its_id(values: dict[str, Any], is_new: bool) -> None:
    before, after = render(), render(values)
    assert (run_json(before)["hash"] != run_json(after)["hash"]) == is_new


@pytest.mark.parametrize("values", [{"run.suspend": True}, {"run.backoffLimit": 1}, {"supervisor.labels": {"a": "b"}}])
def test_a_change_of_run_json_or_of_the_pod_gets_a_new_supervisor_job(values: dict[str, Any]) -> None:
    """The template of a Job is immutable, and a supervisor reads run.json only once."""
    names = [render(given)["Job/run"]["metadata"]["name"] for given in ({}, values)]
    assert names[0] != names[1]


def test_its_role_has_the_needed_permissions_only() -> None:
    rules = {
        (group, resource): (sorted(rule["verbs"]), rule.get("resourceNames"))
        for rule in render()["Role/supervisor"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    sets = ["mnist-chief", "mnist-worker", "mnist-ps", "mnist-evaluator"]
    assert rules == {
        ("", "pods"): (["list", "watch"], None),
        ("", "pods/log"): (["get"], None),
        ("", "events"): (["create", "list", "watch"], None),
        ("", "configmaps"): (["get", "patch"], ["mnist-run"]),
        ("apps", "statefulsets/scale"): (["get", "patch"], sets),
        ("apps", "deployments/scale"): (["patch"], ["mnist-tensorboard"]),
    }


def test_a_run_id_of_digits_only_stays_text() -> None:
    text = template("{}").stdout
    for name in ("TASK_RUN", "RUN_HASH"):
        assert re.search(f'name: {name}\n +value: "[0-9a-f]{{8}}"\n', text)


def test_codes_2_and_3_fail_its_job_and_a_lost_pod_does_not() -> None:
    job = render()["Job/run"]["spec"]
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [2, 3]
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert "activeDeadlineSeconds" not in job


def test_only_the_supervisor_has_a_token_and_unrestricted_egress() -> None:
    manifests = render({"networkPolicy.egress.enabled": True})
    tokens = {role for role, pod in manifests.pods().items() if pod["spec"]["automountServiceAccountToken"]}
    assert tokens == {"supervisor"}
    selector = manifests["NetworkPolicy/egress"]["spec"]["podSelector"]
    assert {"key": "app.kubernetes.io/component", "operator": "NotIn", "values": ["supervisor"]} in selector[
        "matchExpressions"
    ]


def test_without_a_supervisor_none_of_its_objects_are_rendered() -> None:
    manifests = render({"supervisor.enabled": False})
    assert not [item for item in manifests if item["kind"] in ("Job", "Role", "RoleBinding")]
    assert manifests["StatefulSet/worker"]["spec"]["replicas"] == 2
