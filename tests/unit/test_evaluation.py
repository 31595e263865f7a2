"""Evaluating a checkpoint on the held-out split."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from trainer.config import Settings
from trainer.data.examples import Examples
from trainer.data.stream import Stream
from trainer.errors import ModelError
from trainer.evaluate import evaluation
from trainer.evaluate.evaluation import CheckpointEvaluator
from trainer.graph import replica
from trainer.models import mlp
from trainer.models.keras_model import KerasModel
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.private import eager_mode

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


@pytest.mark.parametrize("batch_size", [None, 1, 7, 20, 1000])
@pytest.mark.parametrize("most", [7, 1000])
@pytest.mark.parametrize("device", [evaluation.CPU, "/device:GPU:0"])  # without a GPU, it computes on the CPU
def test_the_score_covers_the_whole_split_in_batches_of_any_size(
    batch_size: int | None, most: int, device: str, checkpoint: str, split: Examples
) -> None:
    with CheckpointEvaluator(MLP, PARAMETERS, split, batch_size, most, device) as evaluator:
        assert evaluator._chunk == (batch_size or most)
        assert {op.device for op in evaluator._graph.get_operations() if op.type == "MatMul"} == {device}
        score = evaluator.score(checkpoint)
    _, accuracy, loss = by_hand(checkpoint, split)
    assert score.global_step == 0
    assert score.metrics["accuracy"] == pytest.approx(accuracy)
    assert score.loss == pytest.approx(loss, rel=1e-5)


def test_examples_that_need_much_memory_are_evaluated_in_small_batches(log_lines: list[str]) -> None:
    """112 x 112 pixels become 56 x 56 x 64 numbers: 0.8 MB, and 0.8 GB for 1,000 examples."""

    def model() -> keras.Model:
        network = keras.Sequential([keras.Input((112, 112, 3)), keras.layers.Conv2D(64, 3, 2, "same")])
        network.add(keras.layers.GlobalAveragePooling2D())
        network.compile("sgd", "mse")
        return network

    split = Examples(np.zeros((2, 112, 112, 3), np.float32), np.zeros((2, 64), np.float32))
    made = KerasModel("mine", model, 0, None)
    parameters = made.parameters(split.signature)
    with CheckpointEvaluator(made, parameters, split, most=256) as evaluator:
        assert evaluator._chunk == (32 << 20) // (4 * 56 * 56 * 64)
    assert log_lines == [
        "the held-out split is evaluated in batches of 41 examples, as the model needs 0.8 MiB for an example; "
        "eval_batch_size sets another number"
    ]
    with CheckpointEvaluator(made, parameters, split, batch_size=256, most=16) as evaluator:
        assert evaluator._chunk == 256


def untrained(model: Callable[[], keras.Model], split: Examples, path: Path) -> tuple[KerasModel, dict[str, Any], str]:
    """A model that learns a split, its parameters, and a checkpoint of step 0."""
    made = KerasModel("mine", model, 0, None)
    parameters = made.parameters(split.signature)
    found = replica.build(Settings(batch_size=2, steps_per_execution=1), None, made, parameters, split, 0, "this run")
    with tf1.Session(graph=found.graph) as session:
        session.run(found.initialize)
        return made, parameters, str(found.saver.save(session, path / "model.ckpt"))


@pytest.mark.parametrize("batch_size", [8, 20, 3])
def test_a_loss_that_depends_on_the_batch_is_that_of_keras(batch_size: int, tmp_path: Path) -> None:
    """The softmax of each row over the other rows of its batch, which a larger batch makes larger."""

    def in_batch(targets: Any, outputs: Any) -> Any:
        logits = keras.ops.matmul(outputs, keras.ops.transpose(targets))
        return keras.ops.diagonal(-keras.ops.log_softmax(logits))

    def model() -> keras.Model:
        network = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
        network.compile("sgd", in_batch, metrics=["mse"])
        return network

    random = np.random.default_rng(0)
    split = Examples(random.normal(size=(20, 6)).astype(np.float32), random.normal(size=(20, 4)).astype(np.float32))
    made, parameters, checkpoint = untrained(model, split, tmp_path)
    with CheckpointEvaluator(made, parameters, split, most=batch_size) as evaluator:
        score = evaluator.score(checkpoint)
    with eager_mode():
        wanted = made.network.evaluate(split.inputs, split.targets, batch_size=batch_size, verbose=0, return_dict=True)
    assert score.loss == pytest.approx(wanted["loss"], rel=1e-5)
    assert score.metrics["mse"] == pytest.approx(wanted["mse"], rel=1e-5)


def test_labels_that_the_loss_ignores_do_not_count_in_the_accuracy(tmp_path: Path) -> None:
    def model() -> keras.Model:
        network = keras.Sequential([keras.Input((4, 3)), keras.layers.Dense(2, kernel_initializer="zeros")])
        network.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1))
        return network

    labels = np.array([[0, 1, -1, -1], [0, 0, 0, -1]], np.int32)  # of which the untrained model gives 0
    split = Examples(np.ones((2, 4, 3), np.float32), labels)
    made, parameters, checkpoint = untrained(model, split, tmp_path)
    with CheckpointEvaluator(made, parameters, split) as evaluator:
        assert evaluator.score(checkpoint).metrics["accuracy"] == pytest.approx(4 / 5)


def embedding_of_100(path: Path) -> tuple[KerasModel, dict[str, Any], str]:
    """A model whose embedding has 100 rows, and a checkpoint of it."""

    def model() -> keras.Model:
        network = keras.Sequential([keras.Input((3,), dtype="int32"), keras.layers.Embedding(100, 4)])
        network.add(keras.layers.Flatten())
        network.compile("sgd", "mse")
        return network

    split = Examples(np.ones((10, 3), np.int32), np.zeros((10, 12), np.float32))
    return untrained(model, split, path)


def test_a_model_that_fails_on_the_held_out_data_is_said(tmp_path: Path) -> None:
    model, parameters, checkpoint = embedding_of_100(tmp_path)
    held_out = Examples(np.full((10, 3), 150, np.int32), np.zeros((10, 12), np.float32))
    with CheckpointEvaluator(model, parameters, held_out) as evaluator, pytest.raises(ModelError) as error:
        evaluator.score(checkpoint)
    assert str(error.value) == ("the model fails on the held-out data: indices[0,0] = 150 is not in [0, 100).")


def test_held_out_data_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    model, parameters, checkpoint = embedding_of_100(tmp_path)

    def once(size: int) -> Iterator[Any]:
        yield [np.ones((2, 3), np.int32), np.zeros((2, 12), np.float32)]
        raise tf.errors.DataLossError(None, None, "corrupted record at 7")

    signature = Examples(np.ones((2, 3), np.int32), np.zeros((2, 12), np.float32)).signature
    held_out = Stream(signature, once)
    with CheckpointEvaluator(model, parameters, held_out) as evaluator, pytest.raises(ModelError) as error:
        evaluator.score(checkpoint)
    assert str(error.value) == "the held-out data cannot be read: corrupted record at 7."


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
    assert json.loads((tmp_path / "export" / "0" / "data.json").read_text()) == {
        "dataset_version": "7",
        "output": "probabilities",
    }
    with tf.Graph().as_default(), tf1.Session() as session:
        signature = tf1.saved_model.load(session, ["serve"], str(tmp_path / "export" / "0")).signature_def
        serving = signature["serving_default"]
        feed = {serving.inputs["images"].name: split.inputs}
        found = session.run(serving.outputs["probabilities"].name, feed)
    assert np.allclose(found, by_hand(checkpoint, split)[0], atol=1e-5)
