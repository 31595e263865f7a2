"""Served models: a Deployment for each version, packaged or not, one Service, and a route with weights."""

from typing import Any

import pytest

from tests.chart.chart import Manifests, render
from tests.chart.test_security import RESTRICTED_VOLUMES

DIGEST = f"sha256:{'a' * 64}"
VERSIONS: list[dict[str, Any]] = [
    {"name": "v1", "image": {"registry": "registry.example.com", "repository": "team/model-digits", "tag": "2001"}},
    {"name": "v2", "image": {"repository": "distributed-tensorflow/model-digits", "digest": DIGEST}, "replicas": 3},
]
TWO = {"serving.enabled": True, "serving.versions": VERSIONS}


@pytest.fixture
def manifests() -> Manifests:
    return render(TWO)


def test_nothing_is_served_by_default() -> None:
    assert not [item for item in render() if "serving" in item["metadata"]["name"]]


def test_each_version_has_its_image_and_replicas(manifests: Manifests) -> None:
    assert {item["metadata"]["name"] for item in manifests.of("Deployment")} == {
        "mnist-tensorboard",
        "mnist-serving-v1",
        "mnist-serving-v2",
    }
    expected = {
        "v1": (1, "registry.example.com/team/model-digits:2001"),
        "v2": (3, f"distributed-tensorflow/model-digits@{DIGEST}"),
    }
    for name, (replicas, image) in expected.items():
        assert manifests.get(f"Deployment/serving-{name} spec replicas") == replicas
        assert manifests.get(f"Deployment/serving-{name} spec template spec containers serving image") == image
    policies = [
        manifests.get(f"Deployment/serving-{name} spec template spec containers serving imagePullPolicy")
        for name in ("v1", "v2")
    ]
    assert policies == ["IfNotPresent", "Never"]  # no public registry has the packaged images


def test_a_packaged_model_is_in_the_registry_of_the_packaged_images() -> None:
    manifests = render({**TWO, "image.registry": "example.com/team"})
    assert container(manifests, "v1")["image"] == "registry.example.com/team/model-digits:2001"
    assert container(manifests, "v2")["image"] == f"example.com/team/distributed-tensorflow/model-digits@{DIGEST}"
    assert container(manifests, "v2")["imagePullPolicy"] == "IfNotPresent"
    own = [{**VERSIONS[0], "image": {"repository": "model", "tag": "7"}}]
    manifests = render({**TWO, "image.registry": "example.com/team", "serving.versions": own})
    assert container(manifests, "v1")["image"] == "model:7"


def test_the_service_selects_the_pods_of_both_and_a_deployment_only_its_own(manifests: Manifests) -> None:
    service = manifests.get("Service/serving spec selector")
    for name in ("v1", "v2"):
        deployment = manifests[f"Deployment/serving-{name}"]["spec"]
        labels = deployment["template"]["metadata"]["labels"]
        assert service.items() <= labels.items()
        own = {"distributed-tensorflow/model-version": name}
        assert deployment["selector"]["matchLabels"] == {**service, **own}
        assert own.items() <= labels.items()


def test_the_service_has_ports_for_http_and_grpc(manifests: Manifests) -> None:
    assert manifests.get("Service/serving spec ports") == [
        {"name": "http", "port": 80, "targetPort": "http"},
        {"name": "grpc", "port": 8081, "targetPort": "grpc"},
    ]
    ports = manifests.get("Deployment/serving-v1 spec template spec containers serving ports")
    assert ports == [{"name": "http", "containerPort": 8080}, {"name": "grpc", "containerPort": 8081}]


def test_its_pods_meet_pod_security_restricted(manifests: Manifests) -> None:
    spec = manifests.get("Deployment/serving-v1 spec template spec")
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {kind for volume in spec["volumes"] for kind in volume if kind != "name"} <= RESTRICTED_VOLUMES
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/tmp", "/home/trainer"}  # noqa: S108
    assert container["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": "http"}


@pytest.mark.parametrize(
    ("peers", "ingress"),
    [
        ([{"podSelector": {}}], [{"from": [{"podSelector": {}}], "ports": [{"port": 8080}, {"port": 8081}]}]),
        ([], []),
        (None, []),
    ],
)
def test_only_peers_in_serving_from_can_ask(peers: Any, ingress: Any) -> None:
    policy = render({**TWO, "networkPolicy.servingFrom": peers})["NetworkPolicy/serving"]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == ingress


def test_a_served_model_does_not_change_the_run() -> None:
    def run(values: dict[str, Any]) -> Any:
        return render(values).get("ConfigMap/supervisor data run.json")

    assert run({}) == run(TWO)


def test_the_name_of_a_version_may_be_a_number() -> None:
    manifests = render({**TWO, **ROUTE, "serving.versions": [{**VERSIONS[0], "name": 7}]})
    labels = manifests.get("Deployment/serving-7 spec selector matchLabels")
    assert labels["distributed-tensorflow/model-version"] == "7"
    assert manifests["Service/serving-7"]["spec"]["selector"] == labels
    (rule,) = manifests["HTTPRoute/serving"]["spec"]["rules"]
    assert [backend["name"] for backend in rule["backendRefs"]] == ["mnist-serving-7"]


def test_no_replicas_stop_a_version() -> None:
    versions = [{**VERSIONS[0], "replicas": 0}, VERSIONS[1]]
    assert render({**TWO, "serving.versions": versions}).get("Deployment/serving-v1 spec replicas") == 0


# Models that are not packaged

URI = "http://mlflow.tools:5000"
MODELS: dict[str, Any] = {
    "serving.enabled": True,
    "serving.versions": [
        {"name": "last", "model": "."},
        {"name": "early", "model": "export/200", "args": ["--grace_seconds=5"]},
        {"name": "registered", "model": "models:/my digits@best"},
        VERSIONS[0],
    ],
    "mlflow.trackingUri": URI,
}
ROUTE = {"serving.httpRoute.enabled": True, "serving.httpRoute.parentRefs": [{"name": "gateway"}]}


def container(manifests: Manifests, version: str) -> Any:
    return manifests.get(f"Deployment/serving-{version} spec template spec containers serving")


def test_the_server_of_a_model_that_is_not_packaged_finds_it_and_waits_for_it() -> None:
    manifests = render({**MODELS, "serving.name": "digits", "image.registry": "example.com/team"})
    name = "--name=digits"
    assert {
        version: container(manifests, version).get("args") for version in ("last", "early", "registered", "v1")
    } == {
        "last": ["/training", "--wait", name],
        "early": ["/training/export/200", "--wait", name, "--grace_seconds=5"],
        "registered": ["models:/my digits@best", "--wait", name, f"--tracking_uri={URI}"],
        "v1": None,
    }
    images = {version: container(manifests, version)["image"] for version in ("last", "registered", "v1")}
    server = "example.com/team/distributed-tensorflow/model-server:0.1.0"
    assert images == {"last": server, "registered": server, "v1": "registry.example.com/team/model-digits:2001"}
    assert container(render(MODELS), "last")["args"] == ["/training", "--wait"]
    assert container(render(MODELS), "last")["imagePullPolicy"] == "Never"


def test_a_version_waits_for_the_training_as_long_as_it_takes() -> None:
    manifests = render(MODELS)
    assert manifests.get("Deployment/serving-last spec progressDeadlineSeconds") == 2**31 - 1
    assert manifests.get("Deployment/serving-v1 spec progressDeadlineSeconds") is None


def test_only_versions_in_the_training_directory_mount_it_and_cannot_write() -> None:
    manifests = render({**MODELS, "trainingDirectory.subPath": "second"})
    mount = {"name": "training", "mountPath": "/training", "subPath": "second", "readOnly": True}
    for version, mounts in (("last", [mount]), ("early", [mount]), ("registered", []), ("v1", [])):
        assert [each for each in container(manifests, version)["volumeMounts"] if each["name"] == "training"] == mounts
        volumes = manifests.get(f"Deployment/serving-{version} spec template spec volumes")
        assert len([each for each in volumes if each["name"] == "training"]) == len(mounts)


@pytest.mark.parametrize(
    ("values", "component"),
    [
        ({}, "tensorboard"),  # which is scheduled after the leader, and stays
        ({"tensorboard.enabled": False}, None),
        ({"tensorboard.ttlSecondsAfterFinished": 60}, None),
    ],
)
def test_they_run_on_the_node_of_a_directory_that_only_one_node_can_mount(
    values: dict[str, Any], component: str | None
) -> None:
    manifests = render({**MODELS, **values, "worker.gpus": 1})
    pod = manifests["Deployment/serving-last"]["spec"]["template"]
    (rule,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    wanted = rule["labelSelector"]["matchLabels"]
    assert wanted["distributed-tensorflow/training-directory"] == "mounted"
    assert wanted.get("app.kubernetes.io/component") == component
    assert pod["metadata"]["labels"]["distributed-tensorflow/training-directory"] == "mounted"
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in pod["spec"]["tolerations"]
    for version in ("registered", "v1"):
        assert "affinity" not in manifests.get(f"Deployment/serving-{version} spec template spec")
    shared = render({**MODELS, **values, "trainingDirectory.accessModes": ["ReadWriteMany"]})
    assert "affinity" not in shared.get("Deployment/serving-last spec template spec")


def test_a_model_that_is_not_packaged_does_not_change_the_run() -> None:
    def run(values: dict[str, Any]) -> Any:
        return render({**values, "mlflow.trackingUri": URI}).get("ConfigMap/supervisor data run.json")

    assert run({}) == run({**MODELS, **ROUTE})


def test_their_pods_meet_pod_security_restricted() -> None:
    pod = render(MODELS)["Deployment/serving-last"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["fsGroup"] == 10001
    assert {kind for volume in pod["volumes"] for kind in volume if kind != "name"} <= RESTRICTED_VOLUMES


def test_another_server_has_its_own_command_and_mounts_the_training_directory() -> None:
    server = {"name": "tf", "image": {"repository": "tensorflow/serving", "tag": "2.19.1"}, "mountTraining": True}
    words = {"command": ["tensorflow_model_server"], "args": ["--model_base_path=/training/export"]}
    versions = [{**server, **words, "readinessPath": "/v1/models/digits"}, VERSIONS[0]]
    manifests = render({"serving.enabled": True, "serving.versions": versions, "image.registry": "example.com/team"})
    found = container(manifests, "tf")
    assert {key: found[key] for key in ("image", *words)} == {"image": "tensorflow/serving:2.19.1", **words}
    assert found["readinessProbe"]["httpGet"] == {"path": "/v1/models/digits", "port": "http"}
    assert {"name": "training", "mountPath": "/training", "readOnly": True} in found["volumeMounts"]
    assert manifests.get("Deployment/serving-tf spec progressDeadlineSeconds") == 2**31 - 1
    spec = manifests.get("Deployment/serving-tf spec template spec")
    assert spec["affinity"]["podAffinity"], "it shares the node of a claim that only one node can mount"
    other = container(manifests, "v1")
    assert "command" not in other
    assert "training" not in [mount["name"] for mount in other["volumeMounts"]]


def test_the_route_shares_requests_by_the_weights() -> None:
    versions = [{**VERSIONS[0], "weight": 9}, {**VERSIONS[1], "weight": 0}, {"name": "run", "model": "."}]
    manifests = render({**TWO, **ROUTE, "serving.versions": versions, "serving.httpRoute.hostnames": ["a.example.com"]})
    spec = manifests["HTTPRoute/serving"]["spec"]
    assert (spec["parentRefs"], spec["hostnames"]) == ([{"name": "gateway"}], ["a.example.com"])
    (rule,) = spec["rules"]
    assert rule == {
        "backendRefs": [
            {"name": "mnist-serving-v1", "port": 80, "weight": 9},
            {"name": "mnist-serving-v2", "port": 80, "weight": 0},
            {"name": "mnist-serving-run", "port": 80, "weight": 1},
        ]
    }
    for backend in rule["backendRefs"]:
        word = backend["name"].removeprefix("mnist-")
        service = manifests[f"Service/{word}"]["spec"]
        assert service["ports"][0] == {"name": "http", "port": backend["port"], "targetPort": "http"}
        assert service["selector"] == manifests[f"Deployment/{word}"]["spec"]["selector"]["matchLabels"]


def test_only_a_route_needs_a_service_of_each_version(manifests: Manifests) -> None:
    words = {item["metadata"]["name"] for item in manifests.of("Service")}
    assert "mnist-serving" in words
    assert not {"mnist-serving-v1", "mnist-serving-v2"} & words
    exposed = render({**TWO, **ROUTE, "serving.service.type": "LoadBalancer"})
    assert [exposed.get(f"Service/{word} spec type") for word in ("serving", "serving-v1")] == [
        "LoadBalancer",
        "ClusterIP",
    ]
