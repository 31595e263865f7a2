"""The fixtures of the rows."""

import gc
from collections.abc import Iterator

import pytest

from tests.conformance.runner import Reference
from tests.processes.conftest import trainer

__all__ = ["reference", "trainer"]


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    """The process of plain Keras."""
    gc.freeze()  # Keras collects for each model, and takes half a second
    process = Reference()
    yield process
    process.end()
    gc.unfreeze()  # Hypothesis, which pytest imports at the end, asks who refers to an object
