"""The chart as Helm renders it: values in, parsed objects or Helm's refusal out.

Values are keyed by dotted paths, `{"worker.replicas": 3}`, and reach Helm as a file. Real `helm template` runs; equal
renders are kept, for each takes a quarter of a second.
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

CHART = Path(__file__).parents[2] / "charts" / "distributed-tensorflow"
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
ALL_ROLES = {"chief.replicas": 1, "evaluator.replicas": 1}
"""Values with which every role has a task."""

TOO_LARGE = {"fullnameOverride": "m" * 40, "worker.replicas": 1300}
"""A cluster whose addresses are longer than Linux lets an environment variable be."""

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
        """The object "KIND/WORD": the one of this kind that is named RELEASE-WORD (of a Job, RELEASE-WORD-HASH)."""
        kind, word = kind_and_word.split("/")
        name = re.compile(f"{self.release}-{word}" + ("-[0-9a-f]{8}" if kind == "Job" else ""))
        (found,) = (item for item in self.of(kind) if name.fullmatch(item["metadata"]["name"]))
        return found

    def see(self, path: str) -> Any:
        """What is at "KIND/WORD KEY KEY …", None where nothing is.

        In a list, a key is an index, or the name of the item: "StatefulSet/ps spec template spec containers ps image".
        The files of a ConfigMap are read: "ConfigMap/config data trainer.yaml train_steps".
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
        """Every pod or template of one, by its component."""
        templates = [
            item["spec"]["template"] for kind in ("StatefulSet", "Deployment", "Job") for item in self.of(kind)
        ]
        return {pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod for pod in [*templates, *self.of("Pod")]}

    def replicas(self, role: str) -> int:
        """How many tasks of a role there will be: as the supervisor is told, or without it the StatefulSet."""
        told = self.see(f"ConfigMap/supervisor data run.yaml roles {role} replicas")
        return int(told or self.see(f"StatefulSet/{role} spec replicas") or 0)

    def environment(self, role: str) -> dict[str, Any]:
        """The environment that the chart gives a role's container: its strings, and where the others come from."""
        variables = self.pods()[role]["spec"]["containers"][0]["env"]
        return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in variables}


@functools.cache
def template(
    values: str, release: str = "mnist", namespace: str = "default", chart: Path = CHART
) -> subprocess.CompletedProcess[str]:
    """Run `helm template` with the text of a values file."""
    helm = shutil.which("helm", path=environment_with_tools()["PATH"])
    assert helm, "there is no helm: `make test` builds it, and so does `python3 -m hack.cluster build helm`"
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(values)
        file.flush()
        return subprocess.run(
            [helm, "template", release, chart, "--namespace", namespace, "--values", file.name],
            capture_output=True,
            text=True,
        )


def render(
    values: Mapping[str, Any] | None = None, release: str = "mnist", namespace: str = "default", chart: Path = CHART
) -> Manifests:
    """What `helm install` would create."""
    done = template(json.dumps(nested(values or {})), release, namespace, chart)
    assert done.returncode == 0, done.stderr
    return Manifests(release, [item for item in _parse(done.stdout) if item])


def refusal(values: Mapping[str, Any], release: str = "mnist") -> str:
    """What Helm says when it refuses these values."""
    done = template(json.dumps(nested(values)), release)
    assert done.returncode, "Helm took these values"
    return done.stderr


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as a values file has them."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *parents, last = path.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return tree


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys that hold no further keys, as dotted paths, with their values."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def environment_with_tools() -> dict[str, str]:
    """The environment in which Helm and its helpers are found: those that were built, else those on PATH."""
    return os.environ | {"PATH": f"{build.binaries()}{os.pathsep}{os.environ['PATH']}"}


def _parse(text: str) -> list[Any]:
    return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
