"""The values of `train` are the trainer's settings: same names, types and bounds; the trainer reads them."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from hack.chart.values import (
    DEFAULTS_FILE,
    README_TEMPLATE,
    SCHEMA_FILE,
    closed,
    definition_defaults,
    readme_template,
    run_schema,
    train_schema,
)
from tests.chart.chart import DEFAULTS, render
from trainer import config
from trainer.config import StepRange

VALUES_SCHEMA: dict[str, Any] = json.loads(SCHEMA_FILE.read_text())["properties"]
SCHEMA = VALUES_SCHEMA["train"]["properties"]


def load(values: dict[str, Any], folder: Path) -> config.Settings:
    """Read the settings from the configuration file that the chart renders."""
    file = folder / "trainer.yaml"
    file.write_text(render(values).get("ConfigMap/config data")["trainer.yaml"])
    return config.load(argparse.Namespace(config=file), {})


def test_the_schema_matches_the_settings_of_the_trainer() -> None:
    assert train_schema() == SCHEMA, "run make chart-docs"


def test_the_schema_matches_the_values_that_the_supervisor_reads() -> None:
    schema = VALUES_SCHEMA["run"]["properties"]
    assert schema == {**schema, **run_schema()}, "run make chart-docs"


def test_the_file_of_defaults_has_those_of_the_values() -> None:
    assert definition_defaults() == json.loads(DEFAULTS_FILE.read_text()), "run make chart-docs"


def test_the_schema_is_closed() -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    assert closed(schema) == schema, "run make chart-docs"


def test_the_readme_has_every_setting_of_the_trainer() -> None:
    template = README_TEMPLATE.read_text()
    assert readme_template() == template, "run make chart-docs"
    assert "| train.learning_rate | `0.003` |" in template


def test_the_trainer_reads_the_defaults(tmp_path: Path) -> None:
    settings = load({}, tmp_path)
    given = {name: value for name, value in DEFAULTS["train"].items() if value is not None}
    assert {name: getattr(settings, name) for name in given} == given
    assert settings.given == {*given, "train_dir", "spare_workers"}, (
        "a model's file decides the others, such as its epochs"
    )
    assert settings.train_dir == "/training"


def test_the_defaults_of_the_chart_are_those_of_the_trainer(tmp_path: Path) -> None:
    absent = {f"train.{name}": None for name in DEFAULTS["train"]}
    assert load(absent, tmp_path) == load({}, tmp_path)


def test_the_trainer_reads_every_setting(tmp_path: Path) -> None:
    # Helm prints these numbers in scientific notation unless the template prevents it.
    samples = {"boolean": True, "integer": 1_000_000, "number": 0.00001, "string": "cnn"}
    types = {name: setting["type"] for name, setting in SCHEMA.items()}
    values: dict[str, Any] = {
        name: samples[kind[0] if isinstance(kind, list) else kind] for name, kind in types.items()
    }
    values |= {"dataset": "npz", "strategy": "ps", "replicas_to_aggregate": 2, "profile_steps": "100-150"}
    values |= {
        "learning_rate_schedule": "cosine",
        "export": "last",
        "on_divergence": "restore",
        "wire_dtype": "float32",
    }
    settings = load({"data.enabled": True, **{f"train.{name}": value for name, value in values.items()}}, tmp_path)
    parsed = {"profile_steps": StepRange(100, 150), "initial_weights": Path("cnn")}
    assert {name: getattr(settings, name) for name in values} == values | parsed
    assert settings.data_dir == "/data"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"worker.gpus": 4}, 4),
        ({"worker.gpus": 4, "train.num_gpus": 2}, 2),
        ({"worker.gpus": 1}, None),
        ({"worker.gpus": 4, "chief.replicas": 1, "chief.gpus": 4}, 4),
        ({"worker.gpus": 4, "chief.replicas": 1}, None),
    ],
)
def test_the_trainer_knows_the_gpus_of_each_replica(
    values: dict[str, Any], expected: int | None, tmp_path: Path
) -> None:
    assert load(values, tmp_path).num_gpus == expected


def test_the_trainer_reads_numbers_that_set_passes_as_text(tmp_path: Path) -> None:
    settings = load({"train.learning_rate": "0.003", "train.save_seconds": "1e-2"}, tmp_path)
    assert (settings.learning_rate, settings.save_seconds) == (0.003, 0.01)


def test_the_grace_period_of_the_trainer_is_shorter_than_that_of_its_pod() -> None:
    manifests = render(
        {
            "ps.terminationGracePeriodSeconds": 4,
            "evaluator.replicas": 1,
            "evaluator.image.repository": "own",
            "evaluator.command": ["python"],
        }
    )
    graces = {role: manifests.environment(role).get("TRAINER_GRACE_SECONDS") for role in ("worker", "ps", "evaluator")}
    assert graces == {"worker": "55", "ps": "1", "evaluator": None}
