"""The supervisor's objects: its permissions, its run.json, and which changes of values start another run."""

import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.chart import ALL_ROLES, CHART, EXAMPLES, Manifests, environment_with_tools, render, template
from trainer.supervisor.ownership import WANTED
from trainer.supervisor.run import read

DEFAULTS_FILES = (("values.yaml", ""), ("files/defaults.json", '"'))
"""The files with the defaults, and what is around a key in each."""
MEMORY = (("values.yaml", "", ""), ("files/defaults.json", '"', '"'))


def changed_chart(folder: Path, *changes: tuple[str, str, str]) -> Path:
    """A copy of the chart with changes: a file, a text in it, and what replaces this once."""
    newer = folder / "chart"
    shutil.copytree(CHART, newer)
    for name, old, new in changes:
        file = newer / name
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new, 1))
    return newer


def run_json(manifests: Manifests) -> dict[str, Any]:
    found = json.loads(manifests["ConfigMap/supervisor"]["data"]["run.json"])
    assert isinstance(found, dict)
    return found


def test_the_supervisor_reads_the_rendered_run_json(tmp_path: Any) -> None:
    manifests = render({**ALL_ROLES, "worker.restartPolicy": "Never"})
    file = tmp_path / "run.json"
    file.write_text(manifests["ConfigMap/supervisor"]["data"]["run.json"])
    run = read(file, "uid", "pod")
    assert run.leader == "mnist-chief-0"
    by_code = "0-127:End 128-255:Restart"
    assert {role: (values.replicas, values.exits) for role, values in run.roles.items()} == {
        "chief": (1, by_code),
        "worker": (2, "0-255:End"),
        "ps": (1, by_code),
        "evaluator": (1, by_code),
    }
    assert run.job == manifests["Job/run"]["metadata"]["name"]
    assert manifests["ConfigMap/run"]["metadata"]["annotations"] == {WANTED: run.job}
    assert (run.job_uid, run.supervisor, run.metrics_port) == ("uid", "pod", 9100)
    assert run.tensorboard
    assert (run.tensorboard.gated, run.tensorboard.service_account) == (True, "mnist-tensorboard")
    assert {run.stateful_set(role) for role in run.roles} == {
        item["metadata"]["name"] for item in manifests.of("StatefulSet")
    }
    assert manifests.environment("worker")["TASK_RUN"] == run.hash


@pytest.mark.parametrize("number", [0, 1, 1_000_000, 2_147_483_647, None])
def test_the_supervisor_reads_a_number_as_it_is_set(number: int | None, tmp_path: Any) -> None:
    """Helm reads a number as a float, and removes a value that is null."""
    file = tmp_path / "run.json"
    file.write_text(render({"run.backoffLimit": number})["ConfigMap/supervisor"]["data"]["run.json"])
    assert read(file, "uid", "pod").backoff_limit == number


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
        ({"trainingDirectory.subPath": "second"}, True),
        ({"trainingDirectory.uri": "s3://runs/second"}, True),
        ({"data.enabled": True, "data.existingClaim": "digits"}, True),
        ({"trainingDirectory.keep": False}, False),
        ({"run.attempt": 2}, True),
        ({"run.suspend": True}, False),
        ({"run.backoffLimit": 1}, False),
        ({"run.failurePolicy.maxRestarts": 1}, False),
        ({"run.failurePolicy.rules": [{"action": "Fail", "onPodConditions": [{"type": "DisruptionTarget"}]}]}, False),
        ({"tensorboard.enabled": False}, False),
        ({"supervisor.resources.requests.cpu": "1"}, False),
        ({"metrics.podMonitor.enabled": True}, False),
    ],
)
def test_a_change_of_what_defines_the_run_changes_its_hashes(values: dict[str, Any], is_new: bool) -> None:
    before, after = run_json(render()), run_json(render(values))
    assert (before["hash"] != after["hash"]) == is_new
    assert (before["definition"] != after["definition"]) == (is_new and "run.attempt" not in values)


@pytest.mark.parametrize("limits", [{"worker.maxReplicas": 6}, {"run.elastic": {"min": 1, "max": 6}}])
def test_the_number_of_workers_within_the_limits_does_not_change_the_run(limits: dict[str, Any]) -> None:
    before, after = run_json(render(limits)), run_json(render({**limits, "worker.replicas": 5}))
    assert (before["hash"], before["definition"]) == (after["hash"], after["definition"])
    assert before["roles"]["worker"] == {
        "replicas": 2,
        "exits": "0-127:End 128-255:Restart",
        "addresses": 6,
    }


def test_a_rule_for_exit_codes_is_part_of_the_run_as_the_tasks_apply_it_themselves() -> None:
    """A finished run stays finished, as with a new version of the chart."""
    before, after = run_json(render()), run_json(render({"run.failurePolicy.rules": [{"action": "Fail"}]}))
    assert before["hash"] != after["hash"]
    assert before["definition"] == after["definition"]


def test_without_the_supervisor_the_tasks_have_no_rules() -> None:
    values = {"supervisor.enabled": False, "run.failurePolicy.rules": [{"action": "Fail"}]}
    assert render(values).environment("worker")["TASK_EXITS"] == "0-127:End 128-255:Restart"


def test_tasks_and_supervisor_read_the_same_rules_in_their_order(tmp_path: Any) -> None:
    rules: list[dict[str, Any]] = [
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [1, 2]}},
        {"action": "RestartAll", "roles": ["worker"], "onExitCodes": {"operator": "NotIn", "values": [9]}},
        {"action": "Fail", "onPodConditions": [{"type": "DisruptionTarget"}]},
        {"action": "Restart", "roles": ["ps"]},
    ]
    manifests = render({"run.failurePolicy.rules": rules, "common.restartPolicy": "OnFailure"})
    file = tmp_path / "run.json"
    file.write_text(manifests["ConfigMap/supervisor"]["data"]["run.json"])
    roles = read(file, "uid", "pod").roles
    assert roles["worker"].exits == "1,2:Ignore !0,9:RestartAll 0-0:End 1-255:Restart"
    assert roles["ps"].exits == "1,2:Ignore !0:Restart 0-0:End 1-255:Restart"
    assert {role: manifests.environment(role)["TASK_EXITS"] for role in roles} == {
        role: values.exits for role, values in roles.items()
    }


PIPELINE: dict[str, Any] = {
    "stages.before": [{"name": "prepare", "args": ["data", "import"]}],
    "stages.after": [{"name": "infer", "args": ["models", "predict"]}],
}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"train.train_steps": 7, "worker.gpus": 2, "supervisor.enabled": False},
        {**ALL_ROLES, "client.replicas": 1, "common.command": ["mine"], "client.command": ["ask"]},
        PIPELINE,
        {**PIPELINE, "data.enabled": True, "data.watch.enabled": True, "train.dataset": "lance"},
    ],
    ids=["packaged", "no supervisor", "client", "stages", "watched data"],
)
def test_another_version_of_the_chart_with_other_scripts_changes_no_pod_and_no_job(
    values: dict[str, Any], tmp_path: Path
) -> None:
    """So GitOps, which brings a new version to all runs at once, restarts none of them."""
    newer = changed_chart(
        tmp_path,
        ("Chart.yaml", "\nversion: ", "\nversion: 9"),
        ("files/task.sh", "\n", "\n# another line\n"),
        ("files/ready.sh", "\n", "\n# another line\n"),
    )
    before, after = render(values), render(values, chart=newer)
    path = "ConfigMap/config data"
    assert before.get(path)["task.sh"] != after.get(path)["task.sh"]
    kinds = ("StatefulSet", "Deployment", "Job")
    for one, other in zip(before, after, strict=True):
        assert one["metadata"]["name"] == other["metadata"]["name"]
        if one["kind"] in kinds:
            assert one["spec"] == other["spec"]
    if values.get("supervisor.enabled", True):
        assert run_json(before) == run_json(after)


@pytest.mark.parametrize("queue", [{}, {"scheduling.gang": "kueue", "scheduling.queue": "research"}])
def test_a_version_of_the_chart_with_other_defaults_is_the_same_run_if_its_images_are_named(
    queue: dict[str, Any], tmp_path: Path
) -> None:
    """Tasks of two versions of the trainer do not train together, so a new image is another run."""
    newer = changed_chart(
        tmp_path,
        ("Chart.yaml", "appVersion: ", "appVersion: 9"),
        *((name, f"report_steps{mark}: 100", f"report_steps{mark}: 50") for name, mark in DEFAULTS_FILES),
        *((name, f"memory{mark}: {text}768Mi", f"memory{mark}: {text}1Gi") for name, mark, text in MEMORY),
    )
    kueue = ("kueue.x-k8s.io/v1beta2/Workload",)
    for named in (False, True):
        values = {"train.train_steps": 7, **queue} | ({"image.tag": "mine"} if named else {})
        before, after = (render(values, apis=kueue, chart=chart) for chart in (CHART, newer))
        assert before.get("ConfigMap/config data trainer.yaml report_steps") == 100
        assert after.get("ConfigMap/config data trainer.yaml report_steps") == 50
        assert (run_json(before)["hash"] == run_json(after)["hash"]) == named
        assert run_json(before)["definition"] == run_json(after)["definition"]


@pytest.mark.parametrize("values", [{"run.suspend": True}, {"run.backoffLimit": 1}, {"supervisor.labels": {"a": "b"}}])
def test_a_change_of_run_json_or_of_the_pod_gets_a_new_supervisor_job(values: dict[str, Any]) -> None:
    """The template of a Job is immutable, and a supervisor reads run.json only once."""
    names = [render(given)["Job/run"]["metadata"]["name"] for given in ({}, values)]
    assert names[0] != names[1]


def test_its_role_has_the_needed_permissions_only() -> None:
    manifests = render()
    rules = [
        (group, resource, *rule["verbs"], *rule.get("resourceNames", []))
        for rule in manifests["Role/supervisor"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    ]
    assert rules == [
        ("", "pods", "list", "watch"),
        ("", "pods/log", "get"),
        ("", "events", "list", "watch", "create"),
        ("", "configmaps", "get", "patch", "mnist-run", "mnist-ended"),
        ("apps", "statefulsets", "list", "watch"),
        ("apps", "deployments", "list", "watch"),
        ("apps", "statefulsets/scale", "patch", "mnist-chief", "mnist-worker", "mnist-ps", "mnist-evaluator"),
        ("batch", "jobs", "list", "watch"),
        ("batch", "jobs", "get", "patch", manifests["Job/run"]["metadata"]["name"]),
        ("apps", "deployments/scale", "patch", "mnist-tensorboard"),
        ("", "serviceaccounts", "create"),
        ("", "serviceaccounts", "patch", "mnist-tensorboard"),
        ("", "pods", "delete", *(f"mnist-worker-{index}" for index in range(4)), "mnist-ps-0"),
    ]


STAGE = {"name": "prepare", "command": ["true"]}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"stages.before": [STAGE], "tensorboard.ttlSecondsAfterFinished": 60, "run.nodeLossSeconds": 60},
        {"stages.before": [STAGE], "data.watch.enabled": True, "train.dataset": "lance", "data.uri": "s3://b/c"},
        {"scheduling.gang": "kueue", "scheduling.queue": "research"},
    ],
)
def test_the_role_for_platform_teams_has_all_of_its_permissions(values: dict[str, Any]) -> None:
    example = yaml.safe_load((EXAMPLES / "rbac" / "supervisor.yaml").read_text())
    manifests = render(values, apis=("kueue.x-k8s.io/v1beta2/Workload",))
    assert permissions(manifests["Role/supervisor"]) <= permissions(example)
    own = render(
        {**values, "supervisor.serviceAccount.name": "run-supervisor"}, apis=("kueue.x-k8s.io/v1beta2/Workload",)
    )
    assert not [item for item in own if item["kind"] in ("Role", "RoleBinding")]
    assert own.get("Job/run spec template spec serviceAccountName") == "run-supervisor"


def permissions(role: Any) -> set[tuple[str, str, str]]:
    """The API group, the resource and the verb of all rules of a Role."""
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_an_admin_of_a_namespace_can_give_what_a_queue_of_kueue_needs() -> None:
    given = yaml.safe_load_all((EXAMPLES / "rbac" / "kueue.yaml").read_text())
    aggregated = [role for role in given if "labels" in role["metadata"]]
    values = {"scheduling.gang": "kueue", "scheduling.queue": "research"}
    manifests = render(values, apis=("kueue.x-k8s.io/v1beta2/Workload",))
    needed = {each for each in permissions(manifests["Role/supervisor"]) if each[0] == "kueue.x-k8s.io"}
    assert needed
    assert needed <= set().union(*map(permissions, aggregated))


def test_it_may_remove_only_the_pods_of_its_tasks() -> None:
    values = {"worker.replicas": 1, "worker.maxReplicas": 2}
    rule = render(values)["Role/supervisor"]["rules"][-1]
    names = ["mnist-worker-0", "mnist-worker-1", "mnist-ps-0"]
    assert rule == {"apiGroups": [""], "resources": ["pods"], "resourceNames": names, "verbs": ["delete"]}


def test_a_run_id_of_digits_only_stays_text() -> None:
    text = template("{}").stdout
    for name in ("TASK_RUN", "RUN_HASH"):
        assert re.search(f'name: {name}\n +value: "[0-9a-f]{{8}}"\n', text)


def test_only_the_supervisor_decides_when_its_job_fails() -> None:
    """With a pod failure policy, a Job does not replace a pod that hangs on a lost node."""
    assert set(render()["Job/run"]["spec"]) == {"template"}


def test_its_settings_are_immutable_and_belong_to_one_job() -> None:
    manifests = [render(values) for values in ({}, {"run.backoffLimit": 1})]
    files = [found["ConfigMap/supervisor"] for found in manifests]
    assert all(file["immutable"] for file in files)
    assert files[0]["metadata"]["name"] != files[1]["metadata"]["name"]
    for found, file in zip(manifests, files, strict=True):
        volumes = {volume["name"]: volume for volume in found["Job/run"]["spec"]["template"]["spec"]["volumes"]}
        assert volumes["config"]["configMap"]["name"] == file["metadata"]["name"]


@pytest.mark.parametrize("suspend", [False, True])
def test_no_scale_is_rendered_so_that_no_tool_resets_it(suspend: bool) -> None:
    client = {"client.replicas": 1, "common.command": ["serve"], "client.command": ["ask"], "ps.replicas": 0}
    for values in ({}, client):
        manifests = render({**values, "run.suspend": suspend})
        for kind in ("StatefulSet", "Deployment", "Job"):
            assert all({"replicas", "suspend"}.isdisjoint(item["spec"]) for item in manifests.of(kind))


def test_only_the_supervisor_has_a_token_and_unrestricted_egress() -> None:
    manifests = render({"networkPolicy.egress.enabled": True})
    tokens = {role for role, pod in manifests.pods().items() if pod["spec"]["automountServiceAccountToken"]}
    assert tokens == {"supervisor"}
    talking = {"key": "app.kubernetes.io/component", "values": ["supervisor", "tensorboard-timer"]}
    selector = manifests["NetworkPolicy/egress"]["spec"]["podSelector"]
    assert selector["matchExpressions"] == [{**talking, "operator": "NotIn"}]
    theirs = manifests["NetworkPolicy/supervisor-egress"]["spec"]
    assert theirs["podSelector"]["matchExpressions"] == [{**talking, "operator": "In"}]
    assert theirs["egress"] == [{}], "also where another policy denies all egress"


def test_without_a_supervisor_none_of_its_objects_are_rendered() -> None:
    manifests = render({"supervisor.enabled": False})
    assert not [item for item in manifests if item["kind"] in ("Job", "Role", "RoleBinding")]
    assert manifests["StatefulSet/worker"]["spec"]["replicas"] == 2


def discovery(manifests: Manifests) -> dict[str, Any]:
    """The answers of an API server about the kinds of these objects, by path."""
    kinds: dict[str, set[str]] = {"v1": {"PersistentVolumeClaim"}}
    for item in manifests:
        kinds.setdefault(item["apiVersion"], set()).add(item["kind"])
    groups = [
        {
            "name": version.partition("/")[0],
            "versions": [{"groupVersion": version, "version": version.partition("/")[2]}],
        }
        for version in kinds
        if "/" in version
    ]
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
    }
    for version, found in kinds.items():
        resources = [
            {"name": f"{kind.lower()}s", "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]}
            for kind in found
        ]
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        answers[path] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    return answers


class ApiServer(http.server.BaseHTTPRequestHandler):
    """An API server that answers as its server's `answers` say."""

    def do_GET(self) -> None:
        found = self.server.answers.get(self.path.partition("?")[0])  # type: ignore[attr-defined]
        absent = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(found or absent).encode())

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name in http.server
        """Log nothing."""


def test_its_role_names_the_job_of_the_supervisor_that_owns_the_run_too() -> None:
    """It keeps the run if the upgrade fails between the Role and the Job."""
    helm = shutil.which("helm", path=environment_with_tools()["PATH"])
    assert helm
    data = {"notes.json": json.dumps({"job": "mnist-run-before", "started": 1.5})}
    owned = {"meta.helm.sh/release-name": "mnist", "meta.helm.sh/release-namespace": "default"}
    metadata = {"name": "mnist-run", "labels": {"app.kubernetes.io/managed-by": "Helm"}, "annotations": owned}
    notes = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), ApiServer) as server:
        answers = {**discovery(render()), "/api/v1/namespaces/default/configmaps/mnist-run": notes}
        server.answers = answers  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connection = [
            "--dry-run=server",
            "--disable-openapi-validation",
            f"--kube-apiserver=http://127.0.0.1:{server.server_port}",
        ]
        role = "templates/supervisor/role.yaml"
        done = subprocess.run(
            [helm, "template", "mnist", str(CHART), "--namespace", "default", "--show-only", role, *connection],
            env={**os.environ, "KUBECONFIG": os.devnull},
            capture_output=True,
            text=True,
            timeout=60,
        )
        server.shutdown()
    assert done.returncode == 0, done.stderr
    rules = next(item for item in yaml.safe_load_all(done.stdout) if item["kind"] == "Role")["rules"]
    (names,) = [rule["resourceNames"] for rule in rules if rule["resources"] == ["jobs"] and "patch" in rule["verbs"]]
    assert "mnist-run-before" in names
    assert len(names) == 2
