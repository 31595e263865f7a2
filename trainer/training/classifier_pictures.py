"""What TensorBoard shows of a model beside curves: misread examples, histograms of the weights, and an embedding.

They cost little: at most one evaluation a minute writes them, and the time counts toward the chief's share for
evaluations (`trainer.training.periodic_evaluation`). Pictures and the embedding are for classifiers, if the images of
the held-out split are in memory; histograms are for each model.
"""

import logging
import time
from pathlib import Path

import numpy as np

from trainer.data.examples import Array, Examples
from trainer.evaluate.evaluation import CheckpointEvaluator
from trainer.telemetry import pictures
from trainer.telemetry.summaries import SummaryWriter

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 60.0
MISREAD = 24
"""The most misread examples in a picture."""
COLUMNS = 8
SIDE = 64
"""The longest side of an example in a picture, in pixels."""
EMBEDDED = 1000
"""The most examples of an embedding."""
FEATURES = 4096
"""The most features of an embedding: more would make its file larger than 50 MB."""
TABLE_ROWS = 10_000
"""The most rows of a table in its histogram."""
SPRITE_SIDE = 32
"""The longest side of an example in the projector."""


class ClassifierPictures:
    """Writes the pictures and histograms of evaluations."""

    def __init__(self) -> None:
        self._written = -INTERVAL_SECONDS

    def write(self, summaries: SummaryWriter, evaluator: CheckpointEvaluator, step: int, is_last: bool = False) -> None:
        """Write those of the checkpoint that the evaluator holds, unless the last ones are too recent."""
        if not is_last and time.monotonic() - self._written < INTERVAL_SECONDS:
            return
        self._written = time.monotonic()
        values = evaluator.values(TABLE_ROWS)
        summaries.write_histograms(step, {f"weights/{name}": value for name, value in values.items()})
        if (split := shown_split(evaluator)) is not None:
            picture = misread_picture(split, evaluator)
            if picture is not None:
                summaries.write_picture(step, "misread", picture)
        summaries.flush()


def shown_split(evaluator: CheckpointEvaluator) -> Examples | None:
    """The held-out split, if the model classifies images and they are in memory."""
    split = evaluator.test
    if not isinstance(split, Examples) or not evaluator.classifies:
        return None
    shape = split.signature.input_shape
    return split if shape is not None and split.signature.has_labels and pictures.is_picture(shape) else None


def misread_picture(split: Examples, evaluator: CheckpointEvaluator) -> Array | None:
    """The first misread examples, each above its label and what it is read as; None if there are none.

    Returns:
        Bytes [height, width, channels].
    """
    tiles: list[Array] = []
    for predicted, start in evaluator.predictions():
        labels = split.targets[start : start + len(predicted)]
        for index in np.flatnonzero(predicted != labels)[: MISREAD - len(tiles)]:
            image = pictures.to_bytes(split.inputs[start + index], SIDE)
            tiles.append(pictures.with_caption(image, f"{labels[index]}>{predicted[index]}"))
        if len(tiles) == MISREAD:
            break
    return pictures.tile(tiles, COLUMNS) if tiles else None


def write_embedding(folder: Path, evaluator: CheckpointEvaluator) -> None:
    """Write the last hidden layer of some held-out examples for TensorBoard's projector, with labels and thumbnails.

    Args:
        folder: A folder of summaries.
        evaluator: It holds the checkpoint.
    """
    split = shown_split(evaluator)
    if split is None:
        return
    try:
        _write_embedding(folder, evaluator, split)
    except OSError as error:  # the run is done without it
        logger.warning(f"the embedding cannot be written to {folder} ({error.strerror})")


def _write_embedding(folder: Path, evaluator: CheckpointEvaluator, split: Examples) -> None:
    some = split.take(slice(EMBEDDED))
    features = evaluator.features(some)
    if features is None or features.shape[1] > FEATURES:
        return
    predicted = np.concatenate([each for each, _ in evaluator.predictions(EMBEDDED)])
    rows = zip(some.targets, predicted, strict=True)
    metadata = "".join(f"{label}\t{found}\t{'' if label == found else 'misread'}\n" for label, found in rows)
    thumbnails = [pictures.to_bytes(image, SPRITE_SIDE) for image in some.inputs]
    height, width, _ = thumbnails[0].shape
    (folder / "embedding").mkdir(parents=True, exist_ok=True)
    with (folder / "embedding" / "tensor.tsv").open("w", encoding="utf-8") as file:
        np.savetxt(file, features, "%.5g", delimiter="\t")
    (folder / "embedding" / "metadata.tsv").write_text(f"label\tread as\tright\n{metadata}", encoding="utf-8")
    sprite = pictures.tile(thumbnails, int(np.ceil(np.sqrt(len(thumbnails)))), gap=0)
    (folder / "embedding" / "sprite.png").write_bytes(pictures.to_png(sprite))
    (folder / "projector_config.pbtxt").write_text(
        f"""embeddings {{
  tensor_name: "last hidden layer"
  tensor_path: "embedding/tensor.tsv"
  metadata_path: "embedding/metadata.tsv"
  sprite {{
    image_path: "embedding/sprite.png"
    single_image_dim: {width}
    single_image_dim: {height}
  }}
}}
""",
        encoding="utf-8",
    )
