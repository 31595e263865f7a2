"""The arguments of `keras.Model.fit` in a model's file, and what becomes of them."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer import config
from trainer.cluster.spec import Cluster, Task
from trainer.data.examples import Examples
from trainer.errors import ConfigurationError, ModelError
from trainer.models.keras_model import KerasModel
from trainer.run_directory import problem
from trainer.run_directory.evaluation import Score
from trainer.run_directory.problem import Problem
from trainer.tensorflow.private import eager_mode
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
        ("{'epochs': 3, 'batch_size': 9}", {"batch_size": 90}, 3),
        ("{'epochs': 3}", {"batch_size": 40, "epochs": 2}, 6),
        ("{'epochs': 3}", {"batch_size": 40, "train_steps": 50}, 50),
        ("{'epochs': 3}", {"train_steps": 2000}, 2000),  # the default, but given
        ("{'epochs': 3, 'batch_size': 9}", {"batch_size": 100}, 3),
        ("{'epochs': 3, 'steps_per_epoch': 5}", {}, 15),
        ("{'epochs': 3, 'validation_split': 0.5}", {"batch_size": 10}, 15),
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("3", "fit_arguments() returned int; return a dictionary, as in {'epochs': 3}."),
        ("1 / 0", "fit_arguments() failed: ZeroDivisionError: division by zero (line 15)."),
        ("{'x': 3}", "fit_arguments() has x, which it does not take: return it from train_data()."),
        (
            "{'initial_epoch': 3}",
            "fit_arguments() has initial_epoch, which it does not take; it takes epochs, steps_per_epoch, batch_size, "
            "callbacks, class_weight, validation_data, validation_split, verbose.",
        ),
        ("{'epochs': 0}", "fit_arguments(): epochs=0, but input should be greater than or equal to 1."),
        ("{'epochs': 'many'}", "fit_arguments(): epochs='many', but input should be a valid integer."),
        (
            "{'class_weight': {-1: 2.0}}",
            "fit_arguments(): class_weight=-1, but input should be greater than or equal to 0.",
        ),
        (
            "{'callbacks': [keras.callbacks.TerminateOnNaN()]}",
            "fit_arguments(): callbacks has TerminateOnNaN, whose on_batch_end() is never called here; use a hook of "
            "epochs, such as on_epoch_end().",
        ),
        ("{'callbacks': [3]}", "fit_arguments(): callbacks has int; Keras's callbacks were expected."),
    ],
)
def test_what_cannot_be_taken_is_named(load: Load, tmp_path: Path, arguments: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(arguments)
    assert str(refused.value) == f"model={tmp_path / 'mine.py'}: {message}"


def test_epochs_need_a_number_of_examples(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    text = textwrap.dedent(FILE).replace(
        'return np.zeros([100, 4], "float32"), np.arange(100) % 2',
        "return tf.data.Dataset.from_generator(lambda: iter([([0.0] * 4, 1)]), output_signature=(\n"
        "        tf.TensorSpec([4]), tf.TensorSpec([], tf.int32)))\n\ntest_data = train_data",
    )
    path.write_text(text + "\ndef model():\n    return keras.Sequential([layers.Input((4,)), layers.Dense(2)])\n")
    with pytest.raises(ConfigurationError) as refused:
        problem.load(config.load_values({"model": str(path), "epochs": 2}), None)
    assert str(refused.value) == (
        f"model={path}: epochs=2, but the number of examples of train_data() is not known; let fit_arguments() give "
        "steps_per_epoch, or the dataset have a cardinality."
    )


class Evaluator:
    """Scores checkpoints by their names, which are numbers."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self._arrays = arrays

    def score(self, checkpoint: str) -> Score:
        return Score(0, float(checkpoint), {"accuracy": 0.5})

    def values(self) -> dict[str, Any]:
        return self._arrays


def follow(found: Problem, losses: list[float]) -> FitCallbacks:
    """The callbacks after epochs of two executions of one step each, whose held-out losses are these."""
    assert isinstance(found.model, KerasModel)
    arrays = {name: each.value + 1 for name, each in found.parameters.items()}
    make: Any = lambda: Evaluator(arrays)  # noqa: E731
    fit = FitCallbacks("mine.py", found.fit.callbacks, found.model, make, 2, 10)
    fit.begin(0)
    for epoch, loss in enumerate(losses):
        if fit.is_over:
            break
        for step, of_batch in ((1, 3.0), (2, 1.0)):
            ends = fit.add(Outcome(1, 2 * epoch + step, of_batch, {"accuracy": 0.25}, 0.1, 0.0))
            assert ends == (step == 2)
        fit.end_epoch(2 * epoch + 2, str(loss))
    fit.end()
    return fit


def test_a_callback_sees_the_logs_of_fit_and_the_weights_of_the_checkpoint(load: Load) -> None:
    found = load("{'callbacks': [keras.callbacks.History()]}", batch_size=45)
    follow(found, [3.0, 2.0])
    (history,) = found.fit.callbacks
    assert history.epoch == [0, 1]
    assert history.history == {
        "loss": [2.0, 2.0],
        "accuracy": [0.25, 0.25],
        "val_loss": [3.0, 2.0],
        "val_accuracy": [0.5, 0.5],
    }
    assert isinstance(found.model, KerasModel)
    kernel = next(each for each in found.model.network.weights if each.name == "kernel")
    with eager_mode():
        assert np.allclose(kernel.numpy(), found.parameters[kernel.path].value + 1)


def test_early_stopping_ends_the_run(load: Load) -> None:
    found = load("{'callbacks': [keras.callbacks.EarlyStopping(patience=2)]}", batch_size=45)
    assert not follow(found, [3.0, 2.0, 3.0]).is_over
    assert follow(found, [3.0, 2.0, 3.0, 3.0]).is_over


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # in Keras
def test_a_plateau_lowers_the_learning_rate(load: Load) -> None:
    found = load("{'callbacks': [keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1)]}", batch_size=45)
    assert follow(found, [3.0, 3.0]).rate_factor == pytest.approx(0.5)


def test_a_callback_that_fails_is_named(load: Load) -> None:
    callback = "keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs['absent'])"
    found = load(f"{{'callbacks': [{callback}]}}", batch_size=45)
    with pytest.raises(ModelError) as failed:
        follow(found, [3.0])
    assert str(failed.value) == "model=mine.py: on_epoch_end() of a callback failed: KeyError: 'absent'."


def test_fit_arguments_are_for_keras_models(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    text = "from trainer.models.mlp import logits, parameters\n\ndef fit_arguments():\n    return {'epochs': 3}\n"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        problem.load(config.load_values({"model": str(path)}), None)
    assert str(refused.value) == f"model={path}: fit_arguments() is for Keras models; remove it."
