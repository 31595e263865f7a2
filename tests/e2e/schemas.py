"""Writes the JSON schemas of a running API server to a folder, in the form that kubeconform reads.

The schemas have the version of the cluster and need no network. They are strict: unknown fields are invalid.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOCATION = "{{ .ResourceKind }}{{ .KindSuffix }}.json"
"""The template of a schema's file name, for kubeconform."""

Schema = dict[str, Any]
PREFIX = "#/definitions/"
QUANTITY = f"{PREFIX}io.k8s.apimachinery.pkg.api.resource.Quantity"


def write_schemas(folder: Path) -> None:
    """Write a self-contained schema for each kind of the cluster in KUBECONFIG."""
    api = subprocess.run(["kubectl", "get", "--raw", "/openapi/v2"], capture_output=True, text=True, check=True).stdout
    definitions: dict[str, Schema] = {name: _strict(schema) for name, schema in json.loads(api)["definitions"].items()}
    for name, schema in definitions.items():
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            group = kind["group"].partition(".")[0]
            suffix = f"-{group}-{kind['version']}" if group else f"-{kind['version']}"
            needed = {used: definitions[used] for used in _needed(name, definitions)}
            file = folder / f"{kind['kind'].lower()}{suffix}.json"
            file.write_text(json.dumps({"$ref": PREFIX + name, "definitions": needed}))


def _strict(schema: Any) -> Any:
    """Return the schema without unknown fields, and with quantities and int-or-string that may be numbers in YAML."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "int-or-string":
        return {"type": ["integer", "string"]}
    if schema.get("$ref") == QUANTITY:
        return {"type": ["number", "string"]}
    strict = {key: _strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        strict["additionalProperties"] = False
    return strict


def _needed(name: str, definitions: dict[str, Schema]) -> set[str]:
    """Return the names of this definition and of all definitions that it refers to, directly or indirectly."""
    needed: set[str] = set()
    waiting = [name]
    while waiting:
        if (current := waiting.pop()) not in needed:
            needed.add(current)
            waiting += _references(definitions[current])
    return needed


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _references(item)
    elif isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix(PREFIX)
        for value in schema.values():
            yield from _references(value)
