"""The evaluator's life: examine each checkpoint once on the held-out split, and end with the run.

It talks to nobody and reads the training directory only; what it has examined it notes there, so that it goes on where
it was when it is started again.
"""

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.cluster.peers import BETWEEN_MESSAGES
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


def evaluate(settings: Settings, watchdog: Watchdog, say: Callable[[str], None], metrics: Metrics) -> None:
    """Follow a run's checkpoints until the one of its last step has been examined, or the guard stops it.

    Raises:
        ConfigurationError: no training directory is given, or it holds a run of another model or data set.
        LostPeersError: no new checkpoint came within `stall_seconds` and `save_seconds` (and `wait_seconds`, at first).
    """
    if settings.train_dir is None:
        raise ConfigurationError("train_dir: an evaluator must be told which training directory to follow.")
    dataset = datasets.load(settings.dataset, settings.data_dir, settings.download)
    model = find(settings.model)
    parameters = model.parameters(dataset.image_shape, dataset.classes, settings.hidden_units)
    run = describe(settings.model, parameters, dataset)
    directory = TrainingDirectory(settings.train_dir)
    examined = _read_steps(directory.evaluations)
    deadline = time.monotonic() + settings.wait_seconds + settings.stall_seconds + settings.save_seconds
    next_message = time.monotonic() + BETWEEN_MESSAGES
    summaries = SummaryWriter(directory.test_summaries)
    with CheckpointEvaluator(model, parameters, dataset.test) as evaluator:
        while not watchdog.stopping and max(examined, default=0) < settings.train_steps:
            directory.check(run)
            with contextlib.suppress(OSError):
                directory.test_summaries.mkdir(exist_ok=True)
                directory.evaluator.touch()
            state = tf1.train.get_checkpoint_state(str(directory.path))
            checkpoints = state.all_model_checkpoint_paths if state else []
            waiting = [checkpoint for checkpoint in checkpoints if _step_of(checkpoint) not in examined]
            for checkpoint in waiting:
                if watchdog.stopping:
                    return
                _examine(checkpoint, evaluator, directory, summaries, say, metrics)
                examined.add(_step_of(checkpoint))
                deadline = time.monotonic() + settings.stall_seconds + settings.save_seconds
            now = time.monotonic()
            if not waiting and now >= deadline:
                raise LostPeersError(f"train_dir: no new checkpoint appeared in {directory.path} in the time allowed.")
            if not state and now >= next_message:
                say(f"waiting for the first checkpoint in {directory.path}")
                next_message = now + BETWEEN_MESSAGES
            time.sleep(POLL_SECONDS)


def _examine(
    checkpoint: str,
    evaluator: CheckpointEvaluator,
    directory: TrainingDirectory,
    summaries: SummaryWriter,
    say: Callable[[str], None],
    metrics: Metrics,
) -> None:
    """Score one checkpoint, unless it is gone already, and note the score."""
    try:
        score = evaluator.score(checkpoint)
    except UNREADABLE:
        say(f"{checkpoint} is damaged, or was deleted before it could be examined")
        return
    _note(directory.evaluations, {"checkpoint": _step_of(checkpoint), **asdict(score)})
    write_score(summaries, score)
    with contextlib.suppress(OSError):  # deleted just now
        best.offer(directory.best, checkpoint, score)
    metrics.test_loss, metrics.test_accuracy = score.loss, score.accuracy
    say(describe_score(score))


def _step_of(checkpoint: str) -> int:
    """The step in a checkpoint's name; asynchronous replicas may have moved on by a few while it was written."""
    return int(checkpoint.rpartition("-")[2])


def _note(noted: Path, evaluation: dict[str, Any]) -> None:
    """Add a line, whole even where a crash has cut off the one before."""
    noted.parent.mkdir(exist_ok=True)
    before = noted.read_text(encoding="utf-8") if noted.exists() else ""
    with noted.open("a", encoding="utf-8") as file:
        file.write("\n" if before and not before.endswith("\n") else "")
        file.write(json.dumps(evaluation) + "\n")


def _read_steps(noted: Path) -> set[int]:
    """The steps examined before; a line cut off by a crash counts as none."""
    if not noted.exists():
        return set()
    steps = set()
    for line in noted.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            steps.add(int(json.loads(line)["checkpoint"]))
    return steps
