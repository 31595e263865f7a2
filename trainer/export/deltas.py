"""Deltas of a model that is still trained: what has changed since the delta before, each a file in a folder.

`NUMBER.npz` has a header, JSON, and arrays. Deltas of one chain follow each other without a gap. An export of the
chain has in its data.json which delta it has already, so a server that loads it goes on with the next one. A
restarted run begins another chain, with an export.

It does not import TensorFlow.
"""

import contextlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.export.export_folder import DATA, SAVED_MODEL, is_export, read_facts

Array = npt.NDArray[Any]

FOLDER = "deltas"
"""In the training directory."""
CHAIN, NUMBER = "chain", "delta"
"""The facts of an export: its chain, and the last delta that it has."""
HEADER = "header"


class DamagedError(Exception):
    """A delta cannot be read."""


@dataclass(frozen=True)
class RowChanges:
    """The rows of a table that have changed."""

    values: Array
    """float32 [k, dim]."""
    rows: Array | None = None
    """Their numbers, int64 [k]; None in a table that grows."""
    ids: Array | None = None
    """In a table that grows, their ids, int64 [k]. A server keeps rows that leave it until it loads another export."""


@dataclass(frozen=True)
class Delta:
    """What has changed in a model since another delta, or since an export."""

    chain: str
    number: int
    step: int
    """The global step at which the values were read."""
    seconds: float
    """When, in seconds since 1970."""
    arrays: Mapping[str, Array]
    """The values of the dense parameters, float32, by name."""
    tables: Mapping[str, RowChanges]
    """What has changed in tables, by name."""


def path(folder: Path, number: int) -> Path:
    """The file of a delta."""
    return folder / f"{number:08d}.npz"


def numbers(folder: Path) -> Sequence[int]:
    """The numbers of the deltas in a folder, in ascending order."""
    return sorted(int(each.stem) for each in folder.glob("*.npz") if each.stem.isdecimal())


def write(folder: Path, delta: Delta) -> int:
    """Write a delta, and return the bytes of its file.

    Raises:
        OSError: it cannot be written.
    """
    header = {"chain": delta.chain, "number": delta.number, "step": delta.step, "seconds": delta.seconds}
    arrays: dict[str, Any] = {HEADER: np.frombuffer(json.dumps(header).encode(), np.uint8)}
    arrays |= {f"array/{name}": each for name, each in delta.arrays.items()}
    for name, changes in delta.tables.items():
        fields = {"values": changes.values, "rows": changes.rows, "ids": changes.ids}
        arrays |= {f"{kind}/{name}": each for kind, each in fields.items() if each is not None}
    folder.mkdir(exist_ok=True)
    target = path(folder, delta.number)
    partial = target.with_name(f".{target.name}")
    try:
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
    return target.stat().st_size


def read(folder: Path, number: int) -> Delta:
    """Read a delta.

    Raises:
        FileNotFoundError: it is absent.
        DamagedError: it cannot be read.
    """
    try:
        with np.load(path(folder, number)) as found:
            header = json.loads(found[HEADER].tobytes())
            arrays = {name: found[name] for name in found.files if name != HEADER}
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DamagedError(f"{path(folder, number)} is damaged ({error})") from None
    by_kind: dict[str, dict[str, Array]] = {kind: {} for kind in ("array", "values", "rows", "ids")}
    for key, array in arrays.items():
        kind, _, name = key.partition("/")
        by_kind[kind][name] = array
    tables = {
        name: RowChanges(values, by_kind["rows"].get(name), by_kind["ids"].get(name))
        for name, values in by_kind["values"].items()
    }
    return Delta(**header, arrays=by_kind["array"], tables=tables)


def exports(folder: Path) -> Sequence[tuple[Path, str, int]]:
    """The exports of chains in a folder, each with its chain and its number, in the order of the times of writing.

    One that is removed meanwhile is left out.
    """
    found = []
    for each in folder.glob("*"):
        if each.name.isdecimal() and is_export(each):
            facts = read_facts(each / DATA)
            with contextlib.suppress(FileNotFoundError):
                if CHAIN in facts:
                    found.append((written(each), (each, str(facts[CHAIN]), int(facts[NUMBER]))))
    return [export for _, export in sorted(found)]


def written(export: Path) -> float:
    """When an export was written, in seconds since 1970.

    Raises:
        OSError: it is gone.
    """
    return (export / SAVED_MODEL).stat().st_mtime
