"""Evaluation of checkpoints on the held-out split, in a local graph without servers."""

import contextlib
import json
import logging
import math
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.checkpoint.files import GLOBAL_STEP
from trainer.checkpoint.score import Score
from trainer.checkpoint.sliced_saver import SlicedSaver
from trainer.checkpoint.table_files import StoredArrays
from trainer.data.examples import Array, Examples
from trainer.data.stream import Stream
from trainer.errors import ModelError
from trainer.evaluate import stored_tables
from trainer.export.export_folder import DATA, LOGIT, OUTPUT, PROBABILITIES, PROBABILITY, SAVED_MODEL
from trainer.models import Model, Parameter, Prediction
from trainer.models.keras_model import FILE, KerasModel
from trainer.shards.slots import AVERAGE
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.batch_memory import bytes_of_example, fitting
from trainer.tensorflow.errors import NOT_WRITTEN, brief, python_error
from trainer.tensorflow.names import scope_name
from trainer.tensorflow.private import without_op_callbacks
from trainer.tensorflow_types import Graph, Session, Tensor, Variable

logger = logging.getLogger(__name__)

UNREADABLE = (
    tf.errors.DataLossError,
    tf.errors.OutOfRangeError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.InvalidArgumentError,
    ValueError,
)
"""The errors that TensorFlow raises for a damaged or deleted checkpoint, and for one of other shapes."""
OTHER_LAYERS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "BatchMatMulV2", "Einsum")
"""Ops of a last layer that is not dense."""
WEIGHTS = "weights.npz"
MODEL_BYTES = 1 << 30
"""Upper limit of the tables in a model's own format, which are all in memory when it is written or read."""
CHUNK = 1000
"""Examples per session run, at most, if no training batch is known."""
CPU = "/device:CPU:0"


class CheckpointEvaluator:
    """Scores and exports checkpoints in its own graph and session. A context manager that closes the session.

    If the optimizer averages the parameters, their averages are evaluated, as Keras does at the end of `fit`. The rows
    of tables are read from the checkpoint when a batch needs them.
    """

    def __init__(
        self,
        model: Model,
        parameters: dict[str, Parameter],
        test: Examples | Stream,
        batch_size: int | None = None,
        most: int = CHUNK,
        device: str = CPU,
    ) -> None:
        """Build the graph.

        Args:
            model: The model.
            parameters: Its parameters by name.
            test: The held-out split.
            batch_size: Examples per session run; None for `most`, or fewer if these would need much memory.
            most: The examples of a training batch. A loss may depend on those beside it.
            device: Where the model computes.
        """
        self._model, self._test, self._parameters = model, test, parameters
        self.test = test
        """The held-out split."""
        self._graph = tf.Graph()
        with self._graph.as_default(), tf1.device(device):
            self._tables = [name for name, each in parameters.items() if each.is_table]
            dense = {name: each for name, each in parameters.items() if not each.is_table}
            variables = _create_variables(dense)
            self._given = {name: each.initial_value for name, each in variables.items()}
            self._assign = [each.initializer for each in variables.values()]
            specs = test.signature.specs
            size = model.fixed_batch
            self._batch = [tf1.placeholder(spec.dtype, [size, *spec.shape]) for spec in specs]
            self._counts = [tf1.placeholder(count.dtype, count.shape) for count in model.no_counts]
            self._arrays = {name: each.read_value() for name, each in variables.items()}
            prediction, self._kept = self._predict()
            self._outputs = {name: tf.identity(each, scope_name(name)) for name, each in prediction.outputs.items()}
            self._after = [prediction.loss, *prediction.counts]
            self._metrics = model.measure(self._counts)
        self._chunk = size or batch_size or fitting(self._graph, most)
        """Examples per session run."""
        if not size and not batch_size and self._chunk < most:
            logger.info(
                f"the held-out split is evaluated in batches of {self._chunk} examples, as the model needs "
                f"{bytes_of_example(self._graph) / 2**20:.1f} MiB for an example; eval_batch_size sets another number"
            )
        averaged = model.optimizer is not None and model.optimizer.use_ema
        self._saved = {
            name: f"{name}/{AVERAGE}" if averaged and each.trainable else name for name, each in parameters.items()
        }
        """The names of the arrays in checkpoints."""
        self._wrong_id: ModelError | None = None
        """Why a lookup in a table has failed."""
        self._stored: StoredArrays | None = None
        """The checkpoint restored last."""
        # Without a GPU of its own, leave the GPUs to training. Some ops, such as lookups of texts, need the CPU.
        gpus = {"GPU": 0} if device == CPU else {}
        options = tf1.ConfigProto(device_count=gpus, allow_soft_placement=True)
        self._session = tf1.Session(graph=self._graph, config=options)

    def _predict(self) -> tuple[Prediction, Graph]:
        """Add the ops of a prediction; return it, and a graph to keep."""
        if self._tables:
            return stored_tables.predict(
                self._model, self._parameters, self._arrays, self._batch, self._counts, self._read_table
            )
        return self._model.predict(self._arrays, self._batch, self._counts), self._graph

    @property
    def _restored(self) -> StoredArrays:
        assert self._stored  # noqa: S101
        return self._stored

    def _read_table(self, name: str, ids: Array | None = None) -> Array:
        """Rows of a table in the checkpoint restored last, or all of it."""
        if ids is None:
            return self._restored.whole(self._saved[name])
        try:
            return self._restored.rows(self._saved[name]).take(ids)
        except ValueError as error:
            self._wrong_id = ModelError(
                f"the held-out data has an id that the table {name} lacks: {error}; give the embedding more rows, or "
                "hash the ids."
            )
            raise

    def __enter__(self) -> "CheckpointEvaluator":
        return self

    def __exit__(self, *error: object) -> None:
        self._session.close()

    def restore(self, checkpoint: str) -> None:
        """Restore the parameters of a checkpoint.

        Raises:
            Exception: one of UNREADABLE.
        """
        stored = StoredArrays(checkpoint)
        given = {each: stored.whole(self._saved[name]) for name, each in self._given.items()}
        for name in self._tables:
            stored.rows(self._saved[name])
        self._session.run(self._assign, given)
        self._stored = stored

    def score(self, checkpoint: str) -> Score:
        """Restore a checkpoint and score it.

        Raises:
            Exception: one of UNREADABLE.
            ModelError: the model fails on the held-out data.
        """
        self.restore(checkpoint)
        return self.score_restored()

    def score_restored(self) -> Score:
        """Score the checkpoint restored last.

        Raises:
            ModelError: the model fails on the held-out data, or that cannot be read.
        """
        counts: Sequence[Any] = self._model.no_counts
        examples, total_loss = 0, 0.0
        batches = self._read()
        while (batch := self._next(batches)) is not None:
            loss, *counts = self._run(
                self._after, dict(zip([*self._batch, *self._counts], [*batch, *counts], strict=True))
            )
            examples += len(batch[0])
            total_loss += float(loss) * len(batch[0])
        return Score(int(self._restored.whole(GLOBAL_STEP)), total_loss / examples, self.measure(counts))

    def measure(self, counts: Sequence[Array]) -> dict[str, float]:
        """The metrics by name, from their state."""
        measured = self._run(self._metrics, dict(zip(self._counts, counts, strict=True)))
        return {name: float(value) for name, value in measured.items()}

    def _run(self, wanted: Any, feeds: Mapping[Tensor, Any]) -> Any:
        """Compute with the model."""
        try:
            return self._session.run(wanted, feeds)
        except tf.errors.OpError as error:
            if self._wrong_id:
                raise self._wrong_id from None
            remedy = "; lower eval_batch_size" if isinstance(error, tf.errors.ResourceExhaustedError) else ""
            found = python_error(str(error)) or brief(error).rstrip(".")
            raise ModelError(f"the model fails on the held-out data: {found}{remedy}.") from error

    @staticmethod
    def _next(batches: Iterator[Sequence[Array]]) -> Sequence[Array] | None:
        """The next batch of the held-out data; None at its end."""
        try:
            return next(batches, None)
        except (tf.errors.OpError, OSError, ValueError) as error:
            raise ModelError(f"the held-out data cannot be read: {brief(error).rstrip('.')}.") from error

    @property
    def classifies(self) -> bool:
        """Whether the model gives a probability for each class."""
        return PROBABILITIES in self._outputs

    def values(self, rows: int | None = None) -> dict[str, Array]:
        """The arrays of the checkpoint restored last, by name; of tables at most this many rows, from all parts."""
        tables = {}
        for name in self._tables:
            count = self._parameters[name].shape[0]
            every = np.arange(0, count, math.ceil(count / rows)) if rows else None
            tables[name] = self._read_table(name, every)
        return {**self._session.run(self._arrays), **tables}

    def predictions(self, examples: int | None = None) -> Iterator[tuple[Array, int]]:
        """The classes that the model predicts for chunks of the held-out split, each with its first index.

        Only for models that classify examples in memory. Without a number of examples, for all of them.
        """
        assert isinstance(self._test, Examples)  # noqa: S101
        for start in range(0, examples or len(self._test), self._chunk):
            end = min(start + self._chunk, examples or len(self._test))
            feeds = dict(zip(self._batch, self._test.take(slice(start, end)).arrays, strict=True))
            yield self._session.run(self._outputs[PROBABILITIES], feeds).argmax(axis=1), start

    def features(self, examples: Examples) -> Array | None:
        """What the last hidden layer gives for examples, float32 [n, features]; None if it is not known."""
        layer = _last_hidden(self._outputs[PROBABILITIES])
        if layer is None or self._model.fixed_batch:
            return None
        found = []
        for start in range(0, len(examples), self._chunk):
            batch = examples.take(slice(start, start + self._chunk)).arrays
            found.append(self._session.run(layer, dict(zip(self._batch, batch, strict=True))))
        return np.concatenate(found).astype(np.float32)

    def _read(self) -> Iterator[Sequence[Array]]:
        """The leaves of batches of the held-out split."""
        if isinstance(self._test, Stream):
            return self._test.once(self._chunk)
        starts = range(0, len(self._test), self._chunk)
        return (self._test.take(slice(start, start + self._chunk)).arrays for start in starts)

    def export(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Write the checkpoint restored last as a SavedModel, from the inputs to the outputs of the model.

        A Keras model is in its folder as `model.keras` too, and `data.json` has these facts about its data. The folder
        appears by a rename, and an earlier one is renamed before that and removed after it, so readers never see a
        partial one. If TensorFlow or Keras cannot write one of these, weights.npz has the values of the arrays.

        Raises:
            Exception: one of NOT_WRITTEN: there is no room, or no access.
        """
        partial = path.with_name(f".{path.name}")
        shutil.rmtree(partial, ignore_errors=True)
        if not self._outputs:
            logger.info("the model has no call(), so the export has no SavedModel")
        are_written = True
        with without_op_callbacks():
            for what, write in (("SavedModel", self._write_saved_model), (FILE, self._save_model)):
                try:
                    write(partial)
                except NOT_WRITTEN:
                    raise
                except Exception as error:
                    are_written = False
                    if not (partial / SAVED_MODEL).exists():
                        shutil.rmtree(partial, ignore_errors=True)
                    logger.warning(f"the export has no {what}: {type(error).__name__}: {brief(error)}")
        partial.mkdir(parents=True, exist_ok=True)
        if not are_written:
            values: Any = self.values()
            np.savez(partial / WEIGHTS, **values)
            logger.info(f"the export has {WEIGHTS}: the values of the model's arrays by name")
        facts = {**facts, **self._output_facts()}
        (partial / DATA).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        earlier = path.with_name(f".{path.name}.{time.time_ns()}")  # on NFS the last one may still have files in use
        with contextlib.suppress(FileNotFoundError):
            path.rename(earlier)
        partial.rename(path)
        shutil.rmtree(earlier, ignore_errors=True)

    def _output_facts(self) -> dict[str, str]:
        """What a classifier gives, if `trainer models compare` takes it."""
        if self.classifies:
            is_one = self._outputs[PROBABILITIES].shape.rank == 2 and self.test.signature.has_labels
            return {OUTPUT: PROBABILITIES} if is_one else {}
        if not isinstance(self._model, KerasModel) or not self._model.has_binary_loss or len(self._outputs) != 1:
            return {}
        (output,) = self._outputs.values()
        if output.shape.as_list()[1:] not in ([], [1]):
            return {}  # a label for each of several questions
        return {OUTPUT: LOGIT if self._model.gives_logits else PROBABILITY}

    def _save_model(self, folder: Path) -> None:
        """Write the model in its own format, unless that needs too much memory."""
        folder.mkdir(parents=True, exist_ok=True)
        size = 4 * sum(math.prod(self._parameters[name].shape) for name in self._tables)
        if size <= MODEL_BYTES:
            self._model.save(folder, self.values())
        else:
            logger.info(f"the export has no model.keras, as its tables have {size / 2**30:.1f} GiB; use the SavedModel")

    def _write_saved_model(self, folder: Path) -> None:
        if not self._outputs:
            return
        if not self._tables:
            self._write_graph(folder, self._session, self._batch, self._outputs)
            return
        with tf.Graph().as_default(), tf1.device("/device:CPU:0"), tf1.Session() as session:
            variables = _create_variables(self._parameters)
            batch = [tf1.placeholder(each.dtype, each.shape) for each in self._batch]
            counts = [tf1.placeholder(each.dtype, each.shape) for each in self._counts]
            arrays = {name: each.read_value() for name, each in variables.items()}
            outputs = self._model.predict(arrays, batch, counts).outputs
            named = {name: tf.identity(each, scope_name(name)) for name, each in outputs.items()}
            of_variable = {name: each.op.name for name, each in variables.items()}
            dense = {of_variable[name]: value for name, value in self._session.run(self._arrays).items()}
            tables = {of_variable[name]: self._restored.rows(self._saved[name]) for name in self._tables}
            self._write_graph(folder, session, batch, named, SlicedSaver(dense, tables))

    def _write_graph(
        self,
        folder: Path,
        session: Session,
        batch: Sequence[Tensor],
        outputs: Mapping[str, Tensor],
        saver: SlicedSaver | None = None,
    ) -> None:
        with session.graph.as_default():
            builder = tf1.saved_model.Builder(str(folder))
            inputs = dict(zip(self._test.signature.inputs, batch, strict=False))  # targets follow
            signature = tf1.saved_model.predict_signature_def(inputs, outputs)
            builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, saver=saver)
            builder.save()


def _create_variables(parameters: Mapping[str, Parameter]) -> dict[str, Variable]:
    """Add variables for parameters to the default graph. Their initial values are placeholders."""
    with without_op_callbacks():  # with them, TensorFlow's saver does not know a variable
        return {
            name: tf1.get_variable(name, initializer=tf1.placeholder(tf.float32, each.shape), use_resource=True)
            for name, each in parameters.items()
        }


def _last_hidden(outputs: Tensor) -> Tensor | None:
    """The input of the last matrix product before the outputs, [batch, features]; None if it has another shape."""
    pending, seen = [outputs.op], set()
    while pending:
        op = pending.pop(0)
        if op.type == "MatMul":
            return op.inputs[0] if op.inputs[0].shape.rank == 2 else None
        if op.type in OTHER_LAYERS:
            return None
        seen.add(op)
        pending += [each.op for each in op.inputs if each.op not in seen]
    return None
