"""With default values every pod meets Pod Security "restricted"; tokens and network access are minimal."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.chart import ALL_ROLES, CHART, EXAMPLES, Object, render
from trainer.cluster.spec import ROLES

RESTRICTED_VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim"}
COMPONENTS = (*ROLES, "tensorboard", "supervisor", "test")
DNS = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
PODS_OF_THE_RUN = {
    "podSelector": {
        "matchLabels": {"app.kubernetes.io/name": "distributed-tensorflow", "app.kubernetes.io/instance": "mnist"}
    }
}
TASKS_OF_THE_RUN = {
    "podSelector": {
        **PODS_OF_THE_RUN["podSelector"],
        "matchExpressions": [
            {
                "key": "app.kubernetes.io/component",
                "operator": "In",
                "values": ["chief", "worker", "ps", "evaluator", "client", "test"],
            }
        ],
    }
}


@pytest.fixture(params=COMPONENTS)
def pod(request: pytest.FixtureRequest) -> Object:
    """The pod of each component, with default values."""
    return render(ALL_ROLES).pods()[request.param]


def test_the_components_are_all_pods() -> None:
    assert set(render(ALL_ROLES).pods()) == set(COMPONENTS)


def test_it_meets_pod_security_restricted(pod: Object) -> None:
    spec = pod["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(spec)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not any("hostPort" in port for port in container.get("ports", []))
    assert {kind for volume in spec["volumes"] for kind in volume if kind != "name"} <= RESTRICTED_VOLUMES


def test_its_root_file_system_is_read_only(pod: Object) -> None:
    assert [container["securityContext"]["readOnlyRootFilesystem"] for container in pod["spec"]["containers"]] == [True]


def test_it_is_outside_service_meshes_and_only_the_supervisor_has_a_token(pod: Object) -> None:
    is_supervisor = pod["metadata"]["labels"]["app.kubernetes.io/component"] == "supervisor"
    assert pod["spec"]["automountServiceAccountToken"] is is_supervisor
    assert pod["spec"]["enableServiceLinks"] is False
    assert pod["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
    assert pod["metadata"]["annotations"]["linkerd.io/inject"] == "disabled"


def test_the_ownership_of_volumes_changes_only_if_it_differs(pod: Object) -> None:
    if any("persistentVolumeClaim" in volume for volume in pod["spec"]["volumes"]):
        assert pod["spec"]["securityContext"]["fsGroup"] == 10001
        assert pod["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize("example", ["mlflow-server.yaml", "model-deployment.yaml"])
def test_the_examples_of_servers_are_restricted_too(example: str) -> None:
    documents = list(yaml.safe_load_all((EXAMPLES / example).read_text()))
    found = {each["kind"]: each for each in documents}
    pod = found["Deployment"]["spec"]["template"]
    test_it_meets_pod_security_restricted(pod)
    test_its_root_file_system_is_read_only(pod)
    test_the_ownership_of_volumes_changes_only_if_it_differs(pod)
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["enableServiceLinks"] is False
    labels = pod["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"] == {"matchLabels": labels}
    assert found["Service"]["spec"]["selector"] == labels


@pytest.mark.parametrize("component", [*ROLES, "tensorboard", "supervisor"])
def test_tmp_and_home_are_writable(component: str) -> None:
    (container,) = render(ALL_ROLES).pods()[component]["spec"]["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    (home,) = [variable["value"] for variable in container["env"] if variable["name"] == "HOME"]
    for folder in ("/tmp", home):  # noqa: S108 - in the container
        assert mounts[folder]["name"] == "scratch"
        assert not mounts[folder].get("readOnly")


def test_no_service_account_mounts_a_token_by_default() -> None:
    manifests = render({**ALL_ROLES, "trainingDirectory.accessModes": ["ReadWriteMany"]})
    accounts = {item["metadata"]["name"]: item for item in manifests.of("ServiceAccount")}
    assert set(accounts) == {f"mnist-{component}" for component in (*ROLES, "tensorboard", "supervisor")}
    assert {account["automountServiceAccountToken"] for account in accounts.values()} == {False}


def test_null_removes_the_security_contexts_for_an_image_that_needs_root() -> None:
    pod = render({"common.podSecurityContext": None, "common.securityContext": None}).pods()["worker"]
    assert "securityContext" not in pod["spec"]
    assert "securityContext" not in pod["spec"]["containers"][0]


@pytest.mark.parametrize(
    "file", [EXAMPLES / "values-openshift.yaml", CHART / "ci/openshift-values.yaml"], ids=["example", "ci"]
)
@pytest.mark.parametrize("supervised", [True, False])
def test_on_openshift_no_pod_has_a_fixed_user_or_group(file: Path, supervised: bool) -> None:
    values = yaml.safe_load(file.read_text())
    values |= {**ALL_ROLES, "client.replicas": 1, "client.command": ["ask"], "supervisor.enabled": supervised}
    more = set()
    if supervised:  # what needs a supervisor, and what has no key of `common`
        values |= {"mlflow.trackingUri": "http://mlflow:5000"}
        more = {"stage"}
    pods = render(values).pods()
    assert set(pods) == {*COMPONENTS, "client", *more} - (set() if supervised else {"supervisor"})
    for pod in pods.values():
        for context in (
            pod["spec"]["securityContext"],
            *(each["securityContext"] for each in pod["spec"]["containers"]),
        ):
            assert not {"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"} & set(context)
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True


def test_parameter_servers_and_tensorboard_never_get_gpus() -> None:
    pods = render({**ALL_ROLES, "worker.gpus": 8, "chief.gpus": 8, "evaluator.gpus": 1}).pods()

    def gpu_and_image(component: str) -> tuple[bool, bool]:
        (container,) = pods[component]["spec"]["containers"]
        return "nvidia.com/gpu" in str(container.get("resources")), container["image"].endswith("-gpu")

    assert {component: gpu_and_image(component) for component in COMPONENTS} == {
        **dict.fromkeys(("chief", "worker", "evaluator"), (True, True)),
        **dict.fromkeys(("ps", "tensorboard", "supervisor", "test"), (False, False)),
    }


def test_only_tasks_of_the_same_run_and_helm_test_can_reach_tasks() -> None:
    policy = render()["NetworkPolicy/tasks"]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [TASKS_OF_THE_RUN]}]


def test_pods_in_metrics_from_can_reach_the_metrics_port() -> None:
    prometheus = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    policy = render({"metrics.from": prometheus})["NetworkPolicy/tasks"]["spec"]
    assert policy["ingress"] == [
        {"from": [TASKS_OF_THE_RUN]},
        {"from": prometheus, "ports": [{"port": 9100}]},
    ]


def test_all_pods_of_the_namespace_can_reach_tensorboard() -> None:
    policy = render()["NetworkPolicy/tensorboard"]["spec"]
    assert policy["ingress"][0] == {"from": [{"podSelector": {}}], "ports": [{"port": 6006}]}


@pytest.mark.parametrize("peers", [[], None])
def test_an_empty_list_of_peers_admits_no_pod(peers: Any) -> None:
    manifests = render({"networkPolicy.tensorboardFrom": peers, "metrics.from": peers})
    (rule,) = manifests["NetworkPolicy/tensorboard"]["spec"]["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "test"
    assert len(manifests["NetworkPolicy/tasks"]["spec"]["ingress"]) == 1


@pytest.mark.parametrize("to", [[], [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]])
def test_egress_is_limited_to_the_run_dns_and_the_peers_in_values(to: list[Any]) -> None:
    manifests = render({"networkPolicy.egress.enabled": True, "networkPolicy.egress.to": to})
    policy = manifests["NetworkPolicy/egress"]["spec"]
    assert policy["policyTypes"] == ["Egress"]
    assert policy["egress"] == [{"to": [PODS_OF_THE_RUN]}, DNS, *to]


def test_a_drain_evicts_one_task_of_a_role_at_a_time_and_unhealthy_tasks_always() -> None:
    budgets = render(ALL_ROLES).of("PodDisruptionBudget")
    assert {budget["metadata"]["name"] for budget in budgets} == {f"mnist-{role}" for role in ROLES}
    for budget in budgets:
        assert budget["spec"]["maxUnavailable"] == 1
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"Never"}),
        ({"image.registry": "registry.example.com/team"}, {"IfNotPresent"}),
        ({"image.pullPolicy": "Always"}, {"Always"}),
        ({"image.registry": "registry.example.com/team", "image.pullPolicy": "Never"}, {"Never"}),
    ],
)
def test_packaged_images_without_a_registry_are_never_pulled(values: dict[str, Any], expected: set[str]) -> None:
    """No public registry has them: whoever published their name there would run with the supervisor's token."""
    pods = render({**ALL_ROLES, **values}).pods().values()
    assert {container["imagePullPolicy"] for pod in pods for container in pod["spec"]["containers"]} == expected


def test_an_image_of_ones_own_is_pulled_without_a_registry() -> None:
    pods = render({"worker.image.repository": "mine", "worker.command": ["run"]}).pods()
    policies = {role: pod["spec"]["containers"][0]["imagePullPolicy"] for role, pod in pods.items()}
    assert (policies["worker"], policies["supervisor"]) == ("IfNotPresent", "Never")


def test_parameter_servers_of_the_packaged_trainer_get_no_credentials() -> None:
    credentials = [{"secretRef": {"name": "bucket"}}]
    pods = render({"common.envFrom": credentials}).pods()
    own = render({"common.envFrom": credentials, "ps.envFrom": [{"configMapRef": {"name": "mine"}}]}).pods()
    assert pods["worker"]["spec"]["containers"][0]["envFrom"] == credentials
    assert "envFrom" not in pods["ps"]["spec"]["containers"][0]
    assert own["ps"]["spec"]["containers"][0]["envFrom"] == [{"configMapRef": {"name": "mine"}}]
