"""MNIST: four IDX files in a folder, downloaded where this is allowed."""

import gzip
import hashlib
import http.client
import math
import struct
import urllib.request
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainer.data.arrays import labelled
from trainer.data.examples import Examples
from trainer.data.files import write_atomically
from trainer.errors import ConfigurationError

ADDRESS = "https://storage.googleapis.com/cvdf-datasets/mnist/"
CHUNK = 2**20
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
        splits.append(labelled(_read_idx(images, 3), _read_idx(labels, 1), f"{images} and {labels.name}"))
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
            f"data_dir={folder} contains neither {plain.name} nor {name}, and download=false; add the file or set "
            "download=true."
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


def _read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Read an IDX file of bytes, gzipped or plain, as an array (format: http://yann.lecun.com/exdb/mnist/).

    It takes no more memory than the content needs, whatever the header declares, and reads no more than it declares.
    """
    header = 4 * (1 + dimensions)
    expected = 0x0800 + dimensions
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(header)
            if len(start) < header or struct.unpack(">I", start[:4])[0] != expected:
                raise ConfigurationError(
                    f"{path}: not an IDX file of bytes in {dimensions} dimensions; its first four bytes must be "
                    f"{expected:08x}."
                )
            shape = struct.unpack(f">{dimensions}I", start[4:])
            declared = math.prod(shape)
            if not declared:
                raise ConfigurationError(
                    f"{path}: the header declares {list(shape)}, so it has no examples; add at least 1."
                )
            content = bytearray()
            while len(content) <= declared and (chunk := file.read(CHUNK)):
                content += chunk
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(
            f"{path}: the file is damaged or truncated ({error}); delete it and download it again."
        ) from None
    if len(content) != declared:
        found = "more" if len(content) > declared else header + len(content)
        raise ConfigurationError(
            f"{path}: the header declares {header + declared} bytes, but the file has {found}; download it again."
        )
    return np.frombuffer(content, np.uint8).reshape(shape)
