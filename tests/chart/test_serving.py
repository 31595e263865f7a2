"""Served models: a Deployment for each version, and one Service."""

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


def test_no_replicas_stop_a_version() -> None:
    versions = [{**VERSIONS[0], "replicas": 0}, VERSIONS[1]]
    assert render({**TWO, "serving.versions": versions}).get("Deployment/serving-v1 spec replicas") == 0
