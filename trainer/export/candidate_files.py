"""The vectors of the candidates of a retrieval model, as NumPy's files in the folder of its export."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.errors import ConfigurationError

FOLDER = "candidates"
IDS, NAMES, VECTORS = "ids.npy", "names.npy", "vectors.npy"


class Candidates(NamedTuple):
    """All candidates of a retrieval model."""

    ids: npt.NDArray[np.integer | np.str_]
    """What identifies each, [n]."""
    names: npt.NDArray[np.str_] | None
    """What people call each, [n]."""
    vectors: npt.NDArray[np.float32]
    """[n, dim]."""


def write(
    export: Path,
    ids: npt.NDArray[np.integer | np.str_],
    names: Sequence[str] | None,
    vectors: npt.NDArray[np.float32],
) -> None:
    """Write the candidates into the folder of an export."""
    folder = export / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / IDS, ids)
    np.save(folder / VECTORS, vectors)
    if names is not None:
        np.save(folder / NAMES, np.array(names, np.str_))


def read(export: Path, what: str) -> Candidates:
    """The candidates in the folder of an export, whose vectors stay in their file until they are needed.

    Args:
        export: The folder.
        what: What errors call the model.

    Raises:
        ConfigurationError: it has none, or they are damaged.
    """
    folder = export / FOLDER
    if not (folder / VECTORS).is_file():
        raise ConfigurationError(
            f"{what} has no candidates to recommend; train a model whose file has the functions towers() and "
            "candidates()."
        )
    try:
        names = np.load(folder / NAMES) if (folder / NAMES).is_file() else None
        found = Candidates(np.load(folder / IDS), names, np.load(folder / VECTORS, mmap_mode="r"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{what} has damaged candidates ({error}); export it again, or copy it again."
        ) from None
    if len({len(found.ids), len(found.vectors), *([] if names is None else [len(names)])}) > 1:
        raise ConfigurationError(f"{what} has candidates of different numbers in {folder}; export it again.")
    return found


def find(
    ids: npt.NDArray[Any], order: npt.NDArray[np.integer], wanted: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.bool_]]:
    """The place of each wanted id among all, [m], and whether it is there, bool [m]; otherwise the place means nothing.

    Args:
        ids: All, [n].
        order: The places that sort them, [n].
        wanted: [m], of the same type.
    """
    places = order[np.searchsorted(ids, wanted, sorter=order).clip(max=len(ids) - 1)]
    return places, ids[places] == wanted
