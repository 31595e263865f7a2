"""The evaluator: each checkpoint once, until the last."""

import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.checkpoint.files import CheckpointList
from trainer.cluster.spec import Cluster, Task
from trainer.config import Settings
from trainer.errors import ConfigurationError, LostPeersError, ModelError
from trainer.graph import replica
from trainer.problem.problem import load
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.tensorflow import tf1
from trainer.training import evaluator
from trainer.training.context import TaskContext

Evaluate = Callable[[Settings], TaskContext]
EvaluateSteps = Callable[[Settings], list[str]]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a run of 2 steps on eleven examples."""
    monkeypatch.setattr(evaluator, "POLL_SECONDS", 0.01)
    np.savez(tmp_path / "train.npz", x=np.eye(11, dtype=np.float32), y=np.arange(11) % 3)
    return Settings(
        dataset="npz",
        data_dir=str(tmp_path),
        train_dir=str(tmp_path / "run"),
        train_steps=2,
        steps_per_execution=1,
        wait_seconds=0.1,
    )


def train(settings: Settings) -> None:
    """Leave the checkpoints of steps 0, 1 and 2."""
    problem = load(settings, None)
    parameters = problem.parameters
    found = replica.build(problem.settings, None, problem.model, parameters, problem.dataset.train, 0, "this run")
    assert settings.train_dir
    directory = TrainingDirectory(Path(settings.train_dir))
    directory.create()
    directory.claim(problem.identity)
    checkpoints = CheckpointList(directory.path, keep=5)
    with tf1.Session(graph=found.graph) as session:
        session.run(found.initialize)
        found.batches.begin(session)
        for _ in range(3):
            checkpoints.add(found.saver.save(session, directory.checkpoint_prefix))
            feed = dict(zip(found.batches.feeds(1), found.batches.take(1, 0), strict=True))
            session.run(found.replication.executions[1].step, feed)


@pytest.fixture
def evaluate(task_context: Callable[..., TaskContext]) -> Callable[[Settings], TaskContext]:
    """A function that runs an evaluator, and returns its context."""

    def run(settings: Settings) -> TaskContext:
        context = task_context(settings)
        evaluator.evaluate(context)
        return context

    return run


@pytest.fixture
def evaluate_steps(evaluate: Evaluate, log_lines: list[str]) -> Callable[[Settings], list[str]]:
    """A function that runs an evaluator, and returns the steps that it evaluates."""

    def run(settings: Settings) -> list[str]:
        log_lines.clear()
        evaluate(settings)
        return [line.partition(":")[0] for line in log_lines]

    return run


def noted(settings: Settings) -> list[dict[str, Any]]:
    assert settings.train_dir
    return [
        json.loads(line) for line in TrainingDirectory(Path(settings.train_dir)).evaluations.read_text().splitlines()
    ]


def test_each_checkpoint_is_evaluated_and_the_last_ends_it(settings: Settings, evaluate_steps: EvaluateSteps) -> None:
    train(settings)
    evaluated = evaluate_steps(settings)
    assert [line["global_step"] for line in noted(settings)] == [0, 1, 2]
    assert all(0 <= line["accuracy"] <= 1 and line["loss"] > 0 for line in noted(settings))
    assert evaluated == ["step 0", "step 1", "step 2"]


def test_the_gpus_of_a_replica_are_not_those_of_the_evaluator(
    settings: Settings, task_context: Callable[..., TaskContext]
) -> None:
    train(settings)
    cluster = Cluster(Task("evaluator", 0), worker=("w:1",), ps=("p:1",))
    evaluator.evaluate(task_context(dataclasses.replace(settings, num_gpus=4), cluster))
    assert noted(settings)


def cut_off_last_line(settings: Settings) -> None:
    """Truncate the recorded evaluations, as a crash during a write does."""
    assert settings.train_dir
    path = TrainingDirectory(Path(settings.train_dir)).evaluations
    path.write_text(path.read_text()[:-20])


def test_a_model_that_fails_on_the_held_out_data_is_no_damaged_checkpoint(
    tmp_path: Path, evaluate: Evaluate, log_lines: list[str]
) -> None:
    """An id that a small embedding lacks."""
    for name, ids in (("train", [1, 2, 3]), ("test", [1, 150, 3])):
        np.savez(tmp_path / f"{name}.npz", x=np.array([ids] * 4), y=np.arange(4.0))
    (tmp_path / "mine.py").write_text(
        "import keras\ndef model():\n    network = keras.Sequential([keras.layers.Embedding(100, 4), "
        "keras.layers.Flatten(), keras.layers.Dense(1)])\n    network.compile('sgd', 'mse')\n    return network\n"
    )
    settings = Settings(
        model=str(tmp_path / "mine.py"),
        dataset="npz",
        data_dir=str(tmp_path),
        train_dir=str(tmp_path / "run"),
        train_steps=2,
        steps_per_execution=1,
    )
    train(settings)
    log_lines.clear()
    with pytest.raises(ModelError) as error:
        evaluate(settings)
    assert str(error.value) == "the model fails on the held-out data: indices[0,1] = 150 is not in [0, 100)."
    assert not any("damaged" in line for line in log_lines)


def test_a_damaged_checkpoint_is_said_and_the_others_are_evaluated(
    settings: Settings, evaluate_steps: EvaluateSteps
) -> None:
    train(settings)
    assert settings.train_dir
    (damaged,) = Path(settings.train_dir).glob("model.ckpt-1.data-*")
    damaged.write_bytes(b"x" * 10)
    assert evaluate_steps(settings) == ["step 0", f"{Path(settings.train_dir) / 'model.ckpt-1'} is damaged", "step 2"]


def test_an_evaluation_that_takes_long_shows_that_the_evaluator_runs(
    settings: Settings, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chief that restarts meanwhile would remove the files that it reads, and evaluate by itself."""
    monkeypatch.setattr(evaluator, "EVALUATOR_SECONDS", 0.01)
    train(settings)
    assert settings.train_dir
    directory = TrainingDirectory(Path(settings.train_dir))
    seen: list[float] = []

    def look(*arguments: Any) -> None:
        os.utime(directory.evaluator, (0, 0))
        while directory.evaluator.stat().st_mtime == 0:
            time.sleep(0.001)
        seen.append(directory.evaluator.stat().st_mtime)

    monkeypatch.setattr(evaluator, "write_score", look)
    evaluate(settings)
    assert len(seen) == 3


def test_a_restarted_evaluator_evaluates_only_new_checkpoints(
    settings: Settings, evaluate_steps: EvaluateSteps
) -> None:
    train(settings)
    assert evaluate_steps(settings) == ["step 0", "step 1", "step 2"]
    assert evaluate_steps(settings) == []
    cut_off_last_line(settings)
    assert evaluate_steps(settings) == ["step 2"]


def test_a_checkpoint_evaluated_again_after_a_crash_is_recorded(
    settings: Settings, evaluate: Evaluate, evaluate_steps: EvaluateSteps
) -> None:
    train(settings)
    evaluate(settings)
    cut_off_last_line(settings)
    assert evaluate_steps(settings) == ["step 2"]
    assert evaluate_steps(settings) == []


def test_the_last_score_is_shown_as_metrics(settings: Settings, evaluate: Evaluate) -> None:
    train(settings)
    shown = evaluate(settings).metrics
    last = noted(settings)[-1]
    assert shown.test_metrics == {"loss": last["loss"], "accuracy": last["accuracy"]}


def test_a_run_that_never_saves_is_a_lost_peers_error(settings: Settings, evaluate: Evaluate) -> None:
    with pytest.raises(LostPeersError, match=f"no new checkpoint appeared in {settings.train_dir}"):
        evaluate(dataclasses.replace(settings, stall_seconds=0.1, save_seconds=0.1))


def test_another_models_run_is_refused(settings: Settings, evaluate: Evaluate) -> None:
    train(settings)
    other = Settings(dataset="npz", data_dir=settings.data_dir, train_dir=settings.train_dir, hidden_units=7)
    with pytest.raises(ConfigurationError, match="different parameters"):
        evaluate(other)


def test_an_evaluator_needs_train_dir(evaluate: Evaluate) -> None:
    with pytest.raises(ConfigurationError, match="train_dir"):
        evaluate(Settings())


def test_an_evaluator_cannot_use_a_store(evaluate: Evaluate) -> None:
    with pytest.raises(ConfigurationError, match="an evaluator needs a directory that it shares with the chief"):
        evaluate(Settings(train_dir="s3://runs/a"))
