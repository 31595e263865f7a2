"""The API server accepts the rendered manifests."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.chart.chart import EXAMPLES, VALUES_FILES, template

VOLCANO = "scheduling.volcano.sh/v1beta1/PodGroup"
ABSENT = ("gateway.networking.k8s.io/", "monitoring.coreos.com/", "scheduling.volcano.sh/")
"""The groups of APIs that are not in the cluster."""
CASES = {"default": "{}"} | {path.stem: path.read_text() for path in VALUES_FILES}


@pytest.fixture(params=CASES)
def manifests(request: pytest.FixtureRequest, kubeconfig: Path) -> str:
    """The rendered manifests for the default values, for each values file in ci/ and for each example."""
    done = template(CASES[request.param], apis=(VOLCANO,))
    assert done.returncode == 0, done.stderr
    return done.stdout


def create(manifests: str, namespace: str) -> None:
    """Let the API server check these manifests, and create nothing."""
    objects = [item for item in yaml.safe_load_all(manifests) if item and not item["apiVersion"].startswith(ABSENT)]
    for item in objects:
        item["metadata"]["namespace"] = namespace
    done = subprocess.run(
        ["kubectl", "create", "--dry-run=server", "--validate=strict", "-f-"],
        # As JSON: PyYAML writes a text such as 12e45678 without quotes, which kubectl takes for a number.
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(objects)


def test_the_api_server_accepts_the_manifests(manifests: str, namespace: str) -> None:
    create(manifests, namespace)


@pytest.mark.parametrize("example", ["mlflow-server.yaml", "model-deployment.yaml"])
def test_the_api_server_accepts_the_examples_of_servers(example: str, namespace: str) -> None:
    create((EXAMPLES / example).read_text(), namespace)


def test_all_pods_meet_pod_security_restricted(namespace: str) -> None:
    labels = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
    subprocess.run(["kubectl", "label", "namespace", namespace, *labels], check=True, capture_output=True)

    def admit(values: str) -> str:
        done = subprocess.run(
            ["kubectl", "create", "--dry-run=server", "-f-"],
            input=template(values, namespace=namespace).stdout,
            capture_output=True,
            text=True,
        )
        return done.stderr

    assert "PodSecurity" not in admit(CASES["every-role-values"])
    assert "would violate PodSecurity" in admit("common: {hostNetwork: true}")
