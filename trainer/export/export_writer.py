"""Writes the folder of an exported model."""

import contextlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainer.export.export_folder import DATA, SAVED_MODEL
from trainer.tensorflow.errors import NOT_WRITTEN, brief

logger = logging.getLogger(__name__)

WEIGHTS = "weights.npz"


def write(
    path: Path,
    writers: Mapping[str, Callable[[Path], None]],
    values: Callable[[], Mapping[str, Any]],
    facts: Mapping[str, Any],
) -> None:
    """Write an export.

    The folder appears by a rename, and an earlier one is renamed before that and removed after it, so readers never see
    a partial one.

    Args:
        path: The folder.
        writers: What writes a model into a folder, by the name of its format; one may fail.
        values: Returns the arrays of the model by name, which are written if a writer fails.
        facts: The content of data.json.

    Raises:
        Exception: one of NOT_WRITTEN: there is no room, or no access.
    """
    partial = path.with_name(f".{path.name}")
    shutil.rmtree(partial, ignore_errors=True)
    are_written = True
    for what, write_model in writers.items():
        try:
            write_model(partial)
        except NOT_WRITTEN:
            raise
        except Exception as error:
            are_written = False
            if not (partial / SAVED_MODEL).exists():
                shutil.rmtree(partial, ignore_errors=True)
            logger.warning(f"the export has no {what}: {type(error).__name__}: {brief(error)}")
    partial.mkdir(parents=True, exist_ok=True)
    if not are_written:
        np.savez(partial / WEIGHTS, **values())
        logger.info(f"the export has {WEIGHTS}: the values of the model's arrays by name")
    (partial / DATA).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    earlier = path.with_name(f".{path.name}.{time.time_ns()}")  # on NFS the last one may still have files in use
    with contextlib.suppress(FileNotFoundError):
        path.rename(earlier)
    partial.rename(path)
    shutil.rmtree(earlier, ignore_errors=True)
