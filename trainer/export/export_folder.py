"""The folder of an exported model, EXPORT/STEP: which one a run has written last, and its digest.

It does not import TensorFlow, so that a model can be found, packaged and checked without it.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

SAVED_MODEL = "saved_model.pb"
DATA = "data.json"
"""The facts about the data of a model: its digest, the names of its classes, the plan of its columns, …"""
OUTPUT = "output"
"""The fact what a classifier gives: PROBABILITIES of its classes or, by one number for each example, the PROBABILITY or
the LOGIT of the second of two classes."""
IDS, NEW_IDS, NEW_ROWS = "/ids", "/new_ids", "/new_rows"
"""What the names of the variables end with that a table which grows has beside its rows."""
CANDIDATE = "candidate"
"""The fact which input identifies a candidate of a retrieval model."""
PROBABILITIES, PROBABILITY, LOGIT = "probabilities", "probability", "logit"
SAVED_MODEL_FILES = (SAVED_MODEL, "fingerprint.pb", "keras_metadata.pb", "variables", "assets", "assets.extra")
"""The files and folders that TensorFlow and Keras write for a SavedModel."""


def is_export(folder: Path) -> bool:
    """Whether a folder has a SavedModel."""
    return (folder / SAVED_MODEL).is_file()


def class_names(folder: Path) -> Sequence[str]:
    """The names of a model's classes, by label; empty if they are not known."""
    return [str(each) for each in read_facts(folder / DATA).get("classes") or []]


def read_facts(file: Path) -> Mapping[str, Any]:
    """The JSON object in a file, which another program may have written; empty if it cannot be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def newest(folder: Path) -> Path | None:
    """The folder with the largest step among those with a SavedModel; None if there is none."""
    found = [path for path in folder.glob("*") if path.name.isdecimal() and is_export(path)]
    return max(found, key=lambda path: int(path.name), default=None)


def of_result(directory: Path, result: Mapping[str, Any]) -> Path | None:
    """The export that a run names in its result.json, which may have moved with the directory; None if it is absent."""
    name = PurePosixPath(str(result.get("export", ""))).name
    path = directory / "export" / name
    return path if name and is_export(path) else None


def digest(folder: Path, without: Collection[str] = ()) -> str:
    """The digest of an export: sha256:HEX, of the output of `sha256sum` for its files.

    It leaves out these files and folders at its top.

    The command `find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum` in the folder prints the same.
    """
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    total = hashlib.sha256()
    for name in sorted(f"./{name}" for name in names if name.partition("/")[0] not in without):
        content = hashlib.sha256()
        with (folder / name).open("rb") as file:
            while block := file.read(1 << 20):
                content.update(block)
        total.update(f"{content.hexdigest()}  {name}\n".encode())
    return f"sha256:{total.hexdigest()}"
