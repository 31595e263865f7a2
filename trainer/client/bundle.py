"""The files that are packed for a run: the folder of the model, local data, and initial weights.

In a git work tree, the folder's files are those that git tracks or would add, and else all. Hidden ones are left out.
Small bundles go into a ConfigMap, which every task mounts, others to the training volume, where a stage waits for them.
"""

import base64
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
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
EXCLUDED = ("__pycache__", "node_modules", "runs")
"""Folders beside a model that are left out where git does not say what is."""
OTHERS = "_files"
"""The folder of what is outside of the model's folder."""


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
        return len(self.files) <= MOST_FILES and self.size <= LARGEST_CONFIG_MAP

    @property
    def digest(self) -> str:
        """That of the paths and the contents, 12 digits."""
        found = hashlib.sha256()
        with _readable():
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
        used: set[str] = set()
        for name in sorted(self.files):
            key = base = re.sub(r"[^-._a-zA-Z0-9]", "_", name)[:200].replace("..", "_.")
            number = 1
            while key in used:
                key, number = f"{number}_{base}", number + 1
            used.add(key)
            found[name] = key
        return found

    def config_map(self, name: str, labels: Mapping[str, str]) -> dict[str, object]:
        """The ConfigMap of this name with the files.

        Raises:
            ConfigurationError: a file cannot be read.
        """
        with _readable():
            content = {
                key: base64.b64encode(self.files[path].read_bytes()).decode("ascii")
                for path, key in self.keys().items()
            }
        metadata = {"name": name, "labels": {**labels}}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": content, "immutable": True}

    def write_tar(self, to: IO[bytes]) -> None:
        """Write a tar file with the files.

        Raises:
            ConfigurationError: a file cannot be read.
        """
        with _readable(), tarfile.open(fileobj=to, mode="w|", dereference=True) as archive:
            for name, path in sorted(self.files.items()):
                archive.add(path, name, recursive=False, filter=_without_owner)

    def copy_to(self, folder: Path) -> None:
        """Copy the files below a folder.

        Raises:
            ConfigurationError: a file cannot be read.
        """
        with _readable():
            for name, path in self.files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, folder / name)


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode |= 0o444
    return entry


def collect(model: Path | None, others: Sequence[Path]) -> Bundle:
    """The bundle of a model, a Python file with all of its folder or a folder, and of other files and folders.

    Others are at the same place relative to the model as here if they are in its folder, and else in `_files/NUMBER/`.

    Raises:
        ConfigurationError: a file cannot be read or has a name that pods do not take, or they are too large.
    """
    folder = model.parent if model and model.is_file() else model
    files: dict[str, Path] = {}
    names: dict[Path, str] = {}
    with _readable():
        if model and folder:
            names[model] = model.relative_to(folder).as_posix()
            files |= {
                each.relative_to(folder).as_posix(): each for each in [*_of_model(folder), model] if each != folder
            }
        for number, other in enumerate(others):
            is_inside = folder and other.is_relative_to(folder)
            place = other.relative_to(folder).as_posix() if folder and is_inside else f"{OTHERS}/{number}/{other.name}"
            names[other] = place
            found = [other] if other.is_file() else _walk(other, ())
            files |= {(PurePosixPath(place) / each.relative_to(other)).as_posix(): each for each in found}
        bundle = Bundle(files, names)
        _check(bundle, folder or others[0])
    return bundle


def _check(bundle: Bundle, folder: Path) -> None:
    if bad := next((name for name in bundle.files if not name.isprintable()), None):
        raise ConfigurationError(f"{folder}: the name {bad!a} of a file is not printable text; rename it.")
    if bundle.size <= LARGEST:
        return
    largest = max(bundle.files.values(), key=lambda each: each.stat().st_size)
    raise ConfigurationError(
        f"{folder}: more than {_megabytes(LARGEST)} of files would be packed (the largest: {largest.name}, "
        f"{_megabytes(largest.stat().st_size)}); put data on an object store or a volume, name what does not belong to "
        "the model in .gitignore, or give the model a folder of its own."
    )


def _of_model(folder: Path) -> Iterator[Path]:
    """The files of a model's folder that are packed."""
    names = _git(folder, "--cached", "--recurse-submodules")
    if names is None:
        yield from _walk(folder, EXCLUDED)
        return
    names += _git(folder, "--others", "--exclude-standard") or []
    for name in names:
        is_hidden = any(part[0] == "." for part in name.split("/"))
        if not is_hidden and (path := folder / name).is_file():
            yield path


def _git(folder: Path, *options: str) -> list[str] | None:
    """What git lists in a folder; None if that is in no work tree, or there is no git.

    Raises:
        ConfigurationError: git refuses it.
    """
    command = ["git", "-C", str(folder), "ls-files", *options, "-z", "--", "."]
    try:
        done = subprocess.run(command, capture_output=True)
    except OSError:
        return None
    if not done.returncode:
        return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    said = " ".join(done.stderr.decode(errors="replace").split())
    if "not a git repository" in said:
        return None
    raise ConfigurationError(f"{folder}: git cannot say which files belong to the model: {said}.")


def _walk(folder: Path, excluded: Sequence[str]) -> Iterator[Path]:
    """The files in a folder that are not hidden; with `excluded`, without such folders and virtual environments."""
    size = 0
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != "." and not _is_excluded(Path(at, name), excluded))
        for path in (Path(at, name) for name in sorted(names) if name[0] != "."):
            if path.is_file():
                size += path.stat().st_size
                yield path
            if size > LARGEST:  # do not read all of a home directory
                return


def _is_excluded(folder: Path, excluded: Sequence[str]) -> bool:
    return bool(excluded) and (folder.name in excluded or (folder / "pyvenv.cfg").is_file())


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be read ({error.strerror}).") from None


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"
