"""The evaluator: it evaluates each checkpoint once on the held-out split, and ends with the run.

It connects to no other task and reads the training directory only. It records each evaluation there, so that it
resumes after a restart.
"""

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.cluster.peers import MESSAGE_INTERVAL_SECONDS
from trainer.config import Settings
from trainer.data import datasets
from trainer.errors import ConfigurationError, LostPeersError
from trainer.models import find
from trainer.telemetry.metrics import Metrics
from trainer.telemetry.summaries import SummaryWriter
from trainer.tensorflow import tf1
from trainer.training import best
from trainer.training.evaluation import UNREADABLE, CheckpointEvaluator
from trainer.training.run_record import describe as describe_score
from trainer.training.run_record import write_score
from trainer.training.training_directory import TrainingDirectory, describe
from trainer.training.watchdog import Watchdog

POLL_SECONDS = 0.5


def evaluate(settings: Settings, watchdog: Watchdog, log: Callable[[str], None], metrics: Metrics) -> None:
    """Evaluate a run's checkpoints up to that of its last step, or until the watchdog stops this task.

    Raises:
        ConfigurationError: train_dir is not set, or it holds a run of another model or data set.
        LostPeersError: no new checkpoint appeared within `stall_seconds` + `save_seconds` (for the first one also +
            `wait_seconds`).
    """
    if settings.train_dir is None:
        raise ConfigurationError("train_dir: it is not set, but an evaluator needs it: name the training directory.")
    dataset = datasets.load(settings.dataset, settings.data_dir, settings.download)
    model = find(settings.model)
    parameters = model.parameters(dataset.image_shape, dataset.classes, settings.hidden_units)
    run = describe(settings.model, parameters, dataset)
    directory = TrainingDirectory(settings.train_dir)
    evaluated = _read_steps(directory.evaluations)
    deadline = time.monotonic() + settings.wait_seconds + settings.stall_seconds + settings.save_seconds
    next_message = time.monotonic() + MESSAGE_INTERVAL_SECONDS
    summaries = SummaryWriter(directory.test_summaries)
    with CheckpointEvaluator(model, parameters, dataset.test) as evaluator:
        while not watchdog.stopping and max(evaluated, default=0) < settings.train_steps:
            directory.check(run)
            with contextlib.suppress(OSError):
                directory.test_summaries.mkdir(exist_ok=True)
                directory.evaluator.touch()
            state = tf1.train.get_checkpoint_state(str(directory.path))
            checkpoints = state.all_model_checkpoint_paths if state else []
            pending = [checkpoint for checkpoint in checkpoints if _step_of(checkpoint) not in evaluated]
            for checkpoint in pending:
                if watchdog.stopping:
                    return
                _evaluate_checkpoint(checkpoint, evaluator, directory, summaries, log, metrics)
                evaluated.add(_step_of(checkpoint))
                deadline = time.monotonic() + settings.stall_seconds + settings.save_seconds
            now = time.monotonic()
            if not pending and now >= deadline:
                raise LostPeersError(
                    f"train_dir: no new checkpoint appeared in {directory.path} in the time allowed: check the chief's "
                    "log, or raise stall_seconds."
                )
            if not state and now >= next_message:
                log(f"waiting for the first checkpoint in {directory.path}")
                next_message = now + MESSAGE_INTERVAL_SECONDS
            time.sleep(POLL_SECONDS)


def _evaluate_checkpoint(
    checkpoint: str,
    evaluator: CheckpointEvaluator,
    directory: TrainingDirectory,
    summaries: SummaryWriter,
    log: Callable[[str], None],
    metrics: Metrics,
) -> None:
    """Score one checkpoint, unless it was deleted, and record the score."""
    try:
        score = evaluator.score(checkpoint)
    except UNREADABLE:
        log(f"{checkpoint} is damaged, or was deleted before its evaluation")
        return
    _append(directory.evaluations, {"checkpoint": _step_of(checkpoint), **asdict(score)})
    write_score(summaries, score)
    with contextlib.suppress(OSError):  # the chief may have just deleted it
        best.offer(directory.best, checkpoint, score)
    metrics.test_loss, metrics.test_accuracy = score.loss, score.accuracy
    log(describe_score(score))


def _step_of(checkpoint: str) -> int:
    """The step in a checkpoint's name. In asynchronous training the saved values may be a few steps newer."""
    return int(checkpoint.rpartition("-")[2])


def _append(evaluations: Path, evaluation: dict[str, Any]) -> None:
    """Append a JSON line. If a crash has truncated the last line, start a new one."""
    evaluations.parent.mkdir(exist_ok=True)
    before = evaluations.read_text(encoding="utf-8") if evaluations.exists() else ""
    with evaluations.open("a", encoding="utf-8") as file:
        file.write("\n" if before and not before.endswith("\n") else "")
        file.write(json.dumps(evaluation) + "\n")


def _read_steps(evaluations: Path) -> set[int]:
    """Return the steps evaluated so far. Ignore a line that a crash has truncated."""
    if not evaluations.exists():
        return set()
    steps = set()
    for line in evaluations.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            steps.add(int(json.loads(line)["checkpoint"]))
    return steps
