"""The commands that a user may want after a run: a page, predictions, and a comparison with an earlier run."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.export import export_folder
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.text.command_lines import command_line

IMAGES = ("digits", "mnist")
"""The data sets whose models take images."""
RESULT = "result.json"


def next_commands(directory: TrainingDirectory, result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The commands that apply to a run that is done, and what each one is for."""
    yield command_line("trainer", "report", directory), "a page on the run"
    if data := _data_to_predict(result):
        words = ("--data", data, "--output", "predictions")
        yield command_line("trainer", "models", "predict", directory, *words), "what it predicts for other data"
    if earlier := None if directory.uri else _earlier_run(directory.path, result):
        yield command_line("trainer", "models", "compare", earlier, directory), "with the last run on this data"


def _data_to_predict(result: Mapping[str, Any]) -> str | None:
    """The kind of data for which the model predicts; None if `trainer models predict` does not take the model."""
    if result.get("columns"):
        return "FILE.csv"
    # A Lance dataset without columns that names its classes has images, unless another program has written it.
    is_image = result.get("dataset") in IMAGES or (result.get("dataset") == "lance" and result.get("classes"))
    return "FOLDER" if is_image else None


def _earlier_run(path: Path, result: Mapping[str, Any]) -> Path | None:
    """The last other run beside this one that has an exported classifier of the same data."""
    if not _classifies(result) or not result.get("dataset_digest"):
        return None
    found = (each.parent for each in path.parent.glob(f"*/{RESULT}") if each.parent.name != path.name)
    fitting = {
        each: other
        for each in found
        if (other := export_folder.read_facts(each / RESULT)) and _is_comparable(each, other, result)
    }
    return max(fitting, key=lambda each: str(fitting[each].get("updated", "")), default=None)


def _is_comparable(path: Path, other: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    is_same_data = other.get("dataset_digest") == result["dataset_digest"]
    return is_same_data and _classifies(other) and export_folder.of_result(path, other) is not None


def _classifies(result: Mapping[str, Any]) -> bool:
    return "test_accuracy" in result
