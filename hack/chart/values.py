"""Writes into the chart what comes from its schema, its values and the settings of the trainer and the supervisor.

The trainer's and the supervisor's settings, into the schema and the README; and the defaults of the values that define
a run, into a file that templates can read, because they cannot read values.yaml. It closes the schema to unknown keys.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from trainer import config
from trainer.cluster.spec import ROLES
from trainer.supervisor.run import RunValues

CHART = Path(__file__).parents[2] / "charts" / "distributed-tensorflow"
SCHEMA_FILE = CHART / "values.schema.json"
README_TEMPLATE = CHART / "README.md.gotmpl"
DEFAULTS_FILE = CHART / "files" / "defaults.json"
TABLE_MARKS = ("{{/* settings of `train`: begin */ -}}\n", "{{- /* settings of `train`: end */ -}}\n")
CHARTS_OWN = {
    "ps_hosts": "ps.replicas",
    "worker_hosts": "worker.replicas",
    "job_name": "worker.replicas and ps.replicas",
    "task_index": "worker.replicas and ps.replicas",
    "cluster_file": "worker.replicas and ps.replicas",
    "spare_workers": "worker.maxReplicas",
    "train_dir": "trainingDirectory",
    "data_dir": "data.existingClaim or data.uri",
    "metrics_port": "metrics.port",
    "grace_seconds": "terminationGracePeriodSeconds of a role",
}
"""Settings that the chart sets from other values: which ones."""
EXTENDED = "role"
"""The part of the schema that others extend: for it alone, their keys would be unknown."""
NOT_SET = (*CHARTS_OWN, config.GIVEN)


def run_schema() -> dict[str, Any]:
    """Return the schema of the supervisor's values of `run`."""
    schema = TypeAdapter(RunValues).json_schema(by_alias=True)
    values = _without_references(schema["properties"], schema["$defs"])
    return {name: _as_values_schema(value) for name, value in values.items()}


def _without_references(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return the schema with each reference replaced by what it refers to, and without titles."""
    if isinstance(schema, list):
        return [_without_references(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    target = definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else {}
    own = {key: value for key, value in schema.items() if key not in ("$ref", "title", "default")}
    found = {key: _without_references(value, definitions) for key, value in {**target, **own}.items() if key != "title"}
    return _as_values_schema(found) if "anyOf" in found else found


def definition_defaults() -> dict[str, Any]:
    """Return the defaults of the values that define a run."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    return {key: values[key] for key in ("image", "train", "extraArgs", "port", "gpu", "common", *ROLES, "client")}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema in which no mapping has other keys than those that it names, or that what it extends names."""

    def close(part: Any, name: str) -> Any:
        if not isinstance(part, dict):
            return part
        found = {key: close(value, key) for key, value in part.items()}
        if "allOf" in part:
            names = "|".join(resolve(schema, part)["properties"])
            return {**found, "patternProperties": {f"^({names})$": {}}, "additionalProperties": False}
        is_mapping = "properties" in part and "object" in part.get("type", ())
        return {**found, "additionalProperties": False} if is_mapping and name != EXTENDED else found

    closed: dict[str, Any] = close(schema, "")
    return closed


def resolve(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part of the schema without references at its top: with the properties of those that it extends."""
    if "$ref" in part:
        return resolve(schema, schema["definitions"][part["$ref"].rpartition("/")[2]])
    if "allOf" not in part:
        return part
    extended = {key: value for each in part["allOf"] for key, value in resolve(schema, each)["properties"].items()}
    return {**part, "properties": {**part.get("properties", {}), **extended}}


def train_schema() -> dict[str, Any]:
    """Return the schema of each setting of `train`."""
    settings = TypeAdapter(config.Settings).json_schema()["properties"]
    kept = {name: _as_values_schema(setting) for name, setting in settings.items() if name not in NOT_SET}
    return {name: _or_null(schema) for name, schema in kept.items()}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a setting that may be null, which is its default."""
    if "type" not in schema:
        return schema
    types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    choices = {"enum": [*schema["enum"], None]} if "enum" in schema and None not in schema["enum"] else {}
    return {**schema, **choices, "type": [*types, *([] if "null" in types else ["null"])]}


def _as_values_schema(setting: dict[str, Any]) -> dict[str, Any]:
    """Convert one setting of pydantic's JSON schema: remove the title, and write null as a second type.

    For a bound behind a validator, pydantic uses its own name. Helm passes `--set train.learning_rate=0.003` as text. A
    pattern is the trainer's to check: Helm's error would show the regular expression.
    """
    variants = setting.pop("anyOf", [{}])
    merged = {**setting, **variants[0]}
    if {"type": "null"} in variants:
        types = [merged["type"]] if isinstance(merged["type"], str) else merged["type"]
        merged["type"] = [*types, "null"]
        if "enum" in merged:
            merged["enum"] = [*merged["enum"], None]
    names = {"ge": "minimum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
    found = {names.get(key, key): value for key, value in merged.items() if key not in ("title", "default", "pattern")}
    types = [found["type"]] if isinstance(found["type"], str) else found["type"]
    return {**found, "type": [*types, "string"]} if "number" in types else found


def readme_template() -> str:
    """Return the template of the chart's README with the current table of settings."""
    begin, end = TABLE_MARKS
    before, _, rest = README_TEMPLATE.read_text().partition(begin)
    _, _, after = rest.partition(end)
    rows = [
        f"| train.{field.name} | {_default(field)} | {field.metadata['help'].replace('|', '/')} |"
        for group in config.TASK_GROUPS.values()
        for field in dataclasses.fields(group)
        if field.name not in CHARTS_OWN
    ]
    table = "\n".join(["| Key | Default | Description |", "|-----|---------|-------------|", *rows])
    return f"{before}{begin}{table}\n{end}{after}"


def _default(field: dataclasses.Field[Any]) -> str:
    return "" if field.default is None else f"`{json.dumps(field.default)}`"


def main() -> None:
    """Write the files."""
    schema = json.loads(SCHEMA_FILE.read_text())
    schema["properties"]["train"]["properties"] = train_schema()
    schema["properties"]["run"]["properties"] |= run_schema()
    SCHEMA_FILE.write_text(json.dumps(closed(schema), indent=2) + "\n")
    README_TEMPLATE.write_text(readme_template())
    DEFAULTS_FILE.write_text(json.dumps(definition_defaults(), indent=1) + "\n")


if __name__ == "__main__":
    main()
