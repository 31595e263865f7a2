"""Evaluating a checkpoint on the held-out split."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from trainer.config import Settings
from trainer.data.examples import Examples
from trainer.graph import replica
from trainer.models import mlp
from trainer.run_directory import evaluation
from trainer.run_directory.evaluation import CheckpointEvaluator
from trainer.tensorflow import tf, tf1

from .conftest import MLP

PARAMETERS = mlp.parameters((6,), 3, 5)


@pytest.fixture
def split() -> Examples:
    random = np.random.default_rng(0)
    return Examples(random.random((20, 6), np.float32), random.integers(0, 3, 20, np.int32))


@pytest.fixture
def checkpoint(split: Examples, tmp_path: Path) -> str:
    """A checkpoint of step 0, as a run of one process saves it."""
    found = replica.build(Settings(seed=3, steps_per_execution=1), None, MLP, PARAMETERS, split, 0, "this run")
    with tf1.Session(graph=found.graph) as session:
        session.run(found.initialize)
        return str(found.saver.save(session, tmp_path / "model.ckpt"))


@pytest.fixture
def evaluator(split: Examples) -> Iterator[CheckpointEvaluator]:
    with CheckpointEvaluator(MLP, PARAMETERS, split) as made:
        yield made


def by_hand(checkpoint: str, split: Examples) -> tuple[np.ndarray, float, float]:
    """Probabilities, accuracy and loss."""
    reader = tf1.train.load_checkpoint(checkpoint)
    values = {name: reader.get_tensor(name) for name in PARAMETERS}
    hidden = np.maximum(split.inputs @ values["hidden/weights"] + values["hidden/biases"], 0)
    powers = np.exp(hidden @ values["softmax/weights"] + values["softmax/biases"])
    probabilities = powers / powers.sum(axis=1, keepdims=True)
    accuracy = float((probabilities.argmax(axis=1) == split.targets).mean())
    return probabilities, accuracy, float(-np.log(probabilities[np.arange(len(split)), split.targets]).mean())


@pytest.mark.parametrize("chunk", [7, 20, 1000])
def test_the_score_covers_the_whole_split_for_any_chunk_size(
    chunk: int, evaluator: CheckpointEvaluator, checkpoint: str, split: Examples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "CHUNK", chunk)
    score = evaluator.score(checkpoint)
    _, accuracy, loss = by_hand(checkpoint, split)
    assert score.global_step == 0
    assert score.metrics["accuracy"] == pytest.approx(accuracy)
    assert score.loss == pytest.approx(loss, rel=1e-5)


def test_a_checkpoint_that_was_deleted_is_an_error_and_the_next_is_scored(
    evaluator: CheckpointEvaluator, checkpoint: str, tmp_path: Path
) -> None:
    with pytest.raises((tf.errors.NotFoundError, ValueError)):
        evaluator.score(str(tmp_path / "model.ckpt-7"))
    assert evaluator.score(checkpoint).global_step == 0


def test_a_repeated_export_never_shows_a_part_of_a_model(
    evaluator: CheckpointEvaluator, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may start at any moment: what it finds under the name is whole, also while an earlier one is removed."""
    export = tmp_path / "export" / "0"
    evaluator.restore(checkpoint)
    evaluator.export(export, {"dataset_version": "1"})
    found: list[str] = []
    really_remove = shutil.rmtree

    def remove(folder: Path, ignore_errors: bool) -> None:
        really_remove(folder, ignore_errors=ignore_errors)
        assert (export / "saved_model.pb").exists()
        found.append(json.loads((export / "data.json").read_text())["dataset_version"])

    monkeypatch.setattr(shutil, "rmtree", remove)
    evaluator.export(export, {"dataset_version": "2"})
    assert found == ["1", "2"], "before and after the swap"
    assert [path.name for path in export.parent.iterdir()] == ["0"]


def test_the_exported_model_gives_probabilities(
    evaluator: CheckpointEvaluator, checkpoint: str, split: Examples, tmp_path: Path
) -> None:
    evaluator.score(checkpoint)
    evaluator.export(tmp_path / "export" / "0", {"dataset_version": "7"})
    assert json.loads((tmp_path / "export" / "0" / "data.json").read_text()) == {"dataset_version": "7"}
    with tf.Graph().as_default(), tf1.Session() as session:
        signature = tf1.saved_model.load(session, ["serve"], str(tmp_path / "export" / "0")).signature_def
        serving = signature["serving_default"]
        feed = {serving.inputs["images"].name: split.inputs}
        found = session.run(serving.outputs["probabilities"].name, feed)
    assert np.allclose(found, by_hand(checkpoint, split)[0], atol=1e-5)
