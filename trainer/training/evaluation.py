"""Evaluation of checkpoints on the held-out split, in a local graph without servers."""

import functools
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.datasets import Examples
from trainer.graph.checkpoints import GLOBAL_STEP
from trainer.keras_model import KerasModel
from trainer.models import Model, Parameter, Prediction, accuracy, cross_entropy
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Tensor

UNREADABLE = (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.NotFoundError, ValueError)
"""The errors that TensorFlow raises for a damaged or deleted checkpoint."""
CHUNK = 1000
"""Examples per session run. It limits the memory for a large split."""


@dataclass(frozen=True)
class Score:
    """The accuracy and the loss of one checkpoint on the whole held-out split."""

    global_step: int
    accuracy: float
    loss: float

    @property
    def is_finite(self) -> bool:
        """Whether the loss is finite."""
        return math.isfinite(self.loss)

    @property
    def key(self) -> tuple[float, float]:
        """The sort key, larger for the better score: by accuracy, then by loss."""
        return self.accuracy, -self.loss

    def to_json(self) -> dict[str, Any]:
        """The score in the form of result.json; a loss that is not finite is null, as JSON has no NaN."""
        loss = round(self.loss, 4) if self.is_finite else None
        return {"global_step": self.global_step, "test_accuracy": round(self.accuracy, 4), "test_loss": loss}


class CheckpointEvaluator:
    """Scores and exports checkpoints in its own graph and session. A context manager that closes the session."""

    def __init__(self, model: Model | KerasModel, parameters: dict[str, Parameter], test: Examples) -> None:
        self._test = test
        self._graph = tf.Graph()
        with self._graph.as_default(), tf1.device("/device:CPU:0"):
            variables = {
                name: tf1.get_variable(name, parameter.shape, tf.float32, tf.zeros_initializer(), use_resource=True)
                for name, parameter in parameters.items()
            }
            step = tf1.get_variable(GLOBAL_STEP, [], tf.int64, tf.zeros_initializer(), use_resource=True)
            self._images = tf1.placeholder(tf.float32, [None, *test.images.shape[1:]], "images")
            self._labels = tf1.placeholder(tf.int32, [None], "labels")
            arrays = {name: each.read_value() for name, each in variables.items()}
            predict = model.predict if isinstance(model, KerasModel) else functools.partial(_predict, model)
            prediction = predict(arrays, self._images, self._labels)
            self._model, self._arrays = model, arrays
            self._probabilities = tf.identity(prediction.probabilities, name="probabilities")
            self._step = step.read_value()
            self._measures = prediction.accuracy, prediction.loss
            self._saver = tf1.train.Saver([step, *variables.values()])
        # Leave the GPUs to training; this graph runs on the CPU.
        self._session = tf1.Session(graph=self._graph, config=tf1.ConfigProto(device_count={"GPU": 0}))

    def __enter__(self) -> "CheckpointEvaluator":
        return self

    def __exit__(self, *error: object) -> None:
        self._session.close()

    def restore(self, checkpoint: str) -> None:
        """Restore the parameters of a checkpoint.

        Raises:
            Exception: one of UNREADABLE.
        """
        self._saver.restore(self._session, checkpoint)

    def score(self, checkpoint: str) -> Score:
        """Restore a checkpoint and score it.

        Raises:
            Exception: one of UNREADABLE.
        """
        self.restore(checkpoint)
        total_accuracy = total_loss = 0.0
        for start in range(0, len(self._test), CHUNK):
            images, labels = self._test.images[start : start + CHUNK], self._test.labels[start : start + CHUNK]
            batch_accuracy, loss = self._session.run(self._measures, {self._images: images, self._labels: labels})
            total_accuracy += float(batch_accuracy) * len(labels)
            total_loss += float(loss) * len(labels)
        step = int(self._session.run(self._step))
        return Score(step, total_accuracy / len(self._test), total_loss / len(self._test))

    def export(self, path: Path) -> None:
        """Write the checkpoint restored last as a SavedModel: images [n, …] to probabilities [n, classes].

        A Keras model is in its folder as `model.keras` too. The SavedModel replaces an earlier one in a single rename,
        so readers never see a partial one.
        """
        partial = path.with_name(f".{path.name}")
        shutil.rmtree(partial, ignore_errors=True)
        with self._graph.as_default():
            builder = tf1.saved_model.Builder(str(partial))
            signature = tf1.saved_model.predict_signature_def(
                {"images": self._images}, {"probabilities": self._probabilities}
            )
            builder.add_meta_graph_and_variables(self._session, ["serve"], {"serving_default": signature})
            builder.save()
        if isinstance(self._model, KerasModel):
            self._model.save(partial / "model.keras", self._session.run(self._arrays))
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)


def _predict(model: Model, arrays: Mapping[str, Tensor], images: Tensor, labels: Tensor) -> Prediction:
    """Add the prediction of a model of plain ops."""
    logits = model.logits(arrays, images)
    return Prediction(tf.nn.softmax(logits), cross_entropy(logits, labels), accuracy(logits, labels))
