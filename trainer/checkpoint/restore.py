"""Which checkpoints of a run can be restored: the newest first, or the best one after a divergence."""

from pathlib import Path

from trainer.checkpoint import best
from trainer.checkpoint.files import CheckpointList, find, step_of
from trainer.models.keras_arrays import FILE
from trainer.run_directory.training_directory import TrainingDirectory

MAX_ROLL_BACKS = 8
"""Each roll-back halves the learning rate. A run that diverges after that has another fault."""


def second_phase(directory: TrainingDirectory) -> str:
    """How to begin with the weights of the run in a directory; empty if it has not exported them."""
    export = directory.read_result().get("export")
    if not export or not (Path(export) / FILE).is_file():
        return ""
    return f", with initial_weights={export}/{FILE} to begin with these weights"


def newest_first(directory: TrainingDirectory, checkpoints: CheckpointList) -> list[str]:
    """Those in the list and the best one, then those that only the folder has."""
    listed = [*reversed(checkpoints.paths)]
    kept = best.read(directory.best)
    if kept:  # it may be the newest
        older = (index for index, path in enumerate(listed) if step_of(path) < step_of(kept.checkpoint))
        listed.insert(next(older, len(listed)), kept.checkpoint)
    return [*listed, *(path for path in reversed(find(directory.path)) if path not in listed)]


def count_roll_backs(directory: TrainingDirectory) -> int:
    """How often the run was rolled back."""
    file = directory.divergences
    return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0
