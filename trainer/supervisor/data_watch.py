"""Looks at a Lance dataset again and again, and puts the version to train on into the supervisor's queue."""

import logging
import threading

from trainer.errors import ConfigurationError, StoreError
from trainer.storage import lance_versions
from trainer.supervisor.changes import Changes, DataVersionFound, WatchFailed
from trainer.supervisor.run import DataWatch
from trainer.text import one_line

logger = logging.getLogger(__name__)


def start(watch: DataWatch, stopping: threading.Event, changes: Changes) -> None:
    """Watch until the supervisor stops. A read of a volume that hangs does not hinder that."""
    threading.Thread(target=_follow, args=(watch, stopping, changes), daemon=True).start()


def _follow(watch: DataWatch, stopping: threading.Event, changes: Changes) -> None:
    reported = ""
    while True:
        try:
            found = _look(watch)
        except Exception as error:
            changes.put(WatchFailed(error))
            raise
        if isinstance(found, int):
            changes.put(DataVersionFound(str(found)))
            if reported:
                logger.info(f"{watch.uri} can be read again")
            reported = ""
        elif found != reported:
            reported = found
            logger.info(f"the data: {found}")
        if stopping.wait(watch.interval_seconds):
            return


def _look(watch: DataWatch) -> int | str:
    """The version to train on, or why there is none."""
    try:
        return lance_versions.find(watch.uri, watch.tag)
    except (ConfigurationError, StoreError) as error:
        return one_line(str(error)).rstrip(".")
