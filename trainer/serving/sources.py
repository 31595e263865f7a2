"""The model that `trainer serve` or `make package-model` is told to use, by its place.

It imports neither TensorFlow nor KServe, so a model is packaged without them, and a wrong place is refused at once.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trainer.errors import AbsentError, ConfigurationError
from trainer.export.export_folder import DATA, is_export, newest, of_result
from trainer.mlflow.server import REGISTERED, Server
from trainer.serving import model_folder

NAME = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PLACES = {"npz": "dataset_uri", "lance": "dataset_uri", "train_data": "model"}
"""The facts that say more than the name of a data set: the place of its files, or the file of the model that has it."""


@dataclass(frozen=True)
class Source:
    """A model that can be served."""

    name: str
    """Its name in URLs."""
    version: str
    """The global step of the export, or the number of the version in MLflow."""
    export: Path
    """The folder with its SavedModel."""


def find(place: str, name: str | None, tracking_uri: str | None, folder: Path) -> Source:
    """Find a model that a user has named.

    Args:
        place: The folder of a packaged model, the directory of a run, an export, or models:/NAME/VERSION of MLflow.
        name: Its name in URLs, by default that of the packaged or registered model, or of the data.
        tracking_uri: The MLflow server, by default that of MLFLOW_TRACKING_URI.
        folder: Where to copy a model of MLflow to. Another attempt replaces the copy.

    Raises:
        AbsentError: there is none.
        ConfigurationError: it is altered or has no name, or MLflow refuses the request.
        StoreError: MLflow does not respond.
    """
    path = Path(place)
    if place.startswith(REGISTERED):
        server = Server(tracking_uri)
        version = server.version(place, "MODEL")
        name = check_name(name or _as_name(version.name))
        copy = folder / "model"
        shutil.rmtree(copy, ignore_errors=True)  # what an attempt before has left may be of another version
        copy.mkdir()
        return Source(name, version.number, server.download(version, "MODEL", copy))
    if (path / model_folder.RECORD).exists():
        record = model_folder.read(path)
        return Source(check_name(name or record.name), record.version, path / model_folder.EXPORT)
    export = find_export(path)
    return Source(check_name(name or name_of(read_data(export))), export.name, export)


def find_export(place: Path) -> Path:
    """The export folder that a user has named: itself, or the one that a run has written last.

    Raises:
        AbsentError: there is none.
        ConfigurationError: it has no step, or the run's result cannot be read.
    """
    if is_export(place):
        found: Path | None = place.resolve()
    else:
        found = of_result(place, _read_json(place / "result.json")) or newest(place / "export") or newest(place)
    if not found:
        raise AbsentError(
            f"MODEL={place}: it has no exported model; name the directory of a run that is done, or its export/STEP "
            "folder."
        )
    if not found.name.isdecimal():
        raise ConfigurationError(
            f"MODEL={place}: the folder {found.name} has no step in its name; name a folder such as export/2000."
        )
    return found


def read_data(export: Path) -> dict[str, str]:
    """The facts about the data and the model of an export; empty if it has none."""
    return {name: value for name, value in _read_json(export / DATA).items() if isinstance(value, str)}


def _read_json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"MODEL: {path} cannot be read ({error}); copy the run again.") from None


def name_of(data: Mapping[str, str]) -> str:
    """The name of the model by default: that of the data set, or of the file or folder that it is in.

    Raises:
        ConfigurationError: the data has no name.
    """
    name = data.get("dataset", "")
    if name in PLACES:
        name = PurePosixPath(data.get(PLACES[name], "")).stem
    if not name:
        raise ConfigurationError("NAME: the export does not say what data it was trained on; give NAME=digits.")
    return _as_name(name)


def check_name(name: str) -> str:
    """Return a name if URLs and images can have it.

    Raises:
        ConfigurationError: they cannot.
    """
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"NAME={name}: a name of at most 63 small letters, digits and dashes was expected, as in NAME=digits."
        )
    return name


def _as_name(text: str) -> str:
    return re.sub("[_ .]", "-", text.lower())
