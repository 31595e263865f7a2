"""Training data: arrays in memory, checked and normalised, with a held-out test split.

`load` reads (and for MNIST, when allowed, fetches) files; the rest is pure. Every replica loads the whole set and
shuffles it with a seed of its own.
"""

import gzip
import hashlib
import http.client
import importlib.metadata
import math
import struct
import urllib.request
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.data.files import write_atomically
from trainer.errors import ConfigurationError

MNIST_ADDRESS = "https://storage.googleapis.com/cvdf-datasets/mnist/"
MNIST_FILES = {  # MD5 sums as the data set's own loaders have published them; they guard against damage, not malice
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}


@dataclass(frozen=True)
class Examples:
    """Images float32 [n, *image_shape], scaled to [0, 1] where they were bytes, and their labels int32 [n]."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """What to learn from, and what to be examined on."""

    name: str
    train: Examples
    test: Examples

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of one image: [height, width, channels], or [features]."""
        return self.train.images.shape[1:]

    @cached_property
    def classes(self) -> int:
        """One more than the largest label."""
        return 1 + max(int(self.train.labels.max()), int(self.test.labels.max()))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over every example and label, in hexadecimal: the same data give the same digest anywhere."""
        sha256 = hashlib.sha256()
        for array in (self.train.images, self.train.labels, self.test.images, self.test.labels):
            sha256.update(f"{array.dtype.str}{array.shape}".encode())
            sha256.update(np.ascontiguousarray(array).data)
        return sha256.hexdigest()


def load(name: str, folder: Path, download: bool) -> Dataset:
    """Load the data set of this name.

    Args:
        name: digits, mnist or npz.
        folder: Where the files of mnist and npz are.
        download: Whether absent MNIST files may be fetched into the folder.

    Raises:
        ConfigurationError: a file is absent, damaged or of the wrong size; the sentence names it.
    """
    loaders = {"digits": lambda: _digits(), "mnist": lambda: _mnist(folder, download), "npz": lambda: _npz(folder)}
    train, test = loaders[name]()
    return Dataset(name, train, test)


def fetch_absent(name: str, folder: Path, download: bool) -> None:
    """Fetch what `load` would, so that several processes which load at the same time need not.

    Raises:
        ConfigurationError: a file is absent and may not or cannot be fetched.
    """
    if name == "mnist":
        for file in MNIST_FILES:
            _find_idx(folder, file, download)


def _digits() -> tuple[Examples, Examples]:
    """The 1,797 handwritten digits of scikit-learn, enlarged to MNIST's 28 by 28; every fifth or so is held out."""
    # Its file and not its `load_digits`, because importing it would take every replica a second of CPU time.
    file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(file), delimiter=",")
    pixels, labels = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(int)
    enlarge = _interpolation(8, 28)
    images = enlarge @ (pixels / 16.0) @ enlarge.T
    return _split(_examples(images[..., np.newaxis], labels, "digits"), held_out=360)


def _interpolation(size: int, larger: int) -> npt.NDArray[np.float64]:
    """The matrix [larger, size] of linear interpolation between pixel centres, as bilinear image scaling does it."""
    centres = np.clip((np.arange(larger) + 0.5) * size / larger - 0.5, 0, size - 1)
    below = np.minimum(centres.astype(int), size - 2)
    matrix = np.zeros((larger, size))
    rows = np.arange(larger)
    matrix[rows, below] = 1 - (centres - below)
    matrix[rows, below + 1] = centres - below
    return matrix


def _split(examples: Examples, held_out: int) -> tuple[Examples, Examples]:
    """Hold out this many examples, always the same ones."""
    order = np.random.default_rng(0).permutation(len(examples))
    test, train = order[:held_out], order[held_out:]
    return (
        Examples(examples.images[train], examples.labels[train]),
        Examples(examples.images[test], examples.labels[test]),
    )


def _examples(images: npt.NDArray[Any], labels: npt.NDArray[Any], origin: object) -> Examples:
    """Check and normalise what a file held; bytes are scaled to [0, 1], floats are kept as they are."""
    if images.ndim < 2 or not (images.dtype == np.uint8 or images.dtype.kind == "f"):
        raise ConfigurationError(
            f"{origin}: images must be uint8 or float arrays [n, height, width, channels], [n, height, width] or "
            f"[n, features], not {images.dtype} {list(images.shape)}."
        )
    if (
        labels.ndim != 1
        or labels.dtype.kind not in "iu"
        or (len(labels) and not 0 <= labels.min() <= labels.max() < 2**31)
    ):
        raise ConfigurationError(
            f"{origin}: labels must be whole numbers from 0, [n], not {labels.dtype} {list(labels.shape)}."
        )
    if len(images) != len(labels):
        raise ConfigurationError(f"{origin}: there are {len(images)} images but {len(labels)} labels.")
    if not len(images):
        raise ConfigurationError(f"{origin}: there are no examples in it.")
    with np.errstate(over="ignore"):  # what is too large for float32 is found just below
        scaled = images.astype(np.float32) / np.float32(255 if images.dtype == np.uint8 else 1)
    if not np.isfinite(scaled).all():
        raise ConfigurationError(f"{origin}: some pixels are not finite numbers.")
    if scaled.ndim == 3:
        scaled = scaled[..., np.newaxis]
    return Examples(scaled, labels.astype(np.int32))


def _mnist(folder: Path, download: bool) -> tuple[Examples, Examples]:
    splits = []
    for split in ("train", "t10k"):
        images = _find_idx(folder, f"{split}-images-idx3-ubyte.gz", download)
        labels = _find_idx(folder, f"{split}-labels-idx1-ubyte.gz", download)
        splits.append(_examples(_read_idx(images, 3), _read_idx(labels, 1), f"{images} and {labels.name}"))
    return splits[0], splits[1]


def _find_idx(folder: Path, name: str, download: bool) -> Path:
    compressed = folder / name
    plain = folder / name.removesuffix(".gz")
    for path in (plain, compressed):
        if path.is_file():
            return path
    if not download:
        raise ConfigurationError(
            f"data_dir: there is neither {plain.name} nor {name} in {folder}, and download is off."
        )
    fetch(MNIST_ADDRESS + name, compressed, MNIST_FILES[name])
    return compressed


def fetch(url: str, path: Path, md5: str) -> None:
    """Download a file to a path at which it appears whole or not at all, whoever else fetches it at the same time.

    Raises:
        ConfigurationError: it cannot be had or stored, or its MD5 sum is another one.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - the address is ours
            content = response.read()
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != md5:
            raise ConfigurationError(f"{url}: its MD5 sum is {found}, but {md5} was expected; nothing was kept.")
        write_atomically(path, content)
    except (OSError, http.client.HTTPException) as error:
        raise ConfigurationError(
            f"{path} is absent and cannot be fetched from {url} ({error}): put the file there, "
            "or train on --dataset digits, which needs no download."
        ) from None


def _read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Read an IDX file of bytes (format: http://yann.lecun.com/exdb/mnist/), gzipped or not, as an array."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(
            f"{path}: the file is damaged or cut off ({error}); delete it and fetch it again."
        ) from None
    header = 4 * (1 + dimensions)
    expected = 0x0800 + dimensions
    if len(content) < header or struct.unpack(">I", content[:4])[0] != expected:
        raise ConfigurationError(
            f"{path}: this is no IDX file of bytes in {dimensions} dimensions (it does not begin with {expected:08x})."
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    wanted = header + math.prod(shape)
    if len(content) != wanted:
        raise ConfigurationError(f"{path}: its header promises {wanted} bytes, but there are {len(content)}.")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _npz(folder: Path) -> tuple[Examples, Examples]:
    """All `*.npz` of a folder, each with images `x` and labels `y`; files named `test…` are the held-out split.

    Where no file is named so, a tenth of the examples is held out, always the same.
    """
    paths = sorted(folder.glob("*.npz"))
    train = [path for path in paths if not path.name.startswith("test")]
    test = [path for path in paths if path.name.startswith("test")]
    if not train:
        raise ConfigurationError(f"data_dir: there is no .npz file to train on in {folder}.")
    train_examples = _join([_read_npz(path) for path in train], train)
    if not test:
        if len(train_examples) < 10:
            raise ConfigurationError(
                f"data_dir: {folder} holds {len(train_examples)} examples; at least 10 are needed."
            )
        return _split(train_examples, held_out=len(train_examples) // 10)
    test_examples = _join([_read_npz(path) for path in test], test)
    if train_examples.images.shape[1:] != test_examples.images.shape[1:]:
        raise ConfigurationError(f"{test[0]}: its images have another shape than those of {train[0].name}.")
    return train_examples, test_examples


def _read_npz(path: Path) -> Examples:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _examples(arrays["x"], arrays["y"], path)
    except KeyError:
        raise ConfigurationError(f"{path}: it lacks an array x (images) or y (labels).") from None
    except (OSError, ValueError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigurationError(f"{path}: the file is damaged or not .npz ({error}).") from None


def _join(parts: Sequence[Examples], paths: Sequence[Path]) -> Examples:
    for part, path in zip(parts, paths, strict=True):
        if part.images.shape[1:] != parts[0].images.shape[1:]:
            raise ConfigurationError(f"{path}: its images have another shape than those of {paths[0].name}.")
    return Examples(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )
