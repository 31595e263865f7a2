"""A folder with a folder of images for each class, or with such folders in train/ and test/, as a source."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from trainer.data.skipped import Skipped
from trainer.datasets.source import INPUT, SPLIT, TARGET, TEST, TRAIN, Rows, Source, class_names
from trainer.errors import ConfigurationError

BATCH_IMAGES = 100
HELD_OUT = (TEST, "val", "valid", "validation")
"""The names of a folder with the held-out split."""


def is_source(folder: Path) -> bool:
    """Whether the folder has folders."""
    return bool(_folders(folder))


def open_source(folder: Path, known_classes: Sequence[str] | None) -> Source:
    """The images of all classes. Hidden files are left out; each other file is an image.

    Args:
        folder: The folder.
        known_classes: The classes of the dataset that gets more rows.

    Raises:
        ConfigurationError: there are no images, or folders at places where none were expected.
    """
    names = [each.name for each in _folders(folder)]
    has_splits = TRAIN in names or TEST in names
    held_out = [name for name in names if name in HELD_OUT] if has_splits else []
    if has_splits and (other := next((name for name in names if name not in (TRAIN, *HELD_OUT)), None)):
        raise ConfigurationError(
            f"{folder}: beside the folders {TRAIN} and {TEST} there is {other}; move it away, or name it {TRAIN} or "
            f"{TEST}."
        )
    if len(held_out) > 1:
        raise ConfigurationError(
            f"{folder}: it has the folders {' and '.join(held_out)}, but one held-out split was expected; move the "
            "others away."
        )
    splits = [(TRAIN, folder / TRAIN)] if TRAIN in names else []
    parts = [*splits, *((TEST, folder / name) for name in held_out)] if has_splits else [("", folder)]
    found = {each.name for _, part in parts for each in _folders(part)}
    if not found:
        raise ConfigurationError(f"{folder}: a folder of images for each class was expected in {TRAIN} and {TEST}.")
    classes = class_names(found, known_classes, str(folder))
    labels = {name: label for label, name in enumerate(classes)}
    files = [
        (file, labels[each.name], split)
        for split, part in parts
        for each in sorted(_folders(part), key=lambda each: labels[each.name])
        for file in _files(each)
    ]
    if not files:
        raise ConfigurationError(f"{folder}: its folders have no files; images were expected.")
    fields = [pa.field(INPUT, pa.binary()), pa.field(TARGET, pa.int32())]
    schema = pa.schema([*fields, *([pa.field(SPLIT, pa.string())] if has_splits else [])])

    def read(skipped: Skipped) -> Iterator[Rows]:
        for start in range(0, len(files), BATCH_IMAGES):
            some = files[start : start + BATCH_IMAGES]
            columns = [
                pa.array([file.read_bytes() for file, _, _ in some], pa.binary()),
                pa.array(np.array([label for _, label, _ in some], np.int32)),
            ]
            if has_splits:
                columns.append(pa.array([split for _, _, split in some]))
            batch = pa.record_batch(columns, schema=schema)
            yield Rows(batch, [str(file.relative_to(folder)) for file, _, _ in some].__getitem__)

    return Source("folders of images", schema, read, classes=classes, rows=len(files))


def _folders(folder: Path) -> Sequence[Path]:
    return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def _files(folder: Path) -> Sequence[Path]:
    inside = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    if other := next((each for each in inside if each.is_dir()), None):
        raise ConfigurationError(f"{other}: a folder of images has folders; move the images into that of their class.")
    return inside
