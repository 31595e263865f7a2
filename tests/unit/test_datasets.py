"""Data sets: reading, validation, normalization, splits and downloads."""

import contextlib
import functools
import gzip
import hashlib
import http.server
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from trainer.data import datasets, mnist, npz
from trainer.data import digits as bundled
from trainer.data.context import DataContext
from trainer.data.datasets import Dataset
from trainer.data.examples import Examples
from trainer.errors import ConfigurationError


class Splits(NamedTuple):
    """The splits of a data set in memory."""

    train: Examples
    test: Examples

    @property
    def dataset(self) -> Dataset:
        return Dataset("digits", self.train, self.test)


def load(name: str, folder: Path, download: bool = False) -> Dataset:
    return datasets.load(name, None, download, DataContext(str(folder), 10, 0, 0, 1))


@pytest.fixture(scope="module")
def digits() -> Splits:
    return Splits(*bundled.load())


def test_digits_have_the_shape_and_range_of_mnist(digits: Splits) -> None:
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    signature = digits.dataset.signature
    assert signature.input_shape == (28, 28, 1)
    assert signature.classes == 10
    for split in digits:
        assert split.inputs.shape == (len(split), 28, 28, 1)
        assert split.targets.shape == (len(split),)
        assert split.inputs.dtype == np.float32
        assert split.targets.dtype == np.int32
        assert split.inputs.min() == 0.0
        assert split.inputs.max() == pytest.approx(1.0)
        assert set(split.targets) == set(range(10))


def test_resizing_keeps_the_orientation_and_order_of_digits(digits: Splits) -> None:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(1797)
    originals, labels = bunch.images[order][:360] / 16, bunch.target[order][:360]
    assert np.array_equal(digits.test.targets, labels)
    # Every seventh pixel, from the second, is close to the center of every second original pixel.
    small, large = originals[:, ::2, ::2], digits.test.inputs[:, 1::7, 1::7, 0]
    correlations = [np.corrcoef(one.ravel(), other.ravel())[0, 1] for one, other in zip(small, large, strict=True)]
    assert np.mean(correlations) > 0.9


def test_resizing_preserves_a_linear_slope() -> None:
    matrix = bundled._interpolation(8, 28)
    assert np.allclose(matrix.sum(axis=1), 1)
    resized = matrix @ np.arange(8.0)
    assert np.allclose(resized, np.clip((np.arange(28) + 0.5) * 8 / 28 - 0.5, 0, 7))


def test_the_splits_of_digits_are_disjoint(digits: Splits) -> None:
    train = {image.tobytes() for image in digits.train.inputs}
    assert len(train) == len(digits.train)
    assert not train & {image.tobytes() for image in digits.test.inputs}


def test_digits_are_the_same_in_each_load_and_process(
    digits: Splits, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    assert load("digits", Path("elsewhere")).digest == digits.dataset.digest
    imports = "from trainer.data import digits; from trainer.data.datasets import Dataset"
    program = f"{imports}; print(Dataset('digits', *digits.load()).digest)"
    assert run_python("-c", program).stdout == f"{digits.dataset.digest}\n"


def test_the_digest_depends_on_each_pixel_and_label(digits: Splits) -> None:
    images, labels = digits.train.inputs.copy(), digits.train.targets.copy()
    images[5, 5, 5] += 0.25
    labels[7] = (labels[7] + 1) % 10
    others = [
        Splits(Examples(images, digits.train.targets), digits.test),
        Splits(Examples(digits.train.inputs, labels), digits.test),
        Splits(digits.test, digits.train),
    ]
    assert len({other.dataset.digest for other in others} | {digits.dataset.digest}) == 4


# MNIST files.

NAMES = list(mnist.FILES)


def idx(array: npt.NDArray[np.uint8]) -> bytes:
    """Encode an array as IDX: a magic number with the number of dimensions, the sizes, the bytes."""
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def small_mnist() -> dict[str, npt.NDArray[np.uint8]]:
    random = np.random.default_rng(1)
    arrays = {}
    for split, count in (("train", 30), ("t10k", 12)):
        arrays[f"{split}-images-idx3-ubyte.gz"] = random.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{split}-labels-idx1-ubyte.gz"] = random.integers(0, 10, count, np.uint8)
    return arrays


@pytest.fixture(params=["gzipped", "plain"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, bytes], Path]:
    """A function that writes an MNIST file, gzipped or plain, and returns its path."""

    def one(name: str, content: bytes) -> Path:
        if request.param == "plain":
            path = tmp_path / name.removesuffix(".gz")
            path.write_bytes(content)
        else:
            path = tmp_path / name
            path.write_bytes(gzip.compress(content))
        return path

    return one


@pytest.fixture
def folder(write: Callable[[str, bytes], Path], tmp_path: Path) -> Path:
    """A folder with a small MNIST data set."""
    for name, array in small_mnist().items():
        write(name, idx(array))
    return tmp_path


def error_of(name: str, folder: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(name, folder)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_idx_files_are_read_and_scaled_to_1(folder: Path) -> None:
    found = Splits(*mnist.load(folder, download=False))
    arrays = list(small_mnist().values())
    assert np.array_equal(np.round(found.train.inputs[..., 0] * 255), arrays[0])
    assert np.array_equal(found.train.targets, arrays[1])
    assert np.array_equal(np.round(found.test.inputs[..., 0] * 255), arrays[2])
    assert np.array_equal(found.test.targets, arrays[3])
    assert found.dataset.signature.input_shape == (28, 28, 1)
    assert 0.0 <= found.train.inputs.min() < found.train.inputs.max() <= 1.0


@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_file_is_named(folder: Path, name: str) -> None:
    path = next(path for path in (folder / name, folder / name.removesuffix(".gz")) if path.exists())
    content = path.read_bytes()
    for length in (0, 3, 10, len(content) - 12, len(content) - 1):
        path.write_bytes(content[:length])
        assert str(path) in error_of("mnist", folder)


def test_a_gzipped_file_with_a_wrong_byte_is_named(tmp_path: Path) -> None:
    for name, array in small_mnist().items():
        (tmp_path / name).write_bytes(gzip.compress(idx(array)))
    path = tmp_path / NAMES[2]
    content = path.read_bytes()
    for position in range(12, len(content), 997):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0xFF]) + content[position + 1 :])
        assert str(path) in error_of("mnist", tmp_path)


WRONG_FILES = {
    "labels for images": (NAMES[0], idx(np.zeros(30, np.uint8)), "not an IDX file of bytes in 3 dimensions"),
    "images for labels": (NAMES[1], idx(np.zeros((30, 28, 28), np.uint8)), "not an IDX file of bytes in 1 dimensions"),
    "floats": (NAMES[1], struct.pack(">2If", 0x0D01, 1, 0.5), "not an IDX file of bytes"),
    "an HTML error page": (NAMES[2], b"<html>not found</html>", "not an IDX file"),
    "one byte too many": (NAMES[0], idx(np.zeros((30, 28, 28), np.uint8)) + b"\0", "declares 23536 bytes, but"),
    "one byte too few": (NAMES[0], idx(np.zeros((30, 28, 28), np.uint8))[:-1], "declares 23536 bytes, but"),
    "one image too few": (NAMES[0], idx(np.zeros((29, 28, 28), np.uint8)), "x has 29 examples but y has 30"),
    "one label too many": (NAMES[1], idx(np.zeros(31, np.uint8)), "x has 30 examples but y has 31"),
    "sizes beyond 64 bits": (NAMES[0], struct.pack(">4I", 0x0803, 2**31, 2**31, 4), "declares"),
}


@pytest.mark.parametrize(("name", "content", "reason"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_an_invalid_file_is_named_with_the_reason(
    folder: Path, write: Callable[[str, bytes], Path], name: str, content: bytes, reason: str
) -> None:
    path = write(name, content)
    message = error_of("mnist", folder)
    assert reason in message
    assert path.name in message


def test_an_empty_split_is_an_error(folder: Path, write: Callable[[str, bytes], Path]) -> None:
    write(NAMES[2], idx(np.zeros((0, 28, 28), np.uint8)))
    write(NAMES[3], idx(np.zeros(0, np.uint8)))
    assert "no examples" in error_of("mnist", folder)


def test_a_missing_file_is_named_without_download(tmp_path: Path) -> None:
    message = error_of("mnist", tmp_path)
    assert "train-images-idx3-ubyte" in message
    assert str(tmp_path) in message
    assert "add the file" in message
    assert list(tmp_path.iterdir()) == []


# Downloads from an HTTP server in this process.


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves a folder. The response for `cut` is truncated."""

    def do_GET(self) -> None:
        if self.path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"only this")
        else:
            super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        pass


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    handler = functools.partial(Server, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """The folder that `address` serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    return folder


@pytest.fixture
def address(served: Path) -> Iterator[str]:
    with serving(served) as url:
        yield url


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def test_a_file_with_the_expected_checksum_is_downloaded(served: Path, address: str, tmp_path: Path) -> None:
    (served / "file").write_bytes(b"content")
    path = tmp_path / "new" / "folder" / "file"
    mnist.fetch(address + "file", path, md5(b"content"))
    assert path.read_bytes() == b"content"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_with_a_different_checksum_is_discarded(served: Path, address: str, tmp_path: Path) -> None:
    (served / "file").write_bytes(b"changed")
    path = tmp_path / "new" / "file"
    with pytest.raises(ConfigurationError, match=f"{address}file.*{md5(b'changed')}.*{md5(b'content')}"):
        mnist.fetch(address + "file", path, md5(b"content"))
    assert list(path.parent.iterdir()) == []


def test_a_truncated_download_is_named(address: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with pytest.raises(ConfigurationError, match=f"{path} is absent and cannot be fetched from {address}cut"):
        mnist.fetch(address + "cut", path, md5(b""))
    assert list(path.parent.iterdir()) == []


def test_an_unreachable_server_is_named(served: Path, tmp_path: Path) -> None:
    with serving(served) as gone:
        pass
    with pytest.raises(ConfigurationError, match=f"cannot be fetched from {gone}file .*refused"):
        mnist.fetch(gone + "file", tmp_path / "new" / "file", md5(b""))


def test_missing_mnist_files_are_downloaded_once(
    served: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {name: gzip.compress(idx(array)) for name, array in small_mnist().items()}
    for name, content in contents.items():
        (served / name).write_bytes(content)
    monkeypatch.setattr(mnist, "ADDRESS", address)
    monkeypatch.setattr(mnist, "FILES", {name: md5(content) for name, content in contents.items()})
    first = load("mnist", tmp_path / "data", download=True)
    assert {path.name for path in (tmp_path / "data").iterdir()} == set(contents)
    for path in served.iterdir():
        path.unlink()
    assert load("mnist", tmp_path / "data", download=True).digest == first.digest


# Custom .npz folders.


def write_npz(folder: Path, name: str, x: Any, y: Any) -> Path:
    np.savez(folder / name, x=x, y=y)
    return folder / name


def images(count: int, *shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(count).integers(0, 256, (count, *shape), np.uint8)


def labels(count: int) -> npt.NDArray[np.int64]:
    return np.arange(count) % 5


def test_files_named_test_are_the_held_out_split(tmp_path: Path) -> None:
    write_npz(tmp_path, "part1.npz", images(20, 6, 4), labels(20))
    write_npz(tmp_path, "part2.npz", images(10, 6, 4), labels(10))
    write_npz(tmp_path, "test.npz", images(7, 6, 4), labels(7))
    found = Splits(*npz.load(tmp_path))
    assert found.dataset.signature.input_shape == (6, 4, 1)
    assert found.dataset.signature.classes == 5
    expected = np.concatenate([images(20, 6, 4), images(10, 6, 4)])
    assert np.array_equal(np.round(found.train.inputs[..., 0] * 255), expected)
    assert np.array_equal(np.round(found.test.inputs[..., 0] * 255), images(7, 6, 4))
    assert np.array_equal(found.test.targets, labels(7))


def test_without_a_test_file_a_tenth_is_held_out(tmp_path: Path) -> None:
    pixels = np.arange(50, dtype=np.float64).reshape(50, 1) / 50
    write_npz(tmp_path, "all.npz", pixels, np.arange(50))
    found = Splits(*npz.load(tmp_path))
    assert (len(found.train), len(found.test)) == (45, 5)
    examples = np.concatenate([found.train.inputs, found.test.inputs])
    assert np.array_equal(np.sort(examples, axis=0), pixels.astype(np.float32))  # each example once
    for split in (found.train, found.test):
        assert np.allclose(split.inputs[:, 0] * 50, split.targets)  # each example with its label
    assert load("npz", tmp_path).digest == found.dataset.digest


def test_bytes_are_scaled_and_floats_are_kept(tmp_path: Path) -> None:
    write_npz(tmp_path, "train.npz", np.full((10, 3), 255, np.uint8), labels(10))
    write_npz(tmp_path, "test.npz", np.full((10, 3), -7.5), labels(10))
    found = Splits(*npz.load(tmp_path))
    assert (found.train.inputs == 1.0).all()
    assert (found.test.inputs == -7.5).all()


def test_inputs_of_an_unusual_scale_give_a_warning() -> None:
    labels = np.zeros(2, np.int32)

    def warning(largest: float) -> str | None:
        examples = Examples({"a": np.zeros((2, 3), np.float32), "b": np.full((2, 3), -largest, np.float32)}, labels)
        return Dataset("mine", examples, examples).warning

    assert warning(255.0) == (
        "b: values of up to 255, but most models learn from values near 1; scale them, unless the model does"
    )
    assert warning(1.0) is None


def test_a_folder_without_data_is_named(tmp_path: Path) -> None:
    assert str(tmp_path) in error_of("npz", tmp_path)
    write_npz(tmp_path, "test.npz", images(10, 4, 4), labels(10))
    assert "no .npz file to train on" in error_of("npz", tmp_path)


def test_too_few_examples_to_hold_some_out_are_an_error(tmp_path: Path) -> None:
    write_npz(tmp_path, "few.npz", images(9, 4, 4), labels(9))
    assert f"{tmp_path} contains 9 examples" in error_of("npz", tmp_path)


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        (images(20, 4, 4), labels(19), "x has 20 examples but y has 19"),
        (images(20), labels(20), "x: arrays of numbers [n, height, width, channels], "),
        (images(20, 4).astype(str), labels(20), "x: arrays of numbers "),
        (images(20, 4).astype(np.int64) << 31, labels(20), "x: integers of 32 bits were expected"),
        (images(20, 4), labels(20).astype(str), "y: class labels, integers [n], or values"),
        (images(20, 4), labels(20) - 1, "y: labels from 0 were expected, not -1"),
        (images(20, 4), labels(20).reshape(20, 1, 1), "y: class labels, "),
        (images(0, 4), labels(0), "no examples"),
        (np.full((20, 4), np.nan), labels(20), "x: some values are not finite"),
        (images(20, 4), np.full(20, np.nan), "y: some values are not finite"),
        (np.full((20, 4), np.inf), labels(20), "not finite"),
        (np.array([object()] * 20), labels(20), "damaged or not .npz"),
    ],
)
def test_invalid_arrays_are_an_error(tmp_path: Path, x: Any, y: Any, reason: str) -> None:
    path = write_npz(tmp_path, "bad.npz", x, y)
    message = error_of("npz", tmp_path)
    assert reason in message
    assert str(path) in message


@pytest.mark.parametrize("absent", ["x", "y"])
def test_a_file_with_a_missing_array_is_named(tmp_path: Path, absent: str) -> None:
    arrays: dict[str, Any] = {"x": images(20, 4), "y": labels(20)}
    del arrays[absent]
    np.savez(tmp_path / "half.npz", **arrays)
    assert f"half.npz: the array {absent} is missing" in error_of("npz", tmp_path)


def test_files_may_have_several_inputs_numbers_of_words_and_values_to_predict(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "words": np.arange(80).reshape(20, 4),
        "age": np.linspace(0, 9, 20)[:, None],
        "y": np.linspace(0, 1, 20),
    }
    np.savez(tmp_path / "all.npz", **arrays)
    found = Splits(*npz.load(tmp_path))
    signature = found.dataset.signature
    assert {name: str(spec) for name, spec in signature.inputs.items()} == {"age": "float32 [1]", "words": "int32 [4]"}
    assert signature.classes is None
    assert signature.input_shape is None
    assert np.allclose(found.train.inputs["words"][:, 0] / 76, found.train.targets)
    assert found.train.targets.dtype == np.float32


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"x": images(20, 5), "y": labels(20)}, "an example is float32 [5], but in a.npz it is float32 [4]"),
        ({"x": images(20, 4), "y": labels(20) / 2}, "an example is float32 [], but in a.npz it is int32 []"),
        ({"z": images(20, 4), "y": labels(20)}, "it has the arrays z, y, but a.npz has x, y"),
    ],
)
def test_files_with_different_arrays_are_an_error(tmp_path: Path, other: dict[str, Any], reason: str) -> None:
    write_npz(tmp_path, "a.npz", images(20, 4), labels(20))
    np.savez(tmp_path / "b.npz", **other)
    assert f"b.npz: {reason}" in error_of("npz", tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write_npz(tmp_path, "bad.npz", images(20, 4, 4), labels(20))
    content = path.read_bytes()
    broken = content[:300] + bytes([content[300] ^ 0xFF]) + content[301:]
    for damaged in (b"", b"words", content[:-30], content[: len(content) // 2], broken):
        path.write_bytes(damaged)
        assert f"{path}: the file is damaged" in error_of("npz", tmp_path)


def test_a_single_array_named_npz_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "bad.npz").open("wb") as file:
        np.save(file, images(20, 4, 4))
    assert "bad.npz" in error_of("npz", tmp_path)


def test_images_of_several_shapes_are_an_error(tmp_path: Path) -> None:
    write_npz(tmp_path, "a.npz", images(20, 4, 4), labels(20))
    write_npz(tmp_path, "test.npz", images(20, 5, 4), labels(20))
    expected = "an example is float32 {}, but in a.npz it is float32 [4, 4, 1]"
    assert f"test.npz: {expected.format([5, 4, 1])}" in error_of("npz", tmp_path)
    write_npz(tmp_path, "b.npz", images(20, 4, 5), labels(20))
    assert f"b.npz: {expected.format([4, 5, 1])}" in error_of("npz", tmp_path)
