"""The folder of a packaged model: the exported model, and a record with its name, version, data and digest.

It imports neither TensorFlow nor KServe, so a model is packaged without them, and an altered one is refused at once.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.errors import ConfigurationError
from trainer.export.export_folder import digest

EXPORT = "export"
"""The folder of the exported model in that of the packaged one."""
RECORD = "model.json"


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


def write(folder: Path, record: ModelRecord) -> None:
    """Write the record of a packaged model."""
    (folder / RECORD).write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> ModelRecord:
    """Read the record of a packaged model, and check that its files are those that were packaged.

    Raises:
        ConfigurationError: the folder is not a packaged model, or a file was altered, added or removed.
    """
    try:
        record = ModelRecord(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"MODEL={folder}: {RECORD} cannot be read ({error}); name the folder of a model that "
            "make package-model has written."
        ) from None
    found = digest(folder / EXPORT)
    if found != record.digest:
        raise ConfigurationError(
            f"MODEL={folder}: a file of the model {record.name} was altered: the digest is {found}, but that of "
            f"the packaged model is {record.digest}; package it again."
        )
    return record
