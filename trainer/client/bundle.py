"""The files that go along with a run: the folder of the model, local data, and initial weights.

In a git work tree, these are the files that git tracks or would add, and else all that are not hidden. Small ones
go into a ConfigMap, which every task mounts. Others go to the training volume, and a stage waits for them.
"""

import base64
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from trainer.errors import ConfigurationError

LARGEST_CONFIG_MAP = 1_000_000
"""Bytes. Kubernetes takes 1 MiB, names included."""
MOST_FILES = 500
"""Of a ConfigMap: each one is an entry in each pod."""
LARGEST = 1 << 30
"""Bytes that go to the training volume."""
NOT_TAKEN = ("__pycache__", "node_modules", "runs")
"""Folders that are left out where git does not say what is."""


@dataclass(frozen=True)
class Bundle:
    """Files by their paths in the pods, relative to where the bundle is."""

    files: Mapping[str, Path]
    names: Mapping[Path, str]
    """Of what was asked for: where it is in the bundle, "." for all of it."""

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(path.stat().st_size for path in self.files.values())

    @property
    def is_small(self) -> bool:
        """Whether it fits into a ConfigMap."""
        return self.size <= LARGEST_CONFIG_MAP and len(self.files) <= MOST_FILES

    @property
    def digest(self) -> str:
        """That of the paths and the contents, 12 digits."""
        found = hashlib.sha256()
        for name, path in sorted(self.files.items()):
            found.update(f"{name}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    found.update(block)
        return found.hexdigest()[:12]

    def __str__(self) -> str:
        return f"{len(self.files)} file{'s' if len(self.files) > 1 else ''}, {_megabytes(self.size)}"

    def keys(self) -> dict[str, str]:
        """By path: the key in the ConfigMap, which takes no slashes."""
        found: dict[str, str] = {}
        for number, name in enumerate(sorted(self.files)):
            key = re.sub(r"[^-._a-zA-Z0-9]", "_", name)[:200]
            found[name] = f"{number}_{key}" if key in found.values() or key.startswith("..") else key
        return found

    def config_map(self, name: str, labels: Mapping[str, str]) -> dict[str, object]:
        """The ConfigMap of this name with the files."""
        content = {
            key: base64.b64encode(self.files[path].read_bytes()).decode("ascii") for path, key in self.keys().items()
        }
        metadata = {"name": name, "labels": {**labels}}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": content, "immutable": True}

    def write_tar(self, to: IO[bytes]) -> None:
        """Write a tar file with the files."""
        with tarfile.open(fileobj=to, mode="w|", dereference=True) as archive:
            for name, path in sorted(self.files.items()):
                archive.add(path, name, recursive=False, filter=_of_nobody)

    def copy_to(self, folder: Path) -> None:
        """Copy the files below a folder."""
        for name, path in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode |= 0o444
    return entry


def collect(model: Path | None, others: Sequence[Path]) -> Bundle:
    """The bundle of a model, a Python file with all of its folder or a folder, and of other files and folders.

    Others are at the same place relative to the model as here if they are in its folder, and else in `_files/`.

    Raises:
        ConfigurationError: a file cannot be read, or they are too large.
    """
    folder = model.parent if model and model.is_file() else model
    files: dict[str, Path] = {}
    names: dict[Path, str] = {}
    with _readable():
        if model and folder:
            names[model] = model.relative_to(folder).as_posix()
            files |= {each.relative_to(folder).as_posix(): each for each in [*_taken(folder), model] if each != folder}
        for other in others:
            is_inside = folder and other.is_relative_to(folder)
            names[other] = other.relative_to(folder).as_posix() if folder and is_inside else f"_files/{other.name}"
            taken = [other] if other.is_file() else _all(other)
            files |= {(PurePosixPath(names[other]) / each.relative_to(other)).as_posix(): each for each in taken}
        bundle = Bundle(files, names)
        _check_size(bundle, folder or others[0])
    return bundle


def _check_size(bundle: Bundle, folder: Path) -> None:
    if bundle.size <= LARGEST:
        return
    largest = max(bundle.files.values(), key=lambda each: each.stat().st_size)
    raise ConfigurationError(
        f"{folder}: more than {_megabytes(LARGEST)} of files would go along with a run (largest: {largest.name}, "
        f"{_megabytes(largest.stat().st_size)}); put data on an object store or a volume, name what does not belong to "
        "the model in .gitignore, or give the model a folder of its own."
    )


def _taken(folder: Path) -> Iterable[Path]:
    """The files of a model's folder that go along."""
    command = ["git", "-C", str(folder), "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", "."]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):  # no git, or no work tree
        return _all(folder)
    names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    return [path for name in names if (path := folder / name).is_file()]


def _all(folder: Path) -> Iterator[Path]:
    """All files in a folder that are not hidden, nor made by programs; not all of a home directory."""
    size = 0
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name[0] != "." and name not in NOT_TAKEN and not _is_venv(Path(at, name))
        )
        for path in (Path(at, name) for name in sorted(names) if name[0] != "."):
            if path.is_file() and size <= LARGEST:
                size += path.stat().st_size
                yield path


def _is_venv(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").is_file()


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be read ({error.strerror}).") from None


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"
