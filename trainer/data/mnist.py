"""MNIST: four IDX files in a folder, downloaded where this is allowed."""

import hashlib
import http.client
import urllib.request
from pathlib import Path

from trainer.data import idx
from trainer.data.arrays import labelled
from trainer.data.examples import Examples
from trainer.data.files import write_atomically
from trainer.errors import ConfigurationError

ADDRESS = "https://storage.googleapis.com/cvdf-datasets/mnist/"
FILES = {  # MD5 sums from the published MNIST loaders; they detect damage, not tampering
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}


def load(folder: Path, download: bool) -> tuple[Examples, Examples]:
    """The training and the test images, float32 [n, 28, 28, 1], and their labels.

    Raises:
        ConfigurationError: a file is absent, damaged or of the wrong size.
    """
    splits = []
    for split in ("train", "t10k"):
        images = _find_idx(folder, f"{split}-images-idx3-ubyte.gz", download)
        labels = _find_idx(folder, f"{split}-labels-idx1-ubyte.gz", download)
        splits.append(labelled(idx.read(images, 3), idx.read(labels, 1), f"{images} and {labels.name}"))
    return splits[0], splits[1]


def fetch_absent(folder: Path, download: bool) -> None:
    """Download the files that the folder lacks.

    Raises:
        ConfigurationError: a file is absent, and downloading is disabled or fails.
    """
    for name in FILES:
        _find_idx(folder, name, download)


def _find_idx(folder: Path, name: str, download: bool) -> Path:
    compressed = folder / name
    plain = folder / name.removesuffix(".gz")
    for path in (plain, compressed):
        if path.is_file():
            return path
    if not download:
        raise ConfigurationError(
            f"data_dir={folder} contains neither {plain.name} nor {name}; add the file, which a training with "
            "download=true fetches."
        )
    fetch(ADDRESS + name, compressed, FILES[name])
    return compressed


def fetch(url: str, path: Path, md5: str) -> None:
    """Download a file to a path atomically. Several processes may download the same file at the same time.

    Raises:
        ConfigurationError: the file cannot be downloaded or written, or its MD5 sum differs.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - the URL is a constant of this module
            content = response.read()
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != md5:
            raise ConfigurationError(
                f"{url}: the MD5 sum is {found}, but {md5} was expected; the download was discarded."
            )
        write_atomically(path, content)
    except (OSError, http.client.HTTPException) as error:
        raise ConfigurationError(
            f"{path} is absent and cannot be fetched from {url} ({error}): put the file there, "
            "or train on --dataset digits, which needs no download."
        ) from None
