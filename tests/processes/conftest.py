"""Fixtures for tests that start real TensorFlow processes. They fail a test that leaves one running."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.busy_loops import busy_loops
from hack.ports import free_ports
from tests.processes.object_stores import ObjectStore
from tests.processes.trainers import Trainer
from trainer.training.threads import usable_cpus


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    """Starts trainers in a temporary folder; fails the test if it leaves a process running."""
    starter = Trainer(tmp_path)
    try:
        yield starter
        left = [" ".join(process.cmdline()) for process in starter.processes()]
        assert not left, f"these processes still run: {left}"
    finally:
        starter.end()


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Runs a busy loop on each CPU during the test."""
    with busy_loops(usable_cpus()):
        yield


@pytest.fixture
def hosts() -> Callable[[int, int], list[str]]:
    """Returns the classic flags for some parameter servers and workers on free ports of this machine."""

    def flags(ps: int, workers: int) -> list[str]:
        addresses = [f"localhost:{port}" for port in free_ports(ps + workers)]
        return [f"--ps_hosts={','.join(addresses[:ps])}", f"--worker_hosts={','.join(addresses[ps:])}"]

    return flags


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    """A running object store."""
    server = ObjectStore(tmp_path)
    server.start()
    yield server
    server.stop()
