"""The commands of examples/values-pipeline.yaml, one after another, on this machine."""

import csv
import json
from pathlib import Path
from typing import Any

import yaml

from tests.processes.trainers import PATIENCE, Trainer

EXAMPLE = Path(__file__).parents[2] / "examples" / "values-pipeline.yaml"


def test_the_pipeline_of_the_example_gives_a_model_a_page_and_predictions(trainer: Trainer) -> None:
    values = yaml.safe_load(EXAMPLE.read_text())

    def here(word: str) -> str:
        return word.replace("/data/", f"{trainer.folder}/data/").replace("/training", f"{trainer.folder}/training")

    def run(stage: dict[str, Any]) -> str:
        if "command" in stage:
            _, *words = map(here, stage["command"])
            process = trainer.python(*words)
            output, _ = process.communicate(timeout=PATIENCE)
            code = process.returncode
        else:
            code, output = trainer.run(*map(here, stage["args"]))
        assert code == 0, f"{stage['name']}: {output}"
        return str(output)

    outputs = {stage["name"]: run(stage) for stage in values["stages"]["before"]}
    assert "version 1 (first) has 1,797 new rows, 0 skipped" in outputs["prepare"]
    assert "1,437" in outputs["statistics"]
    data = ["--dataset", "lance", "--data_dir", here(values["data"]["uri"]), "--data_version", "first"]
    code, output = trainer.run("train", *data, "--train_steps", "300", "--train_dir", here("/training"))
    assert code == 0, output
    for stage in values["stages"]["after"]:
        run(stage)
    assert (trainer.folder / "training" / "report.html").stat().st_size > 10_000
    with (trainer.folder / "training" / "predictions" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    result = json.loads((trainer.folder / "training" / "result.json").read_text())
    right = [row["prediction"] == row["file"].partition("/")[0] for row in rows]
    assert len(rows) == 360
    assert sum(right) / 360 > 0.9
    best = max(result["test_accuracy"], result.get("best", {}).get("test_accuracy", 0.0))
    assert abs(sum(right) / 360 - best) < 0.02, "the predictions are not those of the evaluated model"
