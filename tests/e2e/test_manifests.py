"""The rendered manifests are valid: kubeconform checks them with the cluster's schemas, and the API server does."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given

from tests.chart.chart import VALUES_FILES, environment_with_tools, template
from tests.chart.values_mutations import mutated_values, rendered_examples
from tests.e2e.schemas import LOCATION, write_schemas

ABSENT_KINDS = ("HTTPRoute", "PodMonitor", "PrometheusRule")
"""Kinds of operators that are not in the cluster."""
CASES = {"default": "{}"} | {path.stem: path.read_text() for path in VALUES_FILES}


@pytest.fixture(scope="session")
def schemas(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the schema of each kind of the cluster."""
    folder = tmp_path_factory.mktemp("schemas")
    write_schemas(folder)
    return folder


@pytest.fixture(params=CASES)
def manifests(request: pytest.FixtureRequest, kubeconfig: Path) -> str:
    """The rendered manifests for the default values, for each values file in ci/ and for each example."""
    done = template(CASES[request.param])
    assert done.returncode == 0, done.stderr
    return done.stdout


def conform(manifests: str, schemas: Path) -> dict[str, Any]:
    """Run kubeconform on these manifests, and return its report."""
    command = ["kubeconform", "-strict", "-summary", "-output=json", f"-skip={','.join(ABSENT_KINDS)}"]
    done = subprocess.run(
        [*command, f"-schema-location={schemas}/{LOCATION}"],
        input=manifests,
        env=environment_with_tools(),
        capture_output=True,
        text=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_kubeconform_accepts_the_manifests(manifests: str, schemas: Path) -> None:
    kinds = [item["kind"] for item in yaml.safe_load_all(manifests) if item]
    skipped = sum(kind in ABSENT_KINDS for kind in kinds)
    assert conform(manifests, schemas) == {
        "resources": [],
        "summary": {"valid": len(kinds) - skipped, "invalid": 0, "errors": 0, "skipped": skipped},
    }


@pytest.mark.parametrize(
    ("valid", "invalid"),
    [
        ("terminationGracePeriodSeconds: 60", "terminationGraceSeconds: 60"),
        ("containerPort: 2222", 'containerPort: "2222"'),
        ("kind: PodDisruptionBudget", "kind: DisruptionBudget"),
    ],
    ids=["an unknown key", "a wrong type", "an unknown kind"],
)
def test_kubeconform_finds_errors(schemas: Path, valid: str, invalid: str) -> None:
    manifests = template("{}").stdout
    assert valid in manifests
    summary = conform(manifests.replace(valid, invalid), schemas)["summary"]
    assert summary["invalid"] + summary["errors"] > 0


def create(manifests: str, namespace: str) -> None:
    """Let the API server check these manifests, and create nothing."""
    objects = [item for item in yaml.safe_load_all(manifests) if item and item["kind"] not in ABSENT_KINDS]
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


@rendered_examples(20)
@given(mutated_values())
def test_the_api_server_accepts_changed_values(namespace: str, values: dict[str, Any]) -> None:
    done = template(yaml.safe_dump(values))
    if done.returncode == 0:
        create(done.stdout, namespace)


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

    assert "PodSecurity" not in admit(CASES["chief-and-evaluator-values"])
    assert "would violate PodSecurity" in admit("common: {hostNetwork: true}")
