"""The supervisor's objects: its rights, what it is told, and which change of values makes another run."""

import re
from typing import Any

import pytest
import yaml

from tests.chart.chart import ALL_ROLES, Manifests, render, template
from trainer.supervisor.run import read


def told(manifests: Manifests) -> dict[str, Any]:
    found = yaml.safe_load(manifests["ConfigMap/supervisor"]["data"]["run.yaml"])
    assert isinstance(found, dict)
    return found


def test_what_it_is_told_is_what_it_reads(tmp_path: Any) -> None:
    manifests = render({**ALL_ROLES, "worker.restartPolicy": "Never"})
    file = tmp_path / "run.yaml"
    file.write_text(manifests["ConfigMap/supervisor"]["data"]["run.yaml"])
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
def test_it_knows_the_command_that_shows_the_result(values: dict[str, Any], command: str | None) -> None:
    assert told(render(values))["result_command"] == command


@pytest.mark.parametrize(
    ("values", "another"),
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
def test_what_makes_another_run(values: dict[str, Any], another: bool) -> None:
    before, after = render(), render(values)
    assert (told(before)["hash"] != told(after)["hash"]) == another


@pytest.mark.parametrize("values", [{"run.suspend": True}, {"run.backoffLimit": 1}, {"supervisor.labels": {"a": "b"}}])
def test_a_supervisor_that_is_told_something_else_is_another_job(values: dict[str, Any]) -> None:
    """A Job's template cannot be changed, and a supervisor reads its file once."""
    names = [render(given)["Job/run"]["metadata"]["name"] for given in ({}, values)]
    assert names[0] != names[1]


def test_it_may_do_no_more_than_it_does() -> None:
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


def test_a_hash_of_digits_alone_stays_text() -> None:
    said = template("{}").stdout
    for name in ("TASK_RUN", "RUN_HASH"):
        assert re.search(f'name: {name}\n +value: "[0-9a-f]{{8}}"\n', said)


def test_its_own_death_is_not_the_runs_but_its_verdict_is() -> None:
    job = render()["Job/run"]["spec"]
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [2, 3]
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert "activeDeadlineSeconds" not in job


def test_it_alone_has_a_token_and_an_egress_policy_leaves_it_the_api_server() -> None:
    manifests = render({"networkPolicy.egress.enabled": True})
    tokens = {role for role, pod in manifests.pods().items() if pod["spec"]["automountServiceAccountToken"]}
    assert tokens == {"supervisor"}
    selector = manifests["NetworkPolicy/egress"]["spec"]["podSelector"]
    assert {"key": "app.kubernetes.io/component", "operator": "NotIn", "values": ["supervisor"]} in selector[
        "matchExpressions"
    ]


def test_without_it_nothing_of_it_is_rendered() -> None:
    manifests = render({"supervisor.enabled": False})
    assert not [item for item in manifests if item["kind"] in ("Job", "Role", "RoleBinding")]
    assert manifests["StatefulSet/worker"]["spec"]["replicas"] == 2
