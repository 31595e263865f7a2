"""What the chart renders is valid: by kubeconform with this cluster's own schemas, and by the API server itself."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.chart import CHART, environment_with_tools, template
from tests.e2e.schemas import LOCATION, write_schemas

NOT_HERE = ("HTTPRoute", "PodMonitor")
"""Kinds of operators that the cluster lacks."""
EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = [*sorted((CHART / "ci").glob("*-values.yaml")), *sorted(EXAMPLES.glob("values-*.yaml"))]
CASES = {"default": "{}"} | {path.stem: path.read_text() for path in FILES}


@pytest.fixture(scope="session")
def schemas(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the schema of each kind that the cluster knows."""
    folder = tmp_path_factory.mktemp("schemas")
    write_schemas(folder)
    return folder


@pytest.fixture(params=CASES)
def manifests(request: pytest.FixtureRequest, kubeconfig: Path) -> str:
    """What Helm renders for the defaults, for each case of ci/ and for each example."""
    done = template(CASES[request.param])
    assert done.returncode == 0, done.stderr
    return done.stdout


def conform(manifests: str, schemas: Path) -> dict[str, Any]:
    """What kubeconform says of these manifests."""
    command = ["kubeconform", "-strict", "-summary", "-output=json", f"-skip={','.join(NOT_HERE)}"]
    done = subprocess.run(
        [*command, f"-schema-location={schemas}/{LOCATION}"],
        input=manifests,
        env=environment_with_tools(),
        capture_output=True,
        text=True,
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_kubeconform_finds_nothing_wrong(manifests: str, schemas: Path) -> None:
    kinds = [item["kind"] for item in yaml.safe_load_all(manifests) if item]
    skipped = sum(kind in NOT_HERE for kind in kinds)
    assert conform(manifests, schemas) == {
        "resources": [],
        "summary": {"valid": len(kinds) - skipped, "invalid": 0, "errors": 0, "skipped": skipped},
    }


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("terminationGracePeriodSeconds: 60", "terminationGraceSeconds: 60"),
        ("containerPort: 2222", 'containerPort: "2222"'),
        ("kind: PodDisruptionBudget", "kind: DisruptionBudget"),
    ],
    ids=["an unknown key", "a wrong type", "an unknown kind"],
)
def test_kubeconform_finds_what_is_wrong(schemas: Path, right: str, wrong: str) -> None:
    manifests = template("{}").stdout
    assert right in manifests
    summary = conform(manifests.replace(right, wrong), schemas)["summary"]
    assert summary["invalid"] + summary["errors"] > 0


def test_the_api_server_takes_it(manifests: str, namespace: str) -> None:
    known = [item for item in yaml.safe_load_all(manifests) if item and item["kind"] not in NOT_HERE]
    for item in known:
        item["metadata"]["namespace"] = namespace
    done = subprocess.run(
        ["kubectl", "create", "--dry-run=server", "--validate=strict", "-f-"],
        input=yaml.safe_dump_all(known),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(known)


def test_pod_security_has_nothing_against_any_pod(namespace: str) -> None:
    labels = [f"pod-security.kubernetes.io/{mode}=restricted" for mode in ("enforce", "warn")]
    subprocess.run(["kubectl", "label", "namespace", namespace, *labels], check=True, capture_output=True)

    def create(values: str) -> str:
        done = subprocess.run(
            ["kubectl", "create", "--dry-run=server", "-f-"],
            input=template(values, namespace=namespace).stdout,
            capture_output=True,
            text=True,
        )
        return done.stderr

    assert "PodSecurity" not in create(CASES["chief-and-evaluator-values"])
    assert "would violate PodSecurity" in create("common: {hostNetwork: true}")
