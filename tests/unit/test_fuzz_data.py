"""Any IDX or npz file gives examples, or is refused in a sentence, whatever its header promises."""

import gzip
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import MEMORY, examples, may_refuse, mutations
from trainer.data import datasets
from trainer.data.context import DataContext

pytestmark = pytest.mark.slow


def idx(*dimensions: int, content: bytes = b"") -> bytes:
    """An IDX file of bytes that declares these dimensions."""
    return struct.pack(f">I{len(dimensions)}I", 0x0800 + len(dimensions), *dimensions) + content


def npz(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    """A zip file with right checksums, so that what is wrong is in its members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def npy(header: str, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    encoded = header.encode("utf-8", "replace")[:65_000] + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(encoded)) + encoded + content


IMAGES = idx(2, 2, 2, content=bytes(8))
LABELS = idx(2, content=bytes(2))
GOOD = npz(x=np.zeros((12, 3), np.float32), y=np.arange(12))
sizes = st.integers(0, 3) | st.sampled_from([2**31, 2**32 - 1])
idx_files = (
    mutations([IMAGES, LABELS])
    | st.builds(
        lambda shape, content: idx(*shape, content=content), st.lists(sizes, min_size=1, max_size=4), st.binary()
    )
    | st.binary(max_size=40)
)


def gzip_bomb() -> bytes:
    """A quarter of a gigabyte of zeros, after the header of two images."""
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb") as target:
        target.write(IMAGES)
        for _ in range(2**4):
            target.write(bytes(2**24))
    return file.getvalue()


def load(name: str, folder: Path, memory: int = MEMORY) -> None:
    with may_refuse(memory):
        datasets.load(name, None, False, DataContext(str(folder), 1, 0, 0, 1))


def load_mnist(folder: Path, images: bytes, labels: bytes = LABELS, suffix: str = "", memory: int = MEMORY) -> None:
    for path in folder.glob("*"):
        path.unlink()
    for split in ("train", "t10k"):
        (folder / f"{split}-images-idx3-ubyte{suffix}").write_bytes(images)
        (folder / f"{split}-labels-idx1-ubyte{suffix}").write_bytes(labels)
    load("mnist", folder, memory)


def load_npz(folder: Path, *files: bytes) -> None:
    for path in folder.glob("*"):
        path.unlink()
    for number, content in enumerate(files):
        (folder / f"{number}.npz").write_bytes(content)
    load("npz", folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@examples(200)
@given(idx_files | st.just(IMAGES), idx_files | st.just(LABELS), st.booleans())
def test_idx_files(folder: Path, images: bytes, labels: bytes, compressed: bool) -> None:
    pack = gzip.compress if compressed else bytes
    load_mnist(folder, pack(images), pack(labels), ".gz" if compressed else "")


@examples(100)
@given(mutations([gzip.compress(IMAGES)]))
def test_damaged_gzip_files(folder: Path, images: bytes) -> None:
    load_mnist(folder, images, gzip.compress(LABELS), ".gz")


def test_a_file_that_is_larger_than_its_header_declares_is_not_unpacked(folder: Path) -> None:
    load_mnist(folder, gzip_bomb(), gzip.compress(LABELS), ".gz", memory=2**27)


dtypes = st.sampled_from(
    [
        "<f4",
        "|u1",
        "<i8",
        "<f2",
        "|O",
        "|b1",
        "<U3",
        "<M8[s]",
        "|V2147483647",
        "<f16",
        ">i2",
        "<c8",
        "",
        "x",
        "<f4, <f4",
    ]
)
extents = st.integers(-1, 4) | st.sampled_from([12, 2**31, 2**40, 2**63, 2**64, 10**400])
headers = (
    st.builds(
        lambda dtype, shape, fortran: repr({"descr": dtype, "fortran_order": fortran, "shape": tuple(shape)}),
        dtypes | st.just([("a", "<f4")]),
        st.lists(extents, max_size=4) | st.just([1] * 70),
        st.booleans() | st.none(),
    )
    | st.text(max_size=20)
    | st.sampled_from(["(" * 5000, "{'descr': " + "[" * 300, "{}", "x" * 20_000, "1", "{'descr': '<f4'}"])
)
members = st.builds(
    npy,
    headers,
    st.binary(max_size=64) | st.just(bytes(96)),
    st.sampled_from([b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"]),
)
names = st.sampled_from(["x.npy", "y.npy", "x", "y", "z.npy", "../x.npy", "y.npy/"]) | st.text(min_size=1, max_size=5)


@examples(200)
@given(
    st.dictionaries(names, members | st.binary(max_size=64), max_size=3).map(zipped)
    | st.builds(lambda x, y: zipped({"x.npy": x, "y.npy": y}), members, members)
    | mutations([GOOD, zipped({"x.npy": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}", bytes(4))})])
    | st.binary(max_size=64),
    st.booleans(),
)
@pytest.mark.filterwarnings("ignore:.*created on Python 2:UserWarning", "ignore:Duplicate name:UserWarning")
def test_npz_files(folder: Path, content: bytes, beside_a_good_one: bool) -> None:
    load_npz(folder, *[GOOD] * beside_a_good_one, content)


arrays = st.sampled_from(
    [
        np.zeros((12, 3), np.float32),
        np.arange(12),
        np.full((12, 2), np.nan),
        np.full(12, 2**63, np.uint64),
        np.full((12, 1), 1e300),
        np.zeros((12, 0)),
        np.zeros((0, 3)),
        np.zeros(()),
        np.zeros((12, 2, 2, 1), np.uint8),
        np.zeros((12, 1, 1, 1, 1, 1), np.int16),
        np.array(["a"] * 12),
        np.zeros(12, "M8[s]"),
        np.zeros(12, bool),
        np.full(12, -1),
        np.full((12, 1), np.longdouble(1)),
    ]
)


@examples(150)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["x", "y", "age", "images", "y y", "0", "é"]), arrays), min_size=1, max_size=2
    )
)
def test_arrays(folder: Path, files: list[dict[str, object]]) -> None:
    load_npz(folder, *[npz(**each) for each in files])
