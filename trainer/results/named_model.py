"""A model that a user names by its place: a run, an export folder, a SavedModel, or a version in MLflow."""

import argparse
import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer import config
from trainer.config import Settings
from trainer.errors import ConfigurationError
from trainer.export.export_folder import SAVED_MODEL, is_export, newest
from trainer.mlflow.server import REGISTERED, TRACKING_URI, Server
from trainer.run_directory.run import is_run, open_run
from trainer.text import truncate

HELP = (
    "training directory or its URI, export folder, SavedModel, or version in MLflow: models:/NAME/VERSION or its number"
)
LONGEST_LIST = 200
"""Characters of the names of registered models in an error."""


@dataclass(frozen=True)
class Named:
    """A model that a user has named."""

    place: str
    folder: Path
    """The folder of the SavedModel."""
    settings: Settings | None
    """Of its run, if it is known."""
    digest: str | None
    """Of the data of its run, if it is known."""


@dataclass(frozen=True)
class Registry:
    """Where versions in MLflow are looked up."""

    tracking_uri: str | None
    """The server, by default that of MLFLOW_TRACKING_URI."""
    model: str | None
    """The registered model of which a number is a version, by default the only one of the server."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a registry to a command."""
    parser.add_argument("--tracking_uri", metavar="URI", help="MLflow server (default: MLFLOW_TRACKING_URI)")
    parser.add_argument(
        "--model",
        dest="registered_model",
        metavar="NAME",
        help="registered model of the versions that are numbers (default: the only one of the server)",
    )


def read_options(arguments: argparse.Namespace) -> Registry:
    """The registry that the options name."""
    return Registry(arguments.tracking_uri, arguments.registered_model)


@contextlib.contextmanager
def open_model(place: str, argument: str, registry: Registry) -> Iterator[Named]:
    """Find the SavedModel that a user has named, or make a temporary copy of one.

    Args:
        place: A path, a URI, or a positive number that is not a path, which names a version in MLflow.
        argument: What names it, for errors.
        registry: Where versions are looked up.

    Raises:
        ConfigurationError: there is none.
        StoreError: an object store or MLflow does not respond.
    """
    path = Path(place)
    if re.fullmatch("[1-9][0-9]*", place) and not path.exists():
        place = f"{REGISTERED}/{_registered_model(place, argument, registry)}/{place}"
    if place.startswith(REGISTERED):
        with tempfile.TemporaryDirectory() as folder:
            yield _download(place, argument, Server(registry.tracking_uri), Path(folder))
        return
    if "://" in place or is_run(path):
        with open_run(place, argument) as found:
            if found.export is None:
                raise ConfigurationError(
                    f"{argument}: the run {place} has no exported model: it is written at the end of the run; name "
                    "another run, or a SavedModel."
                )
            yield Named(place, found.export, found.settings, found.result.get("dataset_digest"))
        return
    export = path if is_export(path) else newest(path)
    if not export:
        raise ConfigurationError(
            f"{argument}: {place} is not a model: a training directory, an export folder or a folder with "
            f"{SAVED_MODEL} was expected."
        )
    yield Named(place, export, None, None)


def _registered_model(number: str, argument: str, registry: Registry) -> str:
    """The registered model of which a number is a version."""
    if not (registry.tracking_uri or os.environ.get(TRACKING_URI)):
        raise ConfigurationError(
            f"{argument}: {number} is not a path, and the MLflow server of version {number} is not known; name another "
            f"path, or the server with --tracking_uri or in the variable {TRACKING_URI}."
        )
    if registry.model:
        return registry.model
    server = Server(registry.tracking_uri)
    names = server.registered_models()
    if len(names) == 1:
        return names[0]
    if names:
        raise ConfigurationError(
            f"{argument}: {number} may be a version of several registered models of {server.uri}, which are "
            f"{truncate(', '.join(names), LONGEST_LIST)}; name one of them with --model."
        )
    raise ConfigurationError(
        f"{argument}: {number} is neither a path nor a version in MLflow, as {server.uri} has no registered model; "
        "register one with trainer models publish, or name another path."
    )


def _download(place: str, argument: str, server: Server, folder: Path) -> Named:
    version = server.version(place, argument)
    export = server.download(version, argument, folder)
    settings = server.download_file(version.run, "settings.yaml", folder) if version.run else None
    return Named(place, export, _read(settings), version.tags.get("dataset_digest"))


def _read(file: Path | None) -> Settings | None:
    """The settings of a run; None if this version does not know one of them."""
    with contextlib.suppress(ConfigurationError):
        return config.load_file(file) if file else None
    return None
