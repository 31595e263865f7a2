"""Keras models: what they become here, and that training is Keras's own."""

import itertools
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tensorflow.python.eager import context

from trainer.config import Settings
from trainer.graph import replica
from trainer.graph.batches import orders
from trainer.keras_model import KerasModel
from trainer.model_files import find
from trainer.tensorflow import tf1

from .conftest import EXAMPLES

SIZE, STEPS = 20, 100
LAYERS = "layers.Dense(16, activation='relu'), layers.BatchNormalization(momentum=0.9), layers.Dense(10)"


def write(folder: Path, layers: str = LAYERS, compiled: str = "", name: str = "mine.py") -> Path:
    """A model file with these layers, which is compiled with these arguments, if any."""
    path = folder / name
    text = f"""
        import keras
        from keras import layers

        def model(input_shape, classes):
            network = keras.Sequential([layers.Input(input_shape), {layers}])
            {f"network.compile({compiled})" if compiled else ""}
            return network
        """
    path.write_text(textwrap.dedent(text))
    return path


def load(path: Path, seed: int = 0) -> tuple[KerasModel, dict[str, Any]]:
    """The model of a file, and its arrays."""
    model = find(str(path), seed)
    assert isinstance(model, KerasModel)
    return model, model.parameters((784,), 10, 100)


def train(path: Path, steps: int = STEPS, **settings: Any) -> dict[str, npt.NDArray[Any]]:
    """The arrays after these steps of a single process."""
    model, arrays = load(path)
    given = Settings(batch_size=SIZE, steps_per_execution=10, train_steps=steps, **settings)
    built = replica.build(given, None, model, arrays, EXAMPLES, 0, "this run")
    with tf1.Session(graph=built.graph) as session:
        session.run([built.initialize, built.mark_ready])
        built.batches.begin(session)
        execution = built.replication.executions[10]
        for _ in range(steps // 10):
            feeds = dict(zip(built.batches.feeds, built.batches.take(10), strict=True))
            session.run(execution.step, feeds)
        saved = built.saver.save(session, path.parent / "checkpoint")
    reader = tf1.train.load_checkpoint(saved)
    return {name: reader.get_tensor(name) for name in arrays}


def fit(path: Path, steps: int = STEPS) -> dict[str, npt.NDArray[Any]]:
    """The same arrays after `keras.Model.fit` with the same batches."""
    model, _ = load(path)
    order = np.concatenate(list(itertools.islice(orders(len(EXAMPLES), SIZE, (0, 0)), steps)))
    with context.eager_mode():
        network = model._model
        network.fit(EXAMPLES.images[order], EXAMPLES.labels[order], batch_size=SIZE, shuffle=False, verbose=0)
        return {name: variable.numpy() for name, variable in model._arrays.items()}


@pytest.mark.parametrize(
    "optimizer",
    [
        "SGD(0.1)",
        "SGD(0.05, momentum=0.9, nesterov=True)",
        "Adam(0.003)",
        "Adam(0.003, amsgrad=True)",
        "AdamW(0.003, weight_decay=0.01)",
        "RMSprop(0.003, momentum=0.5)",
        "Adagrad(0.05)",
        "Adadelta(1.0)",
        "Lion(0.001)",
        "Adam(keras.optimizers.schedules.CosineDecay(0.003, 100, warmup_target=0.01, warmup_steps=10))",
        "SGD(0.1, global_clipnorm=0.5)",
        "SGD(0.1, clipvalue=0.01)",
    ],
)
def test_training_is_that_of_keras(tmp_path: Path, optimizer: str) -> None:
    """Also of the moving averages of batch normalization."""
    loss = "keras.losses.SparseCategoricalCrossentropy(from_logits=True)"
    path = write(tmp_path, compiled=f"optimizer=keras.optimizers.{optimizer}, loss={loss}")
    ours, expected = train(path), fit(path)
    assert ours.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(ours[name], values, rtol=2e-3, atol=2e-4, err_msg=name)
