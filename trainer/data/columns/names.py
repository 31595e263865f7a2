"""The names of files with columns. It needs neither pyarrow nor NumPy."""

import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePath

PARQUET = (".parquet", ".pq")
_PACKED = ("", ".gz", ".zip")
_TABLES = (*(f"{name}{packed}" for name in (".csv", ".tsv") for packed in _PACKED), *PARQUET)
_TEXTS = (*(f"{name}{packed}" for name in (".txt", ".data") for packed in _PACKED), ".zip")
"""What names end in that may be of tables, and of anything else."""
SHOWN = ".csv, .tsv, .txt, .data, .parquet or .tfrecord"
"""What names end in, for messages."""
_RECORDS = re.compile(r"\.tfrec(ords?)?(\.gz)?(-\d+-of-\d+)?(\.gz)?$")
_OTHER_DATA = (".npz", "-ubyte", "-ubyte.gz", ".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")
"""Beside such files, a text is no table."""


def are_records(name: str) -> bool:
    """Whether a file of this name has TFRecords."""
    return _RECORDS.search(name.lower()) is not None


def has_columns(name: str) -> bool:
    """Whether a file that is named has columns, by its name."""
    return name.lower().endswith((*_TABLES, *_TEXTS)) or are_records(name)


def with_columns(names: Iterable[str], kind: str | None = None) -> list[str]:
    """Those of the files in a folder, and in the folders in it, that have columns; texts if there is no other data.

    If `kind` says what they are, and no name does, all files are meant.
    """
    visible = [name for name in names if not any(part.startswith((".", "_")) for part in PurePath(name).parts)]
    found = [name for name in visible if name.lower().endswith(_TABLES) or are_records(name)]
    if found or any(name.lower().endswith(_OTHER_DATA) for name in visible):
        return found
    return [name for name in visible if name.lower().endswith(_TEXTS)] or (visible if kind else [])


def find(place: Path, kind: str | None = None) -> list[Path]:
    """The files with columns at a path: itself, or those of a folder and the folders in it, in the order of names.

    If `kind` says what they are, and no name does, all files are meant.
    """
    if not place.is_dir():
        return [place] if place.is_file() and (kind or has_columns(place.name)) else []
    paths = (Path(folder, name) for folder, _, names in os.walk(place) for name in names)
    return sorted(place / name for name in with_columns((str(path.relative_to(place)) for path in paths), kind))
