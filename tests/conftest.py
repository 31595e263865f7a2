"""Fixtures for all tests."""

import gzip
import signal
import struct
from pathlib import Path

import numpy as np
import pytest

# A shell ignores SIGINT for what it starts with `&`, and `nohup` ignores SIGHUP. The programs that tests start would
# inherit that; they do not inherit a handler.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Helm or the object store, which Go builds: `make test` runs it last."""
    for item in items:
        if "tests/chart/" in item.nodeid or "store" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.go)


MNIST = Path(__file__).parents[2] / "shared" / "data" / "mnist"
"""The folder of the real MNIST test set beside a checkout; the project does not include it."""


@pytest.fixture
def mnist_folder(tmp_path: Path) -> Path:
    """Write the four MNIST files from the real test set: 9,000 images to train on, 1,000 held out."""
    if not MNIST.is_dir():
        pytest.skip(f"the real MNIST files are not at {MNIST}")
    folder = tmp_path / "mnist"
    folder.mkdir()
    for kind, header, dimensions in (("images-idx3", 16, 3), ("labels-idx1", 8, 1)):
        content = gzip.decompress((MNIST / f"t10k-{kind}-ubyte.gz").read_bytes())
        (count, *rest) = struct.unpack(f">{dimensions}I", content[4:header])
        items = np.frombuffer(content, np.uint8, offset=header).reshape(count, *rest)
        for split, part in (("train", items[:9000]), ("t10k", items[9000:])):
            start = content[:4] + struct.pack(f">{dimensions}I", len(part), *rest)
            (folder / f"{split}-{kind}-ubyte.gz").write_bytes(gzip.compress(start + part.tobytes()))
    return folder
