"""A folder of IDX files, such as MNIST, as a source. Each file is read as a whole."""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from trainer.data import idx
from trainer.data.skipped import Skipped
from trainer.datasets.source import BATCH_ROWS, INPUT, SPLIT, TARGET, TEST, TRAIN, Rows, Source, column, numbered
from trainer.errors import ConfigurationError

_IMAGES = re.compile(r"(?P<part>.+)-images-idx(?P<dimensions>[34])-ubyte(?P<gz>\.gz)?")
_HELD_OUT = ("t10k", "test")


def is_source(folder: Path) -> bool:
    """Whether the folder has IDX files of images."""
    return any(_IMAGES.fullmatch(path.name) for path in folder.iterdir())


def open_source(folder: Path) -> Source:
    """The images and the labels of all parts, such as train and t10k.

    Raises:
        ConfigurationError: a file of labels is absent, or a file is damaged.
    """
    parts = {}
    for path in sorted(folder.iterdir()):
        if match := _IMAGES.fullmatch(path.name):
            parts[match["part"]] = (path, int(match["dimensions"]))
    # The training rows come first, as in `--dataset mnist`.
    ordered = sorted(parts, key=lambda part: (part.endswith(_HELD_OUT), part))
    labels = {part: _labels(folder, part) for part in ordered}
    path, dimensions = parts[ordered[0]]
    shape = list(idx.read(path, dimensions).shape[1:])
    schema = pa.schema([(INPUT, pa.fixed_shape_tensor(pa.uint8(), shape)), (TARGET, pa.int32()), (SPLIT, pa.string())])

    def read(skipped: Skipped) -> Iterator[Rows]:
        for part in ordered:
            path, dimensions = parts[part]
            images, targets = idx.read(path, dimensions), idx.read(labels[part], 1)
            if len(images) != len(targets) or list(images.shape[1:]) != shape:
                raise ConfigurationError(
                    f"{path}: it has images {list(images.shape)}, but {[len(targets), *shape]} were expected, as many "
                    "as there are labels, and of one shape."
                )
            split = TEST if part.endswith(_HELD_OUT) else TRAIN
            for start in range(0, len(images), BATCH_ROWS):
                some = slice(start, start + BATCH_ROWS)
                columns = [column(images[some]), column(targets[some].astype("int32"))]
                splits = pa.array([split] * len(columns[1]))
                batch = pa.record_batch([*columns, splits], schema=schema)
                yield Rows(batch, numbered(path.name, start))

    return Source("IDX files", schema, read)


def _labels(folder: Path, part: str) -> Path:
    for name in (f"{part}-labels-idx1-ubyte", f"{part}-labels-idx1-ubyte.gz"):
        if (folder / name).is_file():
            return folder / name
    raise ConfigurationError(f"{folder}: it has images {part}, but not their labels {part}-labels-idx1-ubyte.gz.")
