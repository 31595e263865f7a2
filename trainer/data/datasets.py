"""Training data: arrays in memory, checked and normalized, with a held-out test split.

`load` reads files, and downloads those of MNIST where this is allowed. Every replica loads the whole data set and
shuffles it with its own seed.
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
MNIST_FILES = {  # MD5 sums from the published MNIST loaders; they detect damage, not tampering
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}


@dataclass(frozen=True)
class Examples:
    """Images, float32 [n, *image_shape], with bytes scaled to [0, 1], and their labels, int32 [n]."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """A training split and a held-out test split."""

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
        """SHA-256 over all examples and labels, in hexadecimal; the same data has the same digest on every machine."""
        sha256 = hashlib.sha256()
        for array in (self.train.images, self.train.labels, self.test.images, self.test.labels):
            sha256.update(f"{array.dtype.str}{array.shape}".encode())
            sha256.update(np.ascontiguousarray(array).data)
        return sha256.hexdigest()


def load(name: str, folder: Path, download: bool) -> Dataset:
    """Load a data set by name.

    Args:
        name: digits, mnist or npz.
        folder: Directory of the mnist or npz files.
        download: Whether to download missing MNIST files to the folder.

    Raises:
        ConfigurationError: a file is missing, damaged or has the wrong size; the sentence names it.
    """
    loaders = {"digits": lambda: _digits(), "mnist": lambda: _mnist(folder, download), "npz": lambda: _npz(folder)}
    train, test = loaders[name]()
    return Dataset(name, train, test)


def fetch_absent(name: str, folder: Path, download: bool) -> None:
    """Download the files that `load` needs, so that processes that load at the same time do not download them each.

    Raises:
        ConfigurationError: a file is missing, and downloading is disabled or fails.
    """
    if name == "mnist":
        for file in MNIST_FILES:
            _find_idx(folder, file, download)


def _digits() -> tuple[Examples, Examples]:
    """The 1,797 handwritten digits of scikit-learn, resized to 28 x 28 as in MNIST; 360 of them are held out."""
    # Read the file directly: importing scikit-learn costs every replica a second of CPU time.
    file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(file), delimiter=",")
    pixels, labels = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(int)
    resize = _interpolation(8, 28)
    images = resize @ (pixels / 16.0) @ resize.T
    return _split(_examples(images[..., np.newaxis], labels, "digits"), held_out=360)


def _interpolation(size: int, larger: int) -> npt.NDArray[np.float64]:
    """The matrix [larger, size] that interpolates linearly between pixel centers, as in bilinear resizing."""
    centres = np.clip((np.arange(larger) + 0.5) * size / larger - 0.5, 0, size - 1)
    below = np.minimum(centres.astype(int), size - 2)
    matrix = np.zeros((larger, size))
    rows = np.arange(larger)
    matrix[rows, below] = 1 - (centres - below)
    matrix[rows, below + 1] = centres - below
    return matrix


def _split(examples: Examples, held_out: int) -> tuple[Examples, Examples]:
    """Hold out this many examples. The choice is deterministic."""
    order = np.random.default_rng(0).permutation(len(examples))
    test, train = order[:held_out], order[held_out:]
    return (
        Examples(examples.images[train], examples.labels[train]),
        Examples(examples.images[test], examples.labels[test]),
    )


def _examples(images: npt.NDArray[Any], labels: npt.NDArray[Any], origin: object) -> Examples:
    """Check and normalize the arrays of a file: scale bytes to [0, 1], keep floats."""
    if images.ndim < 2 or not (images.dtype == np.uint8 or images.dtype.kind == "f"):
        raise ConfigurationError(
            f"{origin}: images must be uint8 or float arrays [n, height, width, channels], [n, height, width] or "
            f"[n, features], but are {images.dtype} {list(images.shape)}."
        )
    if (
        labels.ndim != 1
        or labels.dtype.kind not in "iu"
        or (len(labels) and not 0 <= labels.min() <= labels.max() < 2**31)
    ):
        raise ConfigurationError(
            f"{origin}: labels must be integers [n] from 0 to 2^31 - 1, but are {labels.dtype} {list(labels.shape)}."
        )
    if len(images) != len(labels):
        raise ConfigurationError(
            f"{origin}: {len(images)} images but {len(labels)} labels; expected one label per image."
        )
    if not len(images):
        raise ConfigurationError(f"{origin}: the arrays contain no examples; at least 1 is needed.")
    with np.errstate(over="ignore"):  # the next check finds values that overflow float32
        scaled = images.astype(np.float32) / np.float32(255 if images.dtype == np.uint8 else 1)
    if not np.isfinite(scaled).all():
        raise ConfigurationError(f"{origin}: some pixels are not finite in float32; replace NaN and infinite values.")
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
            f"data_dir={folder} contains neither {plain.name} nor {name}, and download=false; add the file or set "
            "download=true."
        )
    fetch(MNIST_ADDRESS + name, compressed, MNIST_FILES[name])
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
    """Read an IDX file of bytes, gzipped or plain, as an array (format: http://yann.lecun.com/exdb/mnist/)."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(
            f"{path}: the file is damaged or truncated ({error}); delete it and download it again."
        ) from None
    header = 4 * (1 + dimensions)
    expected = 0x0800 + dimensions
    if len(content) < header or struct.unpack(">I", content[:4])[0] != expected:
        raise ConfigurationError(
            f"{path}: not an IDX file of bytes in {dimensions} dimensions; its first four bytes must be {expected:08x}."
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    expected_bytes = header + math.prod(shape)
    if len(content) != expected_bytes:
        raise ConfigurationError(
            f"{path}: the header declares {expected_bytes} bytes, but the file has {len(content)}; download it again."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _npz(folder: Path) -> tuple[Examples, Examples]:
    """All `*.npz` files of a folder, each with images `x` and labels `y`. Files named `test…` are the held-out split.

    Without such files, the same tenth of the examples is held out in every run.
    """
    paths = sorted(folder.glob("*.npz"))
    train = [path for path in paths if not path.name.startswith("test")]
    test = [path for path in paths if path.name.startswith("test")]
    if not train:
        raise ConfigurationError(
            f"data_dir={folder} contains no .npz file to train on; add files with arrays x (images) and y (labels)."
        )
    train_examples = _join([_read_npz(path) for path in train], train)
    if not test:
        if len(train_examples) < 10:
            raise ConfigurationError(
                f"data_dir={folder} contains {len(train_examples)} examples, but at least 10 are needed to hold out "
                "a tenth."
            )
        return _split(train_examples, held_out=len(train_examples) // 10)
    test_examples = _join([_read_npz(path) for path in test], test)
    if train_examples.images.shape[1:] != test_examples.images.shape[1:]:
        raise _different_shapes(test_examples, test[0], train_examples, train[0])
    return train_examples, test_examples


def _read_npz(path: Path) -> Examples:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _examples(arrays["x"], arrays["y"], path)
    except KeyError:
        raise ConfigurationError(f"{path}: array x (images) or y (labels) is missing.") from None
    except (OSError, ValueError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigurationError(f"{path}: the file is damaged or not .npz ({error}).") from None


def _different_shapes(examples: Examples, path: Path, first: Examples, first_path: Path) -> ConfigurationError:
    shape, expected = list(examples.images.shape[1:]), list(first.images.shape[1:])
    return ConfigurationError(f"{path}: image shape {shape}, but {first_path.name} has {expected}; use one shape.")


def _join(parts: Sequence[Examples], paths: Sequence[Path]) -> Examples:
    for part, path in zip(parts, paths, strict=True):
        if part.images.shape[1:] != parts[0].images.shape[1:]:
            raise _different_shapes(part, path, parts[0], paths[0])
    return Examples(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )
