"""The version of the data that a run trains on.

A run keeps the version on which it began. Otherwise a task that restarts would read a version that was written
meanwhile, or the one to which a tag was moved.
"""

import json
import logging
import tempfile
from pathlib import Path
from typing import Any

from trainer.cluster.spec import Cluster
from trainer.config import Settings
from trainer.errors import ConfigurationError, LostPeersError, StoreError
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.storage import lance_dataset
from trainer.storage.object_store import ObjectStore, is_uri

logger = logging.getLogger(__name__)


def choose(settings: Settings, cluster: Cluster | None) -> str | None:
    """Return the number or the tag of the version to read; None is the newest.

    Raises:
        ConfigurationError: the training directory cannot be read.
        StoreError: the object store of the training directory does not respond.
    """
    wanted = settings.data_version
    if settings.dataset != "lance" or settings.train_dir is None or (wanted and wanted.isdigit()):
        return wanted
    try:
        claim = _claim(settings.train_dir)
    except (ConfigurationError, StoreError):
        if cluster is None or cluster.is_chief:
            raise
        claim = {}  # only the chief needs access
    begun = claim.get("dataset_version")
    if begun is None or claim.get("dataset") != "lance":
        return wanted
    logger.info(f"data: version {begun}, on which the run began (data_version={wanted or 'the newest'})")
    return str(begun)


def fix(settings: Settings) -> str | None:
    """Return the number of the version to read, for tasks that start together and must read the same one.

    Raises:
        ConfigurationError: the training directory or the data cannot be read.
        StoreError: the object store does not respond.
    """
    version = choose(settings, None)
    if settings.dataset != "lance" or (version and version.isdigit()):
        return version
    lance_dataset.require("dataset=lance")
    lance_dataset.check_access(settings.data_dir, "data_dir")
    return str(lance_dataset.open_dataset(settings.data_dir, version, f"data_dir={settings.data_dir}").version)


def check(own: str | None, run_id: bytes) -> None:
    """Check that this replica has read the version of the run on the parameter servers.

    Raises:
        LostPeersError: it has read another one; a restarted task may find the version of the run.
    """
    if own is None:
        return
    identity, _ = json.loads(run_id)
    if identity.get("dataset_version") != own:
        raise LostPeersError(
            f"data_version: this task has read version {own} of the data, but the run is on version "
            f"{identity.get('dataset_version')}; restart it, and give the number of the version if that does not help"
        )


def _claim(train_dir: str) -> dict[str, Any]:
    """The facts about the run that owns a training directory."""
    if not is_uri(train_dir):
        return TrainingDirectory(Path(train_dir)).read_claim()
    store = ObjectStore(train_dir, "train_dir")
    if "run.json" not in set(store.names()):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        store.download("run.json", Path(folder) / "run.json")
        return dict(json.loads((Path(folder) / "run.json").read_text(encoding="utf-8")))
