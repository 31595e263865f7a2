"""Renders the chart with `helm template`: takes values, returns parsed objects or Helm's error.

The keys of values are dotted paths, such as `{"worker.replicas": 3}`. Helm reads them from a temporary file.
Results are cached, because each call of Helm takes a quarter of a second.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hack.cluster import build

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "distributed-tensorflow"
EXAMPLES = ROOT / "examples"
VALUES_FILES = [*sorted((CHART / "ci").glob("*-values.yaml")), *sorted(EXAMPLES.glob("values-*.yaml"))]
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
ALL_ROLES = {"chief.replicas": 1, "evaluator.replicas": 1}
"""Values with which every role has a task."""

EVERY_VOLUME_AND_VARIABLE = {
    **ALL_ROLES,
    "client.replicas": 1,
    "client.command": ["run"],
    "data.enabled": True,
    "common.sharedMemorySize": "1Gi",
    "trainingDirectory.logs": "logs",
    "run.failurePolicy.rules": [{"action": "Restart", "onExitCodes": {"operator": "In", "values": [1]}}],
}
"""Values with which the pods of tasks have every volume and every environment variable that the chart makes."""

TOO_LARGE = {"fullnameOverride": "m" * 40, "worker.replicas": 1300}
"""Values of a cluster whose addresses do not fit into one environment variable of Linux."""

Object = dict[str, Any]


@dataclass(frozen=True)
class Manifests:
    """The objects of one release."""

    release: str
    objects: list[Object]

    def __iter__(self) -> Iterator[Object]:
        return iter(self.objects)

    def of(self, kind: str) -> list[Object]:
        """All objects of a kind."""
        return [item for item in self.objects if item["kind"] == kind]

    def __getitem__(self, kind_and_word: str) -> Object:
        """Return the object "KIND/WORD": its name is RELEASE-WORD, or RELEASE-WORD-HASH if the object is immutable."""
        kind, word = kind_and_word.split("/")
        name = re.compile(f"{self.release}-{word}(-[0-9a-f]{{8}})?")
        (found,) = (item for item in self.of(kind) if name.fullmatch(item["metadata"]["name"]))
        return found

    def get(self, path: str) -> Any:
        """Return the value at "KIND/WORD KEY KEY …"; None if it does not exist.

        In a list, a key is an index or an item's name: "StatefulSet/ps spec template spec containers ps image".
        Files in a ConfigMap are parsed as YAML: "ConfigMap/config data trainer.yaml train_steps".
        """
        start, *keys = path.split()
        try:
            place: Any = self[start]
        except ValueError:
            return None
        for key in keys:
            if isinstance(place, str):
                place = yaml.safe_load(place)
            if isinstance(place, list):
                named = [item for item in place if isinstance(item, dict) and item.get("name") == key]
                place = place[int(key)] if key.isdigit() and int(key) < len(place) else named[0] if named else None
            else:
                place = place.get(key) if isinstance(place, dict) else None
        return place

    def pods(self) -> dict[str, Object]:
        """All pods and pod templates, by component."""
        templates = [
            item["spec"]["template"] for kind in ("StatefulSet", "Deployment", "Job") for item in self.of(kind)
        ]
        return {pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod for pod in [*templates, *self.of("Pod")]}

    def replicas(self, role: str) -> int:
        """The number of tasks of a role: from the supervisor's run.json, or else from the StatefulSet."""
        replicas = self.get(f"ConfigMap/supervisor data run.json roles {role} replicas")
        return int(replicas or self.get(f"StatefulSet/{role} spec replicas") or 0)

    def environment(self, role: str) -> dict[str, Any]:
        """The environment of a role's container: for each variable its value, or its `valueFrom`."""
        variables = self.pods()[role]["spec"]["containers"][0]["env"]
        return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in variables}


@functools.cache
def template(
    values: str,
    release: str = "mnist",
    namespace: str = "default",
    chart: Path = CHART,
    apis: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Run `helm template` with the text of a values file, for a cluster that also has `apis`: GROUP/VERSION/KIND."""
    helm = shutil.which("helm", path=environment_with_tools()["PATH"])
    assert helm, "helm is not on PATH: `python3 -m hack.cluster build helm` builds it, and so does `make test`"
    api_versions = [f"--api-versions={api}" for api in apis]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(values)
        file.flush()
        return subprocess.run(
            [helm, "template", release, str(chart), "--namespace", namespace, "--values", file.name, *api_versions],
            env=os.environ | {"GOGC": "off"},  # it ends before a garbage collection is worth its time
            capture_output=True,
            text=True,
        )


def render(
    values: Mapping[str, Any] | None = None,
    release: str = "mnist",
    namespace: str = "default",
    chart: Path = CHART,
    apis: tuple[str, ...] = (),
) -> Manifests:
    """Return the objects that `helm install` would create on a cluster that also has `apis`."""
    done = template(json.dumps(nested(values or {})), release, namespace, chart, apis)
    assert done.returncode == 0, done.stderr
    return Manifests(release, [item for item in parse(done.stdout) if item])


def refusal(values: Mapping[str, Any], release: str = "mnist", apis: tuple[str, ...] = ()) -> str:
    """Return Helm's error for these values, on a cluster that also has `apis`."""
    done = template(json.dumps(nested(values)), release, apis=apis)
    assert done.returncode, "Helm accepts these values"
    return done.stderr


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert dotted paths to the nested maps of a values file."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *parents, last = path.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return tree


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each key without nested keys, as a dotted path, and its value."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def environment_with_tools() -> dict[str, str]:
    """The environment with a PATH on which Helm and its tools are found: built ones first."""
    return os.environ | {"PATH": f"{build.binaries()}{os.pathsep}{os.environ['PATH']}"}


def parse(text: str) -> list[Any]:
    """Return the documents of Helm's output."""
    return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
