"""Evaluation of checkpoints on the held-out split, in a local graph without servers."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.checkpoint.files import GLOBAL_STEP
from trainer.checkpoint.score import Score
from trainer.checkpoint.table_files import DynamicRows, StoredArrays, StoredRows
from trainer.data.catalogue import Catalogue
from trainer.data.examples import Array, Examples
from trainer.data.stream import Stream
from trainer.errors import ModelError
from trainer.evaluate import stored_tables
from trainer.evaluate.exported_tables import ExportedTables, create_variable
from trainer.evaluate.retrieval import VECTORS, Retrieval, figures, placeholders
from trainer.export import candidate_files, export_writer, saved_model
from trainer.export.export_folder import CANDIDATE, LOGIT, OUTPUT, PROBABILITIES, PROBABILITY
from trainer.models import Model, Parameter, Prediction
from trainer.models.keras_arrays import FILE
from trainer.models.keras_model import KerasModel
from trainer.models.towers import Kind
from trainer.shards.slots import AVERAGE
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.batch_memory import bytes_of_example, fitting
from trainer.tensorflow.errors import brief, python_error
from trainer.tensorflow.names import scope_name
from trainer.tensorflow.private import without_op_callbacks
from trainer.tensorflow_types import Graph, Tensor

logger = logging.getLogger(__name__)

OTHER_LAYERS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "BatchMatMulV2", "Einsum")
"""Ops of a last layer that is not dense."""
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
        catalogue: Catalogue | None = None,
    ) -> None:
        """Build the graph.

        Args:
            model: The model.
            parameters: Its parameters by name.
            test: The held-out split.
            batch_size: Examples per session run; None for `most`, or fewer if these would need much memory.
            most: The examples of a training batch. A loss may depend on those beside it.
            device: Where the model computes.
            catalogue: All candidates of a model with towers.
        """
        self._model, self._test, self._parameters = model, test, parameters
        self.test = test
        """The held-out split."""
        self._graph = tf.Graph()
        with self._graph.as_default(), tf1.device(device):
            self._tables = [name for name, each in parameters.items() if each.is_table]
            dense = {name: each for name, each in parameters.items() if not each.is_table}
            variables = {name: create_variable(name, each.shape) for name, each in dense.items()}
            self._given = {name: each.initial_value for name, each in variables.items()}
            self._assign = [each.initializer for each in variables.values()]
            specs = test.signature.specs
            size = model.fixed_batch
            self._batch = [tf1.placeholder(spec.dtype, [size, *spec.shape]) for spec in specs]
            self._counts = [tf1.placeholder(count.dtype, count.shape) for count in model.no_counts]
            self._arrays = {name: each.read_value() for name, each in variables.items()}
            self._kept: list[Graph] = []
            prediction = self._predict()
            self._retrieval = self._make_retrieval(catalogue) if catalogue else None
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

    def _predict(self) -> Prediction:
        """Add the ops of a prediction."""
        names: list[str] = []

        def build(arrays: Mapping[str, Tensor], given: Sequence[Tensor]) -> list[Tensor]:
            size = len(self._batch)
            prediction = self._model.predict(arrays, given[:size], given[size:])
            names[:] = prediction.outputs
            return [*prediction.outputs.values(), prediction.loss, *prediction.counts]

        found = self._add(build, [*self._batch, *self._counts])
        count = len(names)
        return Prediction(dict(zip(names, found, strict=False)), found[count], found[count + 1 :])

    def _add(
        self, build: Callable[[Mapping[str, Tensor], Sequence[Tensor]], Sequence[Tensor]], given: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Add the ops of a function of the arrays, whose tables stay in the checkpoint, and of other tensors."""
        if not self._tables:
            return build(self._arrays, given)
        found, kept = stored_tables.add(build, self._parameters, self._arrays, given, self._look_up)
        self._kept.append(kept)
        return found

    def _look_up(self, name: str, ids: Tensor | None, wanted: Tensor) -> Tensor:
        """Read a table in the checkpoint restored last."""
        given = [] if ids is None else [ids]
        found = tf.numpy_function(lambda *ids: self._read_table(name, *(ids or [None])), given, tf.float32)
        return tf.cast(tf.ensure_shape(found, wanted.shape), wanted.dtype)

    def _make_retrieval(self, catalogue: Catalogue) -> Retrieval:
        """Add the towers, and the ranks of the candidates that examples took."""
        model = self._model
        assert isinstance(model, KerasModel)  # noqa: S101 - others have no towers

        def embed(kind: Kind, given: Mapping[str, Tensor]) -> Tensor:
            def build(arrays: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
                return [model.embed(kind, arrays, dict(zip(given, tensors, strict=True)))]

            return self._add(build, [*given.values()])[0]

        return Retrieval(model.towers, catalogue, embed)

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
        rank = self._retrieval.ranker(self._run, self._run_catalogue, self._chunk) if self._retrieval else None
        ranks: list[Array] = []
        while (batch := self._next(batches)) is not None:
            loss, *counts = self._run(
                self._after, dict(zip([*self._batch, *self._counts], [*batch, *counts], strict=True))
            )
            examples += len(batch[0])
            total_loss += float(loss) * len(batch[0])
            if rank:
                ranks.append(rank(self._inputs(batch)))
        found = self.measure(counts) | (figures(np.concatenate(ranks)) if ranks else {})
        return Score(int(self._restored.whole(GLOBAL_STEP)), total_loss / examples, found)

    def measure(self, counts: Sequence[Array]) -> dict[str, float]:
        """The metrics by name, from their state."""
        measured = self._run(self._metrics, dict(zip(self._counts, counts, strict=True)))
        return {name: float(value) for name, value in measured.items()}

    def _run_catalogue(self, wanted: Any, feeds: Mapping[Tensor, Any]) -> Any:
        """Compute with the candidates of a catalogue."""
        return self._run(wanted, feeds, "what candidates() returns")

    def _run(self, wanted: Any, feeds: Mapping[Tensor, Any], what: str = "the held-out data") -> Any:
        """Compute with the model."""
        try:
            return self._session.run(wanted, feeds)
        except tf.errors.OpError as error:
            if self._wrong_id:
                raise self._wrong_id from None
            remedy = "; lower eval_batch_size" if isinstance(error, tf.errors.ResourceExhaustedError) else ""
            found = python_error(str(error)) or brief(error).rstrip(".")
            raise ModelError(f"the model fails on {what}: {found}{remedy}.") from error

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
        """The arrays of the checkpoint restored last, by name; of tables at most this many rows, from all parts.

        A table that grows has the fields "id" and "values", unless a number of rows is given.
        """
        tables = {}
        for name in self._tables:
            stored = self._restored.rows(self._saved[name])
            count = stored.shape[0]
            if isinstance(stored, DynamicRows):
                tables[name] = stored.between(0, min(count, rows)) if rows else stored.with_ids()
            else:
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

    def export(self, path: Path, facts: Mapping[str, Any], is_for_servers: bool = False) -> None:
        """Write the checkpoint restored last as a SavedModel, from the inputs to the outputs of the model.

        A Keras model is in its folder as `model.keras` too, and `data.json` has these facts about its data. If
        TensorFlow or Keras cannot write one of these, weights.npz has the values of the arrays. What `is_for_servers`
        has no `model.keras`: to write that, Keras's model gets the values, which callbacks may see.

        Raises:
            Exception: one of NOT_WRITTEN: there is no room, or no access.
        """
        if not self._outputs:
            logger.info("the model has no call(), so the export has no SavedModel")
        with without_op_callbacks():
            writers = {"SavedModel": self._write_saved_model}
            if not is_for_servers:
                writers[FILE] = self._save_model
            if self._retrieval:
                writers["candidates"] = self._write_candidates
            export_writer.write(path, writers, self.values, {**facts, **self._output_facts()})

    def _output_facts(self) -> dict[str, str]:
        """What a classifier gives, if `trainer models compare` takes it, and what identifies a candidate."""
        if self._retrieval:
            return {CANDIDATE: self._retrieval.identifier}
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
        size = 4 * sum(math.prod(each.shape) for each in self._table_rows().values())
        if size <= MODEL_BYTES:
            self._model.save(folder, self.values())
        else:
            logger.info(f"the export has no model.keras, as its tables have {size / 2**30:.1f} GiB; use the SavedModel")

    def _inputs(self, batch: Sequence[Any]) -> dict[str, Any]:
        """The inputs in a batch, by name; targets follow them."""
        return dict(zip(self._test.signature.inputs, batch, strict=False))

    def _write_saved_model(self, folder: Path) -> None:
        if not self._outputs:
            return
        if not self._tables:
            found = {saved_model.SIGNATURE: saved_model.Signature(self._inputs(self._batch), self._outputs)}
            if self._retrieval:
                found |= _signatures(self._retrieval.inputs, self._retrieval.vectors)
            saved_model.save(folder, self._session, found)
            return
        with tf.Graph().as_default(), tf1.device("/device:CPU:0"), tf1.Session() as session:
            tables = ExportedTables(self._parameters, self._table_rows())
            batch = [tf1.placeholder(each.dtype, each.shape) for each in self._batch]
            counts = [tf1.placeholder(each.dtype, each.shape) for each in self._counts]
            names: list[str] = []

            def build(arrays: Mapping[str, Tensor], given: Sequence[Tensor]) -> list[Tensor]:
                outputs = self._model.predict(arrays, given[: len(batch)], given[len(batch) :]).outputs
                names[:] = outputs
                return [*outputs.values()]

            outputs = tables.add(build, [*batch, *counts])
            named = {name: tf.identity(each, scope_name(name)) for name, each in zip(names, outputs, strict=True)}
            found = {saved_model.SIGNATURE: saved_model.Signature(self._inputs(batch), named)}
            if self._retrieval:
                found |= self._tower_signatures(tables)
            saved_model.save(folder, session, found, tables.saver(self._session.run(self._arrays)))

    def _table_rows(self) -> dict[str, StoredRows]:
        """The tables of the checkpoint restored last, by name."""
        return {name: self._restored.rows(self._saved[name]) for name in self._tables}

    def _tower_signatures(self, tables: ExportedTables) -> dict[str, saved_model.Signature]:
        """Add the towers to the default graph, which has these tables."""
        model = self._model
        assert isinstance(model, KerasModel)  # noqa: S101 - others have no towers
        inputs = {kind: placeholders(tower) for kind, tower in model.towers.items()}

        def vectors(kind: Kind, given: Mapping[str, Tensor]) -> Tensor:
            def build(arrays: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
                return [model.embed(kind, arrays, dict(zip(given, tensors, strict=True)))]

            return tables.add(build, [*given.values()])[0]

        return _signatures(inputs, {kind: vectors(kind, given) for kind, given in inputs.items()})

    def _write_candidates(self, folder: Path) -> None:
        """Write the vectors of all candidates, by what identifies them."""
        retrieval = self._retrieval
        assert retrieval  # noqa: S101
        vectors = retrieval.candidate_vectors(self._run_catalogue, self._chunk)
        candidate_files.write(folder, retrieval.ids, retrieval.catalogue.names, vectors)


def _signatures(
    inputs: Mapping[Kind, Mapping[str, Tensor]], vectors: Mapping[Kind, Tensor]
) -> dict[str, saved_model.Signature]:
    """A signature for each tower."""
    return {kind: saved_model.Signature(given, {VECTORS: vectors[kind]}) for kind, given in inputs.items()}


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
