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
BEST_METRIC = "best_metric"
"""A key of the result since there is the fact what a classifier gives."""


def next_commands(directory: TrainingDirectory, result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The commands that apply to a run that is done, and what each one is for."""
    yield command_line("trainer", "report", directory), "a page on the run"
    is_exported = directory.uri is not None or export_folder.of_result(directory.path, result) is not None
    if (data := _data_to_predict(result)) and is_exported:
        words = ("--data", data, "--output", "predictions")
        yield command_line("trainer", "models", "predict", directory, *words), "what it predicts for other data"
    if "test_recall_at_10" in result and is_exported:
        words = ("--queries", "FILE.csv", "--output", "recommendations.csv")
        yield command_line("trainer", "models", "recommend", directory, *words), "what it recommends for other queries"
    if earlier := None if directory.uri else _earlier_run(directory.path, result):
        yield command_line("trainer", "models", "compare", earlier, directory), "with the last run on this data"


def _data_to_predict(result: Mapping[str, Any]) -> str | None:
    """The kind of data for which the model predicts; None if `trainer models predict` does not take the model."""
    if result.get("baseline"):
        return "FILE.csv"
    # A Lance dataset without a table that names its classes has images, unless another program has written it.
    is_image = result.get("dataset") in IMAGES or (result.get("dataset") == "lance" and result.get("classes"))
    return "FOLDER" if is_image else None


def _earlier_run(path: Path, result: Mapping[str, Any]) -> Path | None:
    """The last other run beside this one that has an exported classifier of the same data."""
    if not result.get("dataset_digest") or not _classifies(path, result):
        return None
    found = (each.parent for each in path.parent.glob(f"*/{RESULT}") if each.parent.name != path.name)
    fitting = {
        each: other
        for each in found
        if (other := export_folder.read_facts(each / RESULT))
        and other.get("dataset_digest") == result["dataset_digest"]
        and _classifies(each, other)
    }
    return max(fitting, key=lambda each: str(fitting[each].get("updated", "")), default=None)


def _classifies(path: Path, result: Mapping[str, Any]) -> bool:
    """Whether the exported model of a run is a classifier that `trainer models compare` takes."""
    export = export_folder.of_result(path, result)
    if export is None:
        return False
    if BEST_METRIC in result:
        return export_folder.OUTPUT in export_folder.read_facts(export / export_folder.DATA)
    return "test_accuracy" in result  # a version before the fact
