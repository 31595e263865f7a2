"""Fixtures for tests that start real TensorFlow processes. They fail a test that leaves one running."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.busy_loops import busy_loops
from hack.ports import free_ports
from tests.processes.object_stores import ObjectStore
from tests.processes.trainers import SETTINGS, WITHOUT_EVALUATIONS, Trainer
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


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run of a single process. All pytest workers share it: read it, or copy it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    run = folder / "trained"
    with (folder / "trained.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (run / "result.json").exists():
            place = tmp_path_factory.mktemp("training")
            starter = Trainer(place)
            try:
                code, output = starter.run("train", "--train_dir=run", *SETTINGS, "800", WITHOUT_EVALUATIONS)
            finally:
                starter.end()
            assert code == 0, output
            shutil.move(place / "run", run)
    return run


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
