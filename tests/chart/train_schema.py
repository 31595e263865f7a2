"""The part of values.schema.json under `train`: the trainer's own settings; `make chart-docs` writes it."""

import json
from typing import Any

from pydantic import TypeAdapter

from tests.chart.chart import CHART
from trainer import config

FILE = CHART / "values.schema.json"
CHARTS_OWN = {
    *("ps_hosts", "worker_hosts", "job_name", "task_index", "cluster_file"),
    *("train_dir", "data_dir", "metrics_port", "grace_seconds"),
}
"""Settings that the chart makes from other values."""
AS_TEXT = {"$ref": "#/definitions/positiveNumberAsText"}


def expected() -> dict[str, Any]:
    """The settings by name, each as values.schema.json writes it."""
    settings = TypeAdapter(config.Settings).json_schema()["properties"]
    current = {name: _as_values_schema(setting) for name, setting in settings.items() if name not in CHARTS_OWN}
    current["strategy"]["enum"] += config.FORMER_STRATEGIES
    former = {name: {**current[new], "deprecated": True} for name, new in config.FORMER_NAMES.items()}
    return {**current, **former}


def _as_values_schema(setting: dict[str, Any]) -> dict[str, Any]:
    """One setting of pydantic's JSON schema: no titles, null as a second type.

    Of a bound behind a validator pydantic gives its own name. Helm makes text of `--set train.learning_rate=0.003`.
    """
    variants = setting.pop("anyOf", [{}])
    merged = {**setting, **variants[0]}
    if {"type": "null"} in variants:
        merged["type"] = [merged["type"], "null"]
    names = {"ge": "minimum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
    found = {names.get(key, key): value for key, value in merged.items() if key not in ("title", "default")}
    is_number = "number" in (found.get("type"), *(found["type"] if isinstance(found.get("type"), list) else ()))
    return {"anyOf": [found, AS_TEXT]} if is_number else found


def main() -> None:
    """Write them."""
    schema = json.loads(FILE.read_text())
    schema["properties"]["train"]["properties"] = expected()
    FILE.write_text(json.dumps(schema, indent=2) + "\n")


if __name__ == "__main__":
    main()
