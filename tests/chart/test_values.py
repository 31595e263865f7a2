"""Every key of values.yaml has the effect that effects.yaml lists, and the schema has the same keys."""

import functools
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


def overlap(one: str, other: str, separator: str) -> bool:
    """Whether two paths of keys are equal, or one leads to the other."""
    one, other = one + separator, other + separator
    return one.startswith(other) or other.startswith(one)


def groups(effects: Mapping[str, Any]) -> dict[str, list[str]]:
    """By key, the keys that are rendered with it: each call of Helm takes a sixth of a second.

    They have the same other values, and none of them removes something, which may be that of another key.
    """
    found: dict[str, list[str]] = {}

    def go_together(key: str, other: str) -> bool:
        one, two = effects[key], effects[other]
        paths, others = one.get("expect", {}), two.get("expect", {})
        return not (
            {"alone", "unchanged"} & {*one, *two}
            or None in (*paths.values(), *others.values())
            or any(one.get(name) != two.get(name) for name in ("given", "apis"))
            or overlap(key, other, ".")
            or any(overlap(path, another, " ") for path in paths for another in others)
        )

    for key in effects:
        fitting = (group for group in found.values() if all(go_together(key, other) for other in group))
        found[key] = next(fitting, [])
        found[key].append(key)
    return found


@functools.cache
def _parsed(values: str, apis: tuple[str, ...]) -> Manifests:
    return render(json.loads(values), apis=apis)


def rendered_once(values: Mapping[str, Any], apis: tuple[str, ...] = ()) -> Manifests:
    """The objects for these values, which all tests of a group read."""
    return _parsed(json.dumps(values), apis)


TOGETHER = groups(EFFECTS["run"])
COMMON_TOGETHER = groups(EFFECTS["common"])


@pytest.mark.parametrize("key", EFFECTS["run"])
def test_a_key_has_its_effect(key: str) -> None:
    effect = EFFECTS["run"][key]
    given, apis = effect.get("given", {}), tuple(effect.get("apis", ()))
    values = {each: EFFECTS["run"][each]["value"] for each in TOGETHER[key]}
    before, after = rendered_once(given, apis), rendered_once({**given, **values}, apis)
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
    values: dict[str, Any] = {}
    for each in COMMON_TOGETHER[key]:
        common, own = EFFECTS["common"][each]["values"]
        values |= {f"common.{each}": common, f"worker.{each}": own, f"evaluator.{each}": own}
    after = rendered_once({**given, **values})
    in_common, in_role = effect.get("rendered", effect["values"])
    rendered = {role: value_at(after, effect["path"], role) for role in ("chief", "ps", "worker", "evaluator")}
    assert rendered == {"chief": in_common, "ps": in_common, "worker": in_role, "evaluator": in_role}
    before = rendered_once(given)
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
