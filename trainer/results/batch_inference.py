"""`trainer models predict`: what an exported model predicts for each image in a folder, as CSV and Parquet."""

import argparse
import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config import Parser
from trainer.data.examples import Array
from trainer.data.files import write_atomically
from trainer.data.image_files import UnreadableImageError, convert, reading
from trainer.data.skipped import DEFAULT_LIMIT, Skipped, parse_limit
from trainer.errors import ConfigurationError
from trainer.results import named_model
from trainer.results.named_model import open_model
from trainer.results.predictions import SavedModel

BATCH_IMAGES = 200
CSV_FILE, PARQUET_FILE = "predictions.csv", "predictions.parquet"
SUM_TOLERANCE = 1e-3
"""How far the sum of probabilities may be from 1, which float32 does not reach exactly."""


def add(commands: Any) -> None:
    """Add the subcommand to those of `trainer models`."""
    predict: Parser = commands.add_parser(
        "predict",
        prog="trainer models predict",
        help="predict the class of each image in a folder",
        description="Predict the class of each image in a folder, and in the folders in it. The images are converted\n"
        f"to the size and channels of the model's input. FOLDER gets {CSV_FILE} and {PARQUET_FILE}: a\n"
        "row for each image, with its file, the predicted class, its probability, and that of each class.",
    )
    predict.add_argument("model", metavar="MODEL", help=named_model.HELP)
    predict.add_argument("--data", metavar="IMAGES", type=Path, required=True, help="the folder with the images")
    predict.add_argument("--output", metavar="FOLDER", type=Path, required=True, help="where to write; made if absent")
    predict.add_argument(
        "--max_skipped",
        metavar="N",
        type=parse_limit,
        default=DEFAULT_LIMIT,
        help="how many files may be damaged or no images; more end the command (default: %(default)s)",
    )
    named_model.add_options(predict)
    predict.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Predict, and write the predictions; return the exit code. Nothing is written if too many files are no images.

    Raises:
        ConfigurationError: the model or an image cannot be read, or the output cannot be written.
        StoreError: an object store or MLflow does not respond.
    """
    files = _files(arguments.data)
    skipped = Skipped(arguments.max_skipped)
    names: list[str] = []
    found: list[Array] = []
    registry = named_model.read_options(arguments)
    what = f"MODEL: the model {arguments.model}"
    with open_model(arguments.model, "MODEL", registry) as named, SavedModel(named.folder, what) as model:
        shape = model.picture_shape()
        for start in range(0, len(files), BATCH_IMAGES):
            images = []
            for file in files[start : start + BATCH_IMAGES]:
                try:
                    images.append(_read(file, shape))
                    names.append(str(file.relative_to(arguments.data)))
                except UnreadableImageError as error:
                    skipped.add(str(file), str(error))
            if images:
                found.append(_probabilities(model, np.stack(images)))
    if not names:
        raise ConfigurationError(f"--data: {arguments.data} has no image that can be read ({skipped}); name another.")
    folder = arguments.output
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in _contents(names, np.concatenate(found)):
            write_atomically(folder / name, content)
    except OSError as error:
        raise ConfigurationError(f"--output: {folder} cannot be written ({error.strerror}); name another.") from None
    note = f"; {skipped.count:,} skipped: {skipped}" if skipped.count else ""
    print(f"{folder}: the predictions of {len(names):,} images in {CSV_FILE} and {PARQUET_FILE}{note}")
    return 0


def _files(folder: Path) -> Sequence[Path]:
    """All files of a folder, without hidden ones, in the order of their names."""
    if not folder.is_dir():
        raise ConfigurationError(f"--data: {folder} is not a folder; name a folder of images.")
    found = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    found = [each for each in found if not any(part.startswith(".") for part in each.relative_to(folder).parts)]
    if not found:
        raise ConfigurationError(f"--data: {folder} has no files; name a folder of images.")
    return sorted(found)


def _read(file: Path, shape: tuple[int, int, int]) -> Array:
    """An image as the model takes it: float32 [height, width, channels] from 0 to 1, as in training.

    Raises:
        UnreadableImageError: it is damaged, or no image.
    """
    from PIL import Image

    height, width, channels = shape
    with reading(), Image.open(file) as image:
        pixels = np.asarray(convert(image, channels, (height, width)), np.float32)
    scaled: Array = pixels.reshape(shape) / np.float32(255)
    return scaled


def _probabilities(model: SavedModel, images: Array) -> Array:
    """The probabilities of a batch: float32 [n, classes]."""
    found = model.predict({"images": images})
    if found.min() < 0 or np.abs(found.sum(axis=1) - 1).max() > SUM_TOLERANCE:
        raise ConfigurationError(
            f"{model.what} gives no probabilities for an image, as its output does not add up to 1; export it with a "
            "softmax."
        )
    return found


def _contents(names: Sequence[str], probabilities: Array) -> Iterator[tuple[str, bytes]]:
    """The files to write: their names and their content."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, Any] = {
        "file": names,
        "prediction": probabilities.argmax(axis=1),
        "probability": probabilities.max(axis=1),
        **{f"probability_{label}": column for label, column in enumerate(probabilities.T)},
    }
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    yield CSV_FILE, text.getvalue().encode("utf-8", "surrogateescape")
    target = io.BytesIO()
    pq.write_table(pa.table(columns), target)
    yield PARQUET_FILE, target.getvalue()
