"""Training data: a training split and a held-out test split."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data import digits, lance_table, metadata, mnist, npz
from trainer.data.columns.plan import Plan
from trainer.data.context import DataContext
from trainer.data.examples import Array, Examples, Signature, named
from trainer.data.stream import Stream
from trainer.errors import ConfigurationError
from trainer.storage.object_store import ObjectStore, is_uri


@dataclass(frozen=True)
class Dataset:
    """A training split and a held-out test split."""

    name: str
    train: Examples | Stream
    test: Examples | Stream
    uri: str | None = None
    """The place of the data: an absolute path or a URI."""
    version: str | None = None
    """The version that was read, of data that has versions."""
    version_digest: str | None = None
    """The digest of a version that is not in memory."""
    classes: Sequence[str] | None = None
    """The names of the classes, by label, if they are known."""
    plan: Plan | None = None
    """What each column is, of a table."""
    baseline: Mapping[str, Any] | None = None
    """How good the best constant prediction is on the held-out split, of a table."""
    files: int | None = None
    """The number of the files that are dealt, if it is read so."""

    @cached_property
    def signature(self) -> Signature:
        """The signature of an example of either split."""
        train, test = self.train.signature, self.test.signature
        return replace(train, classes=max(train.classes, test.classes)) if train.classes and test.classes else train

    @cached_property
    def digest(self) -> str | None:
        """SHA-256 over all examples, in hexadecimal; the same data has the same digest on every machine.

        Of a Lance dataset that is not in memory, it is that of its files; for other data that is not in memory, None.
        """
        if not isinstance(self.train, Examples) or not isinstance(self.test, Examples):
            return self.version_digest
        sha256 = hashlib.sha256()
        for array in (*self.train.arrays, *self.test.arrays):
            sha256.update(f"{array.dtype.str}{array.shape}".encode())
            sha256.update(_content(array))
        return sha256.hexdigest()

    @property
    def identity(self) -> dict[str, str | int | None]:
        """What identifies the data, wherever it is, for files about a run."""
        return {
            "dataset": self.name,
            **({"dataset_files": self.files} if self.files else {}),
            "dataset_digest": self.digest,
            **({"dataset_version": self.version} if self.version else {}),
        }

    @property
    def facts(self) -> dict[str, str | int | None]:
        """The identity and the place."""
        return {**self.identity, **({"dataset_uri": self.uri} if self.uri else {})}

    @property
    def description(self) -> dict[str, Any]:
        """The facts, the names of the classes and the baseline, for files about what was trained."""
        known = {"classes": self.classes, "baseline": self.baseline}
        return {**self.facts, **{key: each for key, each in known.items() if each}}

    @property
    def warning(self) -> str | None:
        """A sentence on inputs in memory that few models learn from as they are; None if there are none."""
        if not isinstance(self.train, Examples) or self.plan:
            return None
        for name, array in named(self.train.inputs, "input").items():
            if array.dtype.kind == "f" and (largest := float(np.abs(array).max())) > LARGE_INPUT:
                return (
                    f"{name}: values of up to {largest:g}, but most models learn from values near 1; scale them, "
                    "unless the model does"
                )
        return None


def _content(array: Array) -> Any:
    """The bytes of an array; for texts, those of all texts, each after its length."""
    if array.dtype != object:
        return np.ascontiguousarray(array).data
    texts = [each.encode() if isinstance(each, str) else each for each in array.flat]
    return b"".join(len(each).to_bytes(8, "little") + each for each in texts)


DEFAULT = "digits"
FILES = {"mnist": "*-ubyte*", "npz": "*.npz"}
"""The files of the data sets that are read from a folder."""
LARGE_INPUT = 20.0
"""Standardised inputs, and those in [0, 1], are far below it."""


def load(name: str, version: str | None, download: bool, data: DataContext) -> Dataset:
    """Load a data set by name.

    Args:
        name: digits, mnist, npz or lance.
        version: A version or a tag of a Lance dataset; None is the newest.
        download: Whether to download missing MNIST files to the folder.
        data: The folder, and the replica that reads.

    Raises:
        ConfigurationError: a file is missing, damaged or has the wrong size; the sentence names it.
        StoreError: the object store of the files does not respond.
    """
    if version and name != "lance":
        raise ConfigurationError(f"data_version={version}, but only a Lance dataset has versions; remove it.")
    if name == "digits":
        return Dataset(name, *digits.load())
    uri = data.data_dir if is_uri(data.data_dir) else os.path.abspath(data.data_dir)
    if name == "lance":
        train, test, table = lance_table.load(data.data_dir, version, data)
        known = str(table.version), lance_table.digest(table), metadata.class_names(table.schema)
        return Dataset(name, train, test, uri, *known)
    with _local(data.data_dir, FILES[name]) as folder:
        return Dataset(name, *(mnist.load(folder, download) if name == "mnist" else npz.load(folder)), uri)


@contextlib.contextmanager
def _local(place: str, pattern: str) -> Iterator[Path]:
    """The folder at a path, or a temporary copy of the files at a URI that match a pattern.

    Raises:
        ConfigurationError: the address is wrong, or access is refused.
        StoreError: the object store does not respond.
    """
    if not is_uri(place):
        yield Path(place)
        return
    store = ObjectStore(place, "data_dir")
    with tempfile.TemporaryDirectory() as folder:
        for name in store.names():
            if "/" not in name and fnmatch(name, pattern):
                store.download(name, Path(folder) / name)
        try:
            yield Path(folder)
        except ConfigurationError as error:
            raise ConfigurationError(str(error).replace(folder, place)) from None
