"""Restores the parameters of a session: from the newest readable checkpoint, or from the best after a divergence."""

import json
import logging
from pathlib import Path

from trainer.checkpoint import best
from trainer.checkpoint.files import CheckpointList, find, step_of
from trainer.checkpoint.volume import reason
from trainer.errors import ConfigurationError, DivergedError, RollBackError
from trainer.evaluate.evaluation import UNREADABLE
from trainer.models.keras_arrays import FILE
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.telemetry import report
from trainer.tensorflow.errors import brief
from trainer.tensorflow_types import Session
from trainer.training.checkpoint_writer import CheckpointWriter
from trainer.training.run_context import RunContext

logger = logging.getLogger(__name__)

MAX_ROLL_BACKS = 8
"""Each roll-back halves the learning rate. A run that diverges after that has another fault."""


def restore_newest(run: RunContext, session: Session, writer: CheckpointWriter) -> bool:
    """Restore every variable from the newest checkpoint that can be read; return False if there is none.

    Raises:
        ConfigurationError: there are checkpoints, and none can be read.
    """
    directory, checkpoints = run.directory, writer.checkpoints
    found = _newest_first(directory, checkpoints)
    if checkpoints.paths and not checkpoints.is_listed:
        logger.warning(f"{directory}/checkpoint is absent or damaged; continuing with the checkpoints found")
    for path in found:
        try:
            kept = run.replica.saver.restore(session, path)
        except UNREADABLE as error:
            logger.warning(f"the checkpoint {path} cannot be read ({brief(error)}); trying the previous one")
            continue
        step, reached = int(session.run(run.replica.global_step)), run.task.metrics.global_step or 0
        again = f"; the steps from {step + 1} to {reached} are taken again" if reached > step else ""
        tables = f"; the tables on ps {', '.join(map(str, kept))} stay as they are" if kept else ""
        report.log(logger, f"restored {directory.public(path)}{again}{tables}", restored=directory.public(path))
        writer.latest = path
        writer.saved_step = step if path in checkpoints.paths else -1
        return True
    if found:
        differences = "; ".join(run.replica.saver.differences(found[0]))
        why, weights = (f" ({differences})", _second_phase(directory)) if differences else ("", "")
        raise ConfigurationError(
            f"train_dir: none of the checkpoints in {directory} can be read{why}: choose another train_dir{weights}, "
            "or empty this one to train from the start."
        )
    return False


def _second_phase(directory: TrainingDirectory) -> str:
    """How to begin with the weights of the run in a directory; empty if it has not exported them."""
    export = directory.read_result().get("export")
    if not export or not (Path(export) / FILE).is_file():
        return ""
    return f", with initial_weights={export}/{FILE} to begin with these weights"


def _newest_first(directory: TrainingDirectory, checkpoints: CheckpointList) -> list[str]:
    """Those in the list and the best one, then those that only the folder has."""
    listed = [*reversed(checkpoints.paths)]
    kept = best.read(directory.best)
    if kept:  # it may be the newest
        older = (index for index, path in enumerate(listed) if step_of(path) < step_of(kept.checkpoint))
        listed.insert(next(older, len(listed)), kept.checkpoint)
    return [*listed, *(path for path in reversed(find(directory.path)) if path not in listed)]


def roll_back(run: RunContext, session: Session, writer: CheckpointWriter, diverged: RollBackError) -> int:
    """Restore the best checkpoint, or else the newest one that can be read, and save it at a later global step.

    Return how often the run has been rolled back.

    Raises:
        DivergedError: there is none, or the run was rolled back MAX_ROLL_BACKS times.
    """
    count = count_roll_backs(run.directory) + 1
    if count > MAX_ROLL_BACKS:
        raise DivergedError(f"{diverged}, and it was rolled back {MAX_ROLL_BACKS} times; {run.remedy()}")
    # The global step never decreases: replicas drop contributions of earlier steps.
    settings = run.task.settings
    step = max(int(session.run(run.replica.global_step)), diverged.step) + run.replica.mode.local_steps
    step = min(step, settings.train_steps)
    kept = best.read(run.directory.best)
    for path in [*([kept.checkpoint] if kept else []), *reversed(writer.checkpoints.paths)]:
        try:
            step = run.replica.saver.roll_back(session, path, step)
            break
        except UNREADABLE as error:
            logger.warning(f"the checkpoint {path} cannot be read ({brief(error)})")
    else:
        raise DivergedError(f"{diverged}, and there is no checkpoint to restore; {run.remedy()}")
    logger.info(f"{diverged}: restored {path}; continuing at step {step} with 1/{2**count} of the learning rate")
    writer.saved_step = -1
    writer.save_and_wait()
    try:
        with run.directory.divergences.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"global_step": step, "restored": path, "reason": str(diverged)}) + "\n")
    except OSError as error:
        logger.warning(f"{run.directory.divergences} cannot be written ({reason(error)})")
    return count


def count_roll_backs(directory: TrainingDirectory) -> int:
    """How often the run was rolled back."""
    file = directory.divergences
    return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0
