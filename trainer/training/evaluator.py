"""The evaluator: it evaluates each checkpoint once on the held-out split, and ends with the run.

It connects to no other task, and reads and writes the training directory alone. It records each evaluation there, so
that it resumes after a restart.
"""

import contextlib
import dataclasses
import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.checkpoint import best, table_files
from trainer.checkpoint.files import CheckpointList, files_of, link, newest_course
from trainer.checkpoint.score import BestMetric
from trainer.cluster.poll import poll_until
from trainer.errors import ConfigurationError
from trainer.evaluate.evaluation import CPU, CheckpointEvaluator
from trainer.graph import devices
from trainer.problem.problem import Problem
from trainer.problem.problem import load as load_problem
from trainer.run_directory.training_directory import EVALUATOR_SECONDS, TrainingDirectory
from trainer.storage.object_store import is_uri
from trainer.telemetry.metrics import Metrics
from trainer.telemetry.summaries import SummaryWriter
from trainer.tensorflow.errors import UNREADABLE
from trainer.training.classifier_pictures import ClassifierPictures
from trainer.training.context import TaskContext
from trainer.training.run_record import write_score

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5


def evaluate(context: TaskContext) -> None:
    """Evaluate a run's checkpoints up to that of its last step, or until the watchdog stops this task.

    Raises:
        ConfigurationError: train_dir is not set, or it holds a run of another model or data set.
        LostPeersError: no new checkpoint appeared within `stall_seconds` + `save_seconds` (for the first one also +
            `wait_seconds`).
        ModelError: the model fails on the held-out data.
    """
    settings = context.settings
    if settings.train_dir is None:
        raise ConfigurationError("train_dir: it is not set, but an evaluator needs it: name the training directory.")
    if is_uri(settings.train_dir):
        raise ConfigurationError(
            f"train_dir={settings.train_dir}: an evaluator needs a directory that it shares with the chief; leave the "
            "evaluator out, as the chief evaluates too (eval_seconds)."
        )
    problem = load_problem(settings, context.cluster)
    directory = TrainingDirectory(Path(settings.train_dir))
    evaluated = _read_steps(directory.evaluations)
    seconds = settings.wait_seconds + settings.stall_seconds + settings.save_seconds
    summaries, pictures = SummaryWriter(directory.test_summaries), ClassifierPictures()
    # num_gpus is that of a replica.
    gpus = 0 if settings.num_gpus == 0 else devices.count_gpus(dataclasses.replace(settings, num_gpus=None))
    with problem.evaluator(devices.all_of(gpus)[0] if gpus else CPU) as evaluator:
        while not context.is_stopping():
            problem = problem.continued(*newest_course(directory.path))
            if max(evaluated, default=0) >= problem.settings.train_steps:
                return
            checkpoints = _wait_for_checkpoints(context, directory, problem, evaluated, seconds)
            if not checkpoints:  # a callback has ended the run
                return
            for checkpoint in checkpoints:
                if context.is_stopping():
                    return
                with _kept(checkpoint, directory.evaluating) as kept, _present(directory):
                    if kept:
                        _evaluate_checkpoint(
                            kept, evaluator, directory, problem.best_metric, summaries, pictures, context.metrics
                        )
                evaluated.add(_step_of(checkpoint))
            seconds = settings.stall_seconds + settings.save_seconds


def _wait_for_checkpoints(
    context: TaskContext, directory: TrainingDirectory, problem: Problem, evaluated: set[int], seconds: float
) -> list[str]:
    """Wait for checkpoints of other steps than those in `evaluated`; return them, or none if interrupted or over."""
    pending: list[str] = []

    def missing() -> str:
        directory.check(problem.identity)
        _touch(directory)
        checkpoints = CheckpointList(directory.path, keep=1).paths
        pending[:] = [checkpoint for checkpoint in checkpoints if _step_of(checkpoint) not in evaluated]
        result = directory.read_result()
        is_over = result.get("state") == "done" and problem.was_stopped(result)
        return "" if pending or is_over else "next" if checkpoints else "first"

    poll_until(
        missing,
        seconds,
        waiting=lambda which: [f"waiting for the first checkpoint in {directory.path}"] if which == "first" else [],
        expired=lambda _: (
            f"train_dir: no new checkpoint appeared in {directory.path} in the time allowed: check the chief's log, or "
            "raise stall_seconds."
        ),
        interrupted=context.is_stopping,
        interval=POLL_SECONDS,
        first_message=5.0,
    )
    return pending


def _evaluate_checkpoint(
    checkpoint: str,
    evaluator: CheckpointEvaluator,
    directory: TrainingDirectory,
    metric: BestMetric,
    summaries: SummaryWriter,
    pictures: ClassifierPictures,
    metrics: Metrics,
) -> None:
    """Score one checkpoint, unless it was deleted, and record the score.

    Raises:
        ModelError: the model fails on the held-out data.
    """
    try:
        evaluator.restore(checkpoint)
    except UNREADABLE:
        original = directory.path / Path(checkpoint).name
        if files_of(str(original))[0].exists():  # it was not deleted in favour of a newer one
            logger.warning(f"{original} is damaged")
        return
    score = evaluator.score_restored()
    measured = {**score.metrics, "loss": score.loss}
    evaluation = {"checkpoint": _step_of(checkpoint), "global_step": score.global_step, **measured}
    try:
        _append(directory.evaluations, evaluation)
    except OSError as error:
        logger.warning(f"{directory.evaluations} cannot be written ({error.strerror})")
    write_score(summaries, score)
    pictures.write(summaries, evaluator, score.global_step)
    with contextlib.suppress(OSError):  # the chief may have just deleted it
        best.offer(directory.best, checkpoint, score, metric)
    metrics.test_metrics = measured
    logger.info(str(score))


@contextlib.contextmanager
def _kept(checkpoint: str, folder: Path) -> Iterator[str | None]:
    """A checkpoint whose files the chief does not remove meanwhile; None if they cannot be kept.

    Tables are read from their files when they are needed, and a file that another machine removes is lost on NFS.
    """
    if not table_files.has_tables(checkpoint):
        yield checkpoint
        return
    shutil.rmtree(folder, ignore_errors=True)
    kept = None
    try:
        try:
            folder.mkdir(exist_ok=True)  # on NFS, files that are in use keep it
            kept = link(checkpoint, folder, Path(checkpoint).name)
            if not all(base.exists() for base in table_files.bases_of(kept)):
                kept = None  # it was removed before this folder had the list that names it
        except OSError as error:
            kept = None
            if files_of(checkpoint)[0].exists():  # it was not deleted just now
                logger.warning(f"{checkpoint} is not evaluated, as its files cannot be linked ({error.strerror})")
        yield kept
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _present(directory: TrainingDirectory) -> Iterator[None]:
    """Show that the evaluator runs, also in an evaluation that takes longer than the chief waits for a sign of it."""
    is_over = threading.Event()

    def touch() -> None:
        while not is_over.wait(EVALUATOR_SECONDS / 4):
            _touch(directory)

    _touch(directory)
    thread = threading.Thread(target=touch, name="evaluator", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _touch(directory: TrainingDirectory) -> None:
    with contextlib.suppress(OSError):
        directory.test_summaries.mkdir(exist_ok=True)
        directory.evaluator.touch()


def _step_of(checkpoint: str) -> int:
    """The step in a checkpoint's name. In asynchronous training the saved values may be a few steps newer."""
    return int(checkpoint.rpartition("-")[2])


def _append(evaluations: Path, evaluation: dict[str, Any]) -> None:
    """Append a JSON line. If a crash has truncated the last line, start a new one."""
    evaluations.parent.mkdir(exist_ok=True)
    with evaluations.open("a+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        is_truncated = file.read() not in (b"", b"\n")
        file.write(b"\n" * is_truncated + json.dumps(evaluation).encode() + b"\n")


def _read_steps(evaluations: Path) -> set[int]:
    """Return the steps evaluated so far. Ignore a line that a crash has truncated."""
    if not evaluations.exists():
        return set()
    steps = set()
    for line in evaluations.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            steps.add(int(json.loads(line)["checkpoint"]))
    return steps
