"""The arguments of `keras.Model.fit` in a model's file, and what becomes of them."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer import config
from trainer.cluster.spec import Cluster, Task
from trainer.data.columns import files
from trainer.data.epochs import Epochs
from trainer.data.examples import Examples
from trainer.data.stream import Stream
from trainer.errors import ConfigurationError, ModelError
from trainer.graph import replica
from trainer.models.keras_model import KerasModel
from trainer.problem import problem
from trainer.problem.problem import Problem
from trainer.tensorflow import tf1
from trainer.training import batch_hooks
from trainer.training.fit_callbacks import FitCallbacks
from trainer.training.outcome import Outcome

Load = Callable[..., Problem]

FILE = """
    import keras, numpy as np, tensorflow as tf
    from keras import layers

    def train_data(context):
        return np.zeros([100, 4], "float32"), np.arange(100) % 2

    def model(classes):
        network = keras.Sequential([layers.Input((4,)), layers.Dense(classes)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        network.compile(keras.optimizers.SGD(0.1), loss)
        return network
    """


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads the problem of a model file with this text of `fit_arguments`."""

    def load_with(arguments: str, cluster: Cluster | None = None, **settings: Any) -> Problem:
        path = tmp_path / "mine.py"
        path.write_text(f"{textwrap.dedent(FILE)}\ndef fit_arguments():\n    return {arguments}\n")
        return problem.load(config.load_values({"model": str(path), **settings}), cluster)

    return load_with


def two_workers() -> Cluster:
    return Cluster(Task("worker", 0), worker=("host:2", "host:3"), ps=("host:1",))


@pytest.mark.parametrize(
    ("arguments", "settings", "steps"),
    [
        ("{'epochs': 3}", {"batch_size": 40}, 9),  # of 90 examples, as a tenth is held out
        ("{'epochs': 3, 'batch_size': 9}", {}, 30),
        (
            "{'epochs': 3, 'callbacks': keras.callbacks.Callback()}",
            {"batch_size": 40},
            9,
        ),  # not in a list, as fit takes it
        ("{'epochs': 3, 'batch_size': 9}", {"batch_size": 90}, 3),
        ("{'epochs': 3}", {"batch_size": 40, "epochs": 2}, 6),
        ("{'epochs': 3}", {"batch_size": 40, "train_steps": 50}, 50),
        ("{'epochs': 3}", {"train_steps": 2000}, 2000),  # the default, but given
        ("{'epochs': 3, 'batch_size': 9}", {"batch_size": 100}, 3),
        ("{'epochs': 3, 'steps_per_epoch': 5}", {}, 15),
        ("{'epochs': 3, 'validation_split': 0.5}", {"batch_size": 10}, 15),
        ("{'epochs': np.int64(3), 'steps_per_epoch': np.array(5)[()], 'batch_size': tf.constant(9)}", {}, 15),
        ("{'epochs': 3, 'class_weight': {np.int64(0): np.float32(1), 1: np.float64(2)}}", {"batch_size": 40}, 9),
        ("{}", {}, 2000),
    ],
)
def test_epochs_determine_the_steps(load: Load, arguments: str, settings: dict[str, Any], steps: int) -> None:
    assert load(arguments, **settings).settings.train_steps == steps


@pytest.mark.parametrize(("settings", "steps"), [({}, 15), ({"sync_replicas": False}, 27), ({"local_steps": 2}, 16)])
def test_a_step_has_a_batch_of_each_replica_that_averages(load: Load, settings: dict[str, Any], steps: int) -> None:
    assert load("{'epochs': 3}", two_workers(), batch_size=10, **settings).settings.train_steps == steps


def test_validation_data_is_the_held_out_split(load: Load) -> None:
    found = load("{'validation_data': (np.ones([7, 4]), np.zeros(7, int))}")
    assert isinstance(found.dataset.test, Examples)
    assert len(found.dataset.test) == 7
    assert len(found.dataset.train) == 100  # type: ignore[arg-type]


ENDLESS = """
def numbers():
    n = 0
    while True:
        yield np.full([8, 4], n, "float32"), np.zeros(8, "int32")
        n += 1
"""


@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        ("numbers()", [8, 8, 8]),
        ("numbers", [8, 8, 8]),
        ("tf.data.Dataset.from_tensors((np.zeros([8, 4], 'float32'), np.zeros(8, 'int32'))).repeat()", [8, 8, 8]),
        ("tf.data.Dataset.from_tensors((np.zeros(4, 'float32'), 0)).repeat()", [10, 10, 10]),
        ("(np.zeros([80, 4], 'float32'), np.zeros(80, 'int32'))", [30]),
    ],
    ids=["generator", "function", "batches", "examples", "arrays"],
)
def test_validation_steps_end_what_has_no_end(load: Load, data: str, sizes: list[int]) -> None:
    test = load(f"{{'validation_data': {data}, 'validation_steps': 3}}{ENDLESS}", batch_size=10).dataset.test
    if isinstance(test, Examples):
        assert len(test) == sum(sizes)
        return
    passes = [[batch[0][:, 0].tolist() for batch in test.once(8)] for _ in range(2)]
    assert passes[0] == passes[1]
    assert sum(map(len, passes[0])) == sum(sizes)


def test_a_generator_for_the_validation_needs_an_end(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="validation_data is a generator, which may have no end; let"):
        load(f"{{'validation_data': numbers()}}{ENDLESS}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("3", "fit_arguments() returned int; return a dictionary, as in {'epochs': 3}."),
        ("1 / 0", "fit_arguments() failed: ZeroDivisionError: division by zero (line 15)."),
        ("{'x': 3}", "fit_arguments(): x is not taken: return it from train_data()."),
        (
            "{'initial_epoch': 3}",
            "fit_arguments(): initial_epoch is not taken, but epochs, steps_per_epoch, batch_size, callbacks, "
            "class_weight, validation_data, validation_steps, validation_split, shuffle, verbose.",
        ),
        (
            "{'epoch': 3, 'batchsize': 8, 'validation_split': 2.0}",
            "fit_arguments(): epoch is not taken (did you mean epochs?); batchsize is not taken (did you mean "
            "batch_size?); validation_split=2.0, but input should be less than 1.",
        ),
        ("{'epochs': 0}", "fit_arguments(): epochs=0, but input should be greater than or equal to 1."),
        ("{'epochs': 'many'}", "fit_arguments(): epochs='many', but input should be a valid integer."),
        (
            "{'class_weight': {-1: 2.0}}",
            "fit_arguments(): class_weight=-1, but input should be greater than or equal to 0.",
        ),
        ("{'callbacks': [3]}", "fit_arguments(): callbacks has int; Keras's callbacks were expected."),
    ],
)
def test_what_cannot_be_taken_is_named(load: Load, tmp_path: Path, arguments: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(arguments)
    assert str(refused.value) == f"model={tmp_path / 'mine.py'}: {message}"


def in_memory(split: Examples | Stream) -> Any:
    """The inputs of a split."""
    assert isinstance(split, Examples)
    return split.inputs


def test_without_shuffling_the_last_examples_are_held_out(load: Load) -> None:
    data = "\n\ndef train_data(context):\n    return np.arange(21)[:, None] + np.zeros(4), np.zeros(21, int)"
    found = load(f"{{'shuffle': False, 'validation_split': 0.2}}{data}").dataset
    assert [in_memory(each)[:, 0].tolist() for each in (found.train, found.test)] == [[*range(16)], [*range(16, 21)]]


def test_rows_that_are_shuffled_while_they_are_read_cannot_keep_their_order(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "IN_MEMORY_BYTES", 0)
    pq.write_table(pa.table({"x": np.arange(400) % 7 / 7, "y": np.arange(400) % 2}), tmp_path / "rows.parquet")
    model = "\n\ndel train_data\n\ndef model():\n    x = layers.Input((1,), name='x')\n"
    model += "    return keras.Model({'x': x}, layers.Dense(2)(x))"
    words = {"data_dir": str(tmp_path / "rows.parquet"), "target": "y"}
    load(f"{{'epochs': 2}}{model}", **words)
    with pytest.raises(ConfigurationError, match="has shuffle=False, but parquet is too large for the memory"):
        load(f"{{'shuffle': False}}{model}", **words)


def test_the_batches_of_a_pass_are_counted_if_one_replica_reads_them_all(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    text = textwrap.dedent(FILE).replace(
        'return np.zeros([100, 4], "float32"), np.arange(100) % 2',
        "return tf.data.Dataset.from_generator(lambda: iter([([0.0] * 4, 1)] * 7), output_signature=(\n"
        "        tf.TensorSpec([4]), tf.TensorSpec([], tf.int32)))\n\ntest_data = train_data",
    )
    path.write_text(text + "\ndef model():\n    return keras.Sequential([layers.Input((4,)), layers.Dense(2)])\n")
    settings = config.load_values({"model": str(path), "epochs": 2, "batch_size": 3})
    assert problem.load(settings, None).settings.train_steps == 6
    with pytest.raises(ConfigurationError) as refused:
        problem.load(settings, two_workers())
    assert str(refused.value) == (
        f"model={path}: epochs=2, but the number of examples of train_data() is not known; let fit_arguments() give "
        "steps_per_epoch, or the dataset have a cardinality."
    )


def test_a_callback_that_fails_is_named(load: Load) -> None:
    callback = "keras.callbacks.LambdaCallback(on_train_begin=lambda logs: logs['absent'])"
    found = load(f"{{'callbacks': [{callback}]}}")
    assert isinstance(found.model, KerasModel)
    fit = FitCallbacks("mine.py", found.fit.callbacks, found.model, found.evaluator)
    with pytest.raises(ModelError) as failed:
        fit.begin(0, 20, Epochs(2, 1), {})
    assert str(failed.value) == "model=mine.py: on_train_begin() of a callback failed: KeyError: 'absent'."


def test_a_run_that_a_callback_has_ended_stays_ended_with_another_number_of_learners(load: Load) -> None:
    found = load("{'epochs': 10}", batch_size=45)
    ended = {"state": "done", "global_step": 5, "stopped_before": 10, "stopped_before_epochs": 10}
    assert found.settings.train_steps > 10, "of smaller batches"
    assert found.was_stopped(ended)
    assert not found.was_stopped(ended | {"stopped_before_epochs": 9})
    assert not found.was_stopped({"state": "done", "global_step": 5, "stopped_before": 10})


def test_an_epoch_that_is_trained_again_after_a_loss_ends_once(load: Load, tmp_path: Path) -> None:
    found = load("{'callbacks': [keras.callbacks.History()]}", batch_size=45)
    (history,) = found.fit.callbacks
    assert isinstance(found.model, KerasModel)
    problem = found.settings, None, found.model, found.parameters, found.dataset.train
    made = replica.build(*problem, 0, "run", Epochs(2, 1))
    assert made.totals
    with (
        tf1.Session(graph=made.graph) as session,
        FitCallbacks("mine.py", found.fit.callbacks, found.model, found.evaluator) as fit,
    ):
        session.run(made.initialize)
        fit.begin(0, 20, Epochs(2, 1), {})
        checkpoint = made.saver.save(session, tmp_path / "model.ckpt")
        for step in (2, 4):
            fit.add(Outcome(2, step, 1.0, {"accuracy": 0.5}, 0.1, 0.0))
            assert fit.has_ended_epoch(step)
            fit.end_epoch(step, checkpoint, session.run(made.totals.value), made.totals)
        fit.begin(3, 20, Epochs(2, 1), {})  # from an earlier checkpoint, in another session
        for step in (4, 6):
            fit.add(Outcome(1, step, 1.0, {"accuracy": 0.5}, 0.1, 0.0))
            assert fit.has_ended_epoch(step)
            fit.end_epoch(step, checkpoint, session.run(made.totals.value), made.totals)
    assert history.epoch == [0, 1, 2]


class OnBatches(keras.callbacks.Callback):  # type: ignore[misc]
    """With a hook for batches."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


class OnTests(keras.callbacks.Callback):  # type: ignore[misc]
    """With a hook for the batches of an evaluation."""

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


class Checkpoints(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """With hooks that Keras has."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)


@pytest.mark.parametrize(
    ("callbacks", "steps"),
    [
        ([], None),
        ([keras.callbacks.EarlyStopping(), keras.callbacks.CSVLogger("log.csv"), OnTests()], None),
        ([keras.callbacks.TerminateOnNaN(), keras.callbacks.ProgbarLogger()], None),
        ([keras.callbacks.ModelCheckpoint("a.keras"), Checkpoints("a.keras")], None),
        ([keras.callbacks.ModelCheckpoint("a.keras", save_freq=10)], 10),
        ([keras.callbacks.ModelCheckpoint("a.keras", save_freq=10), Checkpoints("a.keras", save_freq=15)], 5),
        ([keras.callbacks.TensorBoard()], None),
        ([keras.callbacks.TensorBoard(update_freq=5)], 1),
        ([keras.callbacks.LambdaCallback(on_epoch_end=print)], None),
        ([keras.callbacks.LambdaCallback(on_train_batch_begin=print)], 1),
        ([OnBatches()], 1),
    ],
)
def test_hooks_of_batches_are_called_as_often_as_they_want(callbacks: list[Any], steps: int | None) -> None:
    assert batch_hooks.interval(callbacks) == steps


def test_fit_arguments_are_for_keras_models(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    text = "from trainer.models.mlp import logits, parameters\n\ndef fit_arguments():\n    return {'epochs': 3}\n"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        problem.load(config.load_values({"model": str(path)}), None)
    assert str(refused.value) == f"model={path}: fit_arguments() is for Keras models; remove it."
