"""The folder of a packaged model: the exported model, and a record with its name, version, data and digest.

It imports neither TensorFlow nor KServe, so a model is packaged without them, and an altered one is refused at once.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.errors import ConfigurationError

EXPORT = "export"
"""The folder of the exported model in that of the packaged one."""
RECORD = "model.json"
SAVED_MODEL = "saved_model.pb"


@dataclass(frozen=True)
class ModelRecord:
    """What is known about a packaged model."""

    name: str
    version: str
    """The global step of the export."""
    digest: str
    """Of the files of the export: sha256:HEX."""
    data: Mapping[str, str]
    """The facts about the data and the model that the export has in data.json."""


def digest(export: Path) -> str:
    """The digest of an export: the SHA-256 of the output of `sha256sum` for its files, sorted by name.

    The command `find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum` in the folder prints the same.
    """
    names = sorted(f"./{path.relative_to(export).as_posix()}" for path in export.rglob("*") if path.is_file())
    lines = (f"{hashlib.sha256((export / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def write(folder: Path, record: ModelRecord) -> None:
    """Write the record of a packaged model."""
    (folder / RECORD).write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> ModelRecord:
    """Read the record of a packaged model, and check that its files are those that were packaged.

    Raises:
        ConfigurationError: the folder is no packaged model, or a file was altered, added or removed.
    """
    try:
        record = ModelRecord(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"model_dir={folder}: {RECORD} cannot be read ({error}); name the folder of a model that "
            "make package-model has written."
        ) from None
    found = digest(folder / EXPORT)
    if found != record.digest:
        raise ConfigurationError(
            f"model_dir={folder}: a file of the model {record.name} was altered: the digest is {found}, but that of "
            f"the packaged model is {record.digest}; package it again."
        )
    return record
