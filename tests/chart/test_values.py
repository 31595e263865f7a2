"""Every key of values.yaml has the effect that effects.yaml lists, and the schema has the same keys."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.chart.values import resolve
from tests.chart.chart import ALL_ROLES, CHART, DEFAULTS, Manifests, leaves, render

EFFECTS = yaml.safe_load(Path(__file__).with_name("effects.yaml").read_text())


def value_at(manifests: Manifests, path: str, role: str = "worker") -> Any:
    """Return the value at a path of effects.yaml."""
    task = f"StatefulSet/{role} spec template spec"
    start, _, rest = path.format(role=role).partition(" ")
    places = {
        "TASK": task,
        "CONTAINER": f"{task} containers {role}",
        "TENSORBOARD": "Deployment/tensorboard spec template spec",
        "SUPERVISOR": "Job/run spec template spec",
        "PUBLISH": "Job/stage-publish spec template spec containers stage",
        "RUN": "ConfigMap/supervisor data run.json",
        "SETTINGS": "ConfigMap/config data trainer.yaml",
        "CLUSTER": "ConfigMap/config data cluster.json",
    }
    return manifests.get(f"{places.get(start, start)} {rest}")


@pytest.mark.parametrize("key", EFFECTS["run"])
def test_a_key_has_its_effect(key: str) -> None:
    effect = EFFECTS["run"][key]
    given, apis = effect.get("given", {}), tuple(effect.get("apis", ()))
    before, after = render(given, apis=apis), render({**given, key: effect["value"]}, apis=apis)
    assert {path: value_at(after, path) for path in effect["expect"]} == effect["expect"]
    same = [path for path in effect["expect"] if value_at(before, path) == value_at(after, path)]
    assert not same, "the defaults render the same"
    unchanged = effect.get("unchanged", {})
    for manifests in (before, after):
        assert {path: value_at(manifests, path) for path in unchanged} == unchanged


@pytest.mark.parametrize("key", EFFECTS["common"])
def test_a_key_of_common_applies_to_every_role_and_a_role_overrides_it(key: str) -> None:
    effect = EFFECTS["common"][key]
    given = {**ALL_ROLES, **effect.get("given", {})}
    common, own = effect["values"]
    after = render({**given, f"common.{key}": common, f"worker.{key}": own, f"evaluator.{key}": own})
    in_common, in_role = effect.get("rendered", effect["values"])
    rendered = {role: value_at(after, effect["path"], role) for role in ("chief", "ps", "worker", "evaluator")}
    assert rendered == {"chief": in_common, "ps": in_common, "worker": in_role, "evaluator": in_role}
    before = render(given)
    assert in_common != value_at(before, effect["path"], "ps"), "the defaults render the same"
    assert in_common != in_role


def test_an_empty_map_or_list_of_a_role_removes_the_value_of_common() -> None:
    common = {"common.nodeSelector": {"disk": "fast"}, "common.env": [{"name": "MINE", "value": "1"}]}
    after = render({**common, "ps.nodeSelector": {}, "ps.env": [], "ps.podSecurityContext": {}})
    for role, expected in (("worker", True), ("ps", False)):
        for path in ("TASK nodeSelector", "CONTAINER env MINE", "TASK securityContext"):
            assert (value_at(after, path, role) is not None) == expected


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("trainingDirectory.subPath", "CONTAINER volumeMounts training subPath"),
        ("trainingDirectory.existingClaim", "TASK volumes training persistentVolumeClaim claimName"),
        ("worker.serviceAccount.name", "TASK serviceAccountName"),
        ("tensorboard.serviceAccount.name", "TENSORBOARD serviceAccountName"),
        ("tensorboard.ingress.className", "Ingress/tensorboard spec ingressClassName"),
        ("worker.priorityClassName", "TASK priorityClassName"),
        ("worker.schedulerName", "TASK schedulerName"),
    ],
)
@pytest.mark.parametrize("text", ["2024", "true", "1e3"])
def test_text_that_looks_like_another_yaml_type_stays_text(key: str, path: str, text: str) -> None:
    assert value_at(render({"tensorboard.ingress.enabled": True, key: text}), path) == text


def test_effects_yaml_lists_every_key() -> None:
    listed = {*EFFECTS["run"], *(f"common.{key}" for key in EFFECTS["common"])}
    assert listed == {key for key, _ in leaves(DEFAULTS)}


def test_every_key_of_the_schema_is_in_values_yaml() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def keys(part: Mapping[str, Any], values: Any, path: str) -> list[str]:
        """The paths below this part of the schema that values.yaml does not have."""
        absent = []
        for name, inner in resolve(schema, part).get("properties", {}).items():
            if not isinstance(values, dict) or name not in values:
                absent.append(f"{path}{name}")
            else:
                absent += keys(inner, values[name], f"{path}{name}.")
        return absent

    allowed = set(keys(schema, DEFAULTS, ""))
    # A role has the keys of `common`, which values.yaml does not repeat, and keys of its own. `train` has every setting
    # of the trainer (test_train.py). Helm defines `global`. Each image has the keys of the packaged one. Without
    # `run.elastic`, it has no limits.
    explained = {"global", "run.elastic.min", "run.elastic.max"}
    explained |= {
        f"{image}.{key}"
        for image in (
            "common.image",
            "tensorboard.image",
            "supervisor.image",
            "mlflow.image",
        )
        for key in DEFAULTS["image"]
    }
    explained |= {key for key in allowed if key.startswith("train.")}
    explained |= {key for key in allowed if key.split(".")[0] in ("worker", "ps", "chief", "evaluator", "client")}
    assert allowed == explained
    assert set(schema["definitions"]["role"]["properties"]) == set(DEFAULTS["common"])


def test_the_documents_and_the_chart_require_the_same_versions() -> None:
    root = CHART.parents[1]
    pages = {file: (root / file).read_text() for file in ("README.md", "docs/kubernetes.md")}
    pattern = r"Kubernetes (\S+) or later, kubectl (\S+) or later, (?:and )?Helm (\d or \d|\d)"
    versions = {file: re.findall(pattern, text) for file, text in pages.items()}
    assert versions["docs/kubernetes.md"] == versions["README.md"]
    ((kubernetes, _, _),) = versions["README.md"]
    assert f'kubeVersion: ">={kubernetes}.0-0"' in (CHART / "Chart.yaml").read_text()
