"""`trainer models predict`: what an exported model predicts for images, or for the rows of a table.

It writes CSV and Parquet.
"""

import argparse
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config import Parser
from trainer.data.columns.names import find, has_columns
from trainer.data.examples import Array
from trainer.data.image_files import UnreadableImageError, decode
from trainer.data.skipped import DEFAULT_LIMIT, Skipped, parse_limit
from trainer.errors import ConfigurationError
from trainer.results import named_model
from trainer.results.classifier import SavedModel
from trainer.results.column_rows import Batch, open_columns, plan_for, plan_of, rows
from trainer.results.column_writer import ColumnWriter
from trainer.results.named_model import open_model

BATCH_IMAGES = 200
ROW = "row"
"""The name of the column of the numbers of rows, which have no ids."""
CSV_FILE, PARQUET_FILE = "predictions.csv", "predictions.parquet"
SUM_TOLERANCE = 1e-3
"""How far the sum of probabilities may be from 1, which float32 does not reach exactly."""


def add(commands: Any) -> None:
    """Add the subcommand to those of `trainer models`."""
    predict: Parser = commands.add_parser(
        "predict",
        prog="trainer models predict",
        help="predict the class of each image in a folder, or of each row of a table",
        description="Predict the class of each image in a folder, and in its folders, or of each row of a CSV or a\n"
        "Parquet file. Images are converted to the size and channels of the model's input. A table has the columns\n"
        f"that the model was trained on. FOLDER gets {CSV_FILE} and {PARQUET_FILE}: a row for each image\n"
        "or row, with its file or number, the predicted class, its probability, and that of each class. Of a model\n"
        "that does not classify, it has the outputs, with a column for each number.",
    )
    predict.add_argument("model", metavar="MODEL", help=named_model.HELP)
    predict.add_argument(
        "--data",
        metavar="PATH",
        type=Path,
        required=True,
        help="a folder of images, or a CSV or Parquet file",
    )
    predict.add_argument("--output", metavar="FOLDER", type=Path, required=True, help="where to write; made if absent")
    predict.add_argument(
        "--max_skipped",
        metavar="N",
        type=parse_limit,
        default=DEFAULT_LIMIT,
        help="how many images or rows may be unusable; more end the command (default: %(default)s)",
    )
    predict.add_argument(
        "--threshold",
        metavar="X",
        type=_share,
        default=0.5,
        help="the probability of the second of two classes above which it is predicted (default: %(default)s)",
    )
    named_model.add_options(predict)
    predict.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Predict, and write the predictions; return the exit code. Nothing is written if too much cannot be read.

    Raises:
        ConfigurationError: the model or the data cannot be read, or the output cannot be written.
        StoreError: an object store or MLflow does not respond.
    """
    place = arguments.data
    if not place.exists():
        raise ConfigurationError(f"--data: there is no {place}; name a folder of images, or a CSV or Parquet file.")
    skipped = Skipped(arguments.max_skipped)
    registry = named_model.read_options(arguments)
    what = f"MODEL: the model {arguments.model}"
    with (
        open_model(arguments.model, "MODEL", registry) as named,
        SavedModel(named.folder, what, takes_values=True, threshold=arguments.threshold) as model,
        contextlib.ExitStack() as stack,
    ):
        if plan := plan_of(named.folder) or (
            plan_for(model.inputs) if find(place) and not model.takes_pictures else None
        ):
            thing, folder = "row", open_columns(place, "--data", plan, model.what)
            id_column = plan.id if plan.id in folder.types else None
            key, batches = id_column or ROW, rows(folder, id_column, plan, skipped)
        else:
            thing, key, batches = "image", "file", _images(_files(place, model), place, model, skipped)
        writer = stack.enter_context(_Writer(arguments.output, key, model))
        for names, inputs in batches:
            writer.add(names, _predict(model, inputs))
        if not writer.count:
            why = f" that can be read ({skipped})" if skipped.count else ""
            raise ConfigurationError(f"--data: {place} has no {thing}{why}; name another.")
    note = f"; {skipped.count:,} skipped: {skipped}" if skipped.count else ""
    if model.classes == 2:
        note = f"; {model.class_names[1]} is predicted above a probability of {arguments.threshold:g}{note}"
    many = f"{writer.count:,} {thing}{'' if writer.count == 1 else 's'}"
    written = f"the predictions of {many} in {CSV_FILE} and {PARQUET_FILE}"
    print(f"{arguments.output}: {written}{note}")
    return 0


def _images(files: Sequence[Path], folder: Path, model: SavedModel, skipped: Skipped) -> Iterator[Batch]:
    """The images of a folder that can be read."""
    shape = model.picture_shape()
    for start in range(0, len(files), BATCH_IMAGES):
        names, images = [], []
        for file in files[start : start + BATCH_IMAGES]:
            try:
                images.append(decode(file, shape))
                names.append(str(file.relative_to(folder)))
            except UnreadableImageError as error:
                skipped.add(str(file), str(error))
        if images:
            yield names, {"images": np.stack(images)}


def _files(folder: Path, model: SavedModel) -> Sequence[Path]:
    """All files of a folder, without hidden ones, in the order of their names."""
    if has_columns(folder.name):
        raise ConfigurationError(
            f"{model.what} does not take columns of a table; name a model that was trained on files with columns."
        )
    if not folder.is_dir():
        raise ConfigurationError(f"--data: {folder} is not a folder; name a folder of images.")
    found = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    found = [each for each in found if not any(part.startswith(".") for part in each.relative_to(folder).parts)]
    if not found:
        raise ConfigurationError(f"--data: {folder} has no files; name a folder of images.")
    return sorted(found)


def _predict(model: SavedModel, inputs: Mapping[str, Array]) -> Array:
    """The probabilities of some examples, float32 [n, classes], or their values, [n, k]."""
    starts = range(0, len(next(iter(inputs.values()))), model.batch_size)
    slices = ({name: each[start : start + model.batch_size] for name, each in inputs.items()} for start in starts)
    found = np.concatenate([model.predict(each) for each in slices])
    if model.classes and (found.min() < 0 or np.abs(found.sum(axis=1) - 1).max() > SUM_TOLERANCE):
        raise ConfigurationError(
            f"{model.what} gives no probabilities, as its output does not add up to 1; export it with a softmax."
        )
    return found


class _Writer:
    """Writes predictions batch by batch. As a context manager it leaves both files whole, or nothing."""

    def __init__(self, folder: Path, key: str, model: SavedModel) -> None:
        """`key` is the name of the first column."""
        self._folder, self._key, self._model = folder, key, model
        self._is_new = not folder.exists()
        self._writer = ColumnWriter([folder / CSV_FILE, folder / PARQUET_FILE], folder)

    @property
    def count(self) -> int:
        """The predictions so far."""
        return self._writer.count

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._writer.__exit__(kind, *error)
        if kind is not None and self._is_new:
            with contextlib.suppress(OSError):
                self._folder.rmdir()

    def add(self, names: Sequence[str | int], predictions: Array) -> None:
        """Write some predictions."""
        if not self.count:
            with self._writer.errors():
                self._folder.mkdir(parents=True, exist_ok=True)
        self._writer.add(self._columns(names, predictions))

    def _columns(self, names: Sequence[str | int], predictions: Array) -> dict[str, Any]:
        """The columns to write, by name. Without names of the classes, these are their labels."""
        written: dict[str, Any] = {self._key: names}
        model = self._model
        if not model.classes:
            return written | dict(zip(model.value_names, predictions.T, strict=True))
        labels, classes = model.classify(predictions), np.array(model.class_names)
        written["prediction"] = classes[labels] if model.has_class_names else labels
        written["probability"] = predictions[np.arange(len(labels)), labels]
        return written | {f"probability_{name}": each for name, each in zip(classes, predictions.T, strict=True)}


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 1:
        raise ValueError
    return share
