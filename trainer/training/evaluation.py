"""Examining checkpoints on the held-out split, in a graph of this process alone: no server, no parameter servers."""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.data.datasets import Examples
from trainer.graph.checkpoints import GLOBAL_STEP
from trainer.models import Model, Parameter, accuracy, cross_entropy
from trainer.tensorflow import tf, tf1

UNREADABLE = (tf.errors.DataLossError, tf.errors.OutOfRangeError, tf.errors.NotFoundError, ValueError)
"""What TensorFlow raises, by turns, for a checkpoint that is damaged or gone."""
CHUNK = 1000
"""Examples per run, which bounds the memory that a large split takes."""


@dataclass(frozen=True)
class Score:
    """How well the parameters of one checkpoint do on the whole held-out split."""

    global_step: int
    accuracy: float
    loss: float

    @property
    def is_finite(self) -> bool:
        """Whether the loss is a number."""
        return math.isfinite(self.loss)

    @property
    def key(self) -> tuple[float, float]:
        """What is larger for the better of two scores: by accuracy, then by loss."""
        return self.accuracy, -self.loss

    def to_json(self) -> dict[str, Any]:
        """As result.json has it; JSON has no NaN."""
        loss = round(self.loss, 4) if self.is_finite else None
        return {"global_step": self.global_step, "test_accuracy": round(self.accuracy, 4), "test_loss": loss}


class CheckpointEvaluator:
    """The graph, and a session in it; a context manager."""

    def __init__(self, model: Model, parameters: dict[str, Parameter], test: Examples) -> None:
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
            logits = model.logits({name: each.read_value() for name, each in variables.items()}, self._images)
            self._probabilities = tf.nn.softmax(logits, name="probabilities")
            self._step = step.read_value()
            self._measures = accuracy(logits, self._labels), cross_entropy(logits, self._labels)
            self._saver = tf1.train.Saver([step, *variables.values()])
        # GPUs are for training; the graph is on the CPU anyway.
        self._session = tf1.Session(graph=self._graph, config=tf1.ConfigProto(device_count={"GPU": 0}))

    def __enter__(self) -> "CheckpointEvaluator":
        return self

    def __exit__(self, *error: object) -> None:
        self._session.close()

    def restore(self, checkpoint: str) -> None:
        """Take the parameters of a checkpoint.

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
            right, loss = self._session.run(self._measures, {self._images: images, self._labels: labels})
            total_accuracy += float(right) * len(labels)
            total_loss += float(loss) * len(labels)
        step = int(self._session.run(self._step))
        return Score(step, total_accuracy / len(self._test), total_loss / len(self._test))

    def export(self, path: Path) -> None:
        """Write the checkpoint restored last as a SavedModel: images [n, …] to probabilities [n, classes].

        It appears whole, in the place of one that may be there from an earlier life.
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
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
