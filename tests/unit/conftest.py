"""The real things that unit tests share: TensorFlow servers in this process, addresses, and the `trainer` command."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import numpy.typing as npt
import pytest

from tests.ports import free_ports
from trainer.cluster.spec import Cluster, Task
from trainer.config import Settings
from trainer.data.datasets import Examples
from trainer.graph import replica
from trainer.graph.replica import Replica
from trainer.models import mlp
from trainer.tensorflow import tf1
from trainer.training import server
from trainer.training.threads import Threads

# The machine may be busy, and an example's time says nothing here.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")

THREADS = Threads(1, 4)

SIZE = 20
_random = np.random.default_rng(0)
EXAMPLES = Examples(_random.random((10 * SIZE, 784), np.float32), _random.integers(0, 10, 10 * SIZE, np.int32))
"""Ten batches, by number from 0."""


PARAMETERS = mlp.parameters((784,), 10, 100)


def pick(number: int) -> list[int]:
    """Which examples are the batch of a number."""
    return list(range(number * SIZE, (number + 1) * SIZE))


@dataclass(frozen=True)
class Servers:
    """A cluster of TensorFlow servers in this process: two parameter servers and two workers."""

    ps: tuple[str, ...]
    workers: tuple[str, ...]
    running: Mapping[Task, Any]

    def member(self, worker: int, workers: int = 2, ps: int = 2) -> Cluster:
        """A run of the first so many workers and parameter servers, as this worker sees it."""
        return Cluster(Task("worker", worker), (), self.workers[:workers], self.ps[:ps])

    def session(self, graph: Any, worker: int = 0) -> contextlib.AbstractContextManager[Any]:
        """A session as this worker opens it."""
        return server.open_session(graph, self.running[Task("worker", worker)], THREADS, "/job:ps")


@pytest.fixture(scope="session")
def _servers() -> Servers:
    """TensorFlow cannot stop a server, so all tests share these."""
    addresses = [f"localhost:{port}" for port in free_ports(4)]
    ps, workers = tuple(addresses[:2]), tuple(addresses[2:])
    tasks = [Task("ps", 0), Task("ps", 1), Task("worker", 0), Task("worker", 1)]
    return Servers(ps, workers, {task: server.start(Cluster(task, (), workers, ps), THREADS) for task in tasks})


@pytest.fixture
def servers(_servers: Servers) -> Iterator[Servers]:
    """The shared servers, which forget every variable and queue after each test."""
    yield _servers
    tf1.Session.reset(_servers.running[Task("worker", 0)].target)


Save = Callable[[Replica, Any], str]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Gives the path of a new checkpoint of a chief's run."""
    numbers = itertools.count()

    def run(chief: Replica, session: Any) -> str:
        path = str(tmp_path / f"saved-{next(numbers)}")
        return str(chief.saver.save(session, Path(path)))

    return run


Values = dict[str, npt.NDArray[Any]]


def values_in(checkpoint: str) -> Values:
    """All arrays of a checkpoint, by name."""
    reader = tf1.train.load_checkpoint(checkpoint)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.fixture
def values(save: Save) -> Callable[[Replica, Any], Values]:
    """Gives all values of a chief's run, whole and by name, by saving and reading a checkpoint."""
    return lambda chief, session: values_in(save(chief, session))


def assert_close(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.allclose(found[name], value, rtol=1e-3, atol=2e-5), name


Alone = Callable[..., Values]


@pytest.fixture
def alone(values: Callable[[Replica, Any], Values]) -> Alone:
    """Gives the values that a single process reaches from a cluster's checkpoint by steps of one or more batches."""

    def train(start: str, *steps: tuple[int, ...]) -> Values:
        settings = Settings(batch_size=SIZE * len(steps[0]), steps_per_execution=1)
        found = replica.build(settings, None, mlp, PARAMETERS, EXAMPLES, 0, "this run")
        (picks,) = found.batches.feeds
        with tf1.Session(graph=found.graph) as session:
            found.saver.restore(session, start)
            found.batches.begin(session)
            for batches in steps:
                together = [example for number in batches for example in pick(number)]
                session.run(found.replication.executions[1].step, {picks: [together]})
            return values(found, session)

    return train


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs this Python with these arguments, in an empty folder and an environment without settings of a trainer."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        own = {k: v for k, v in os.environ.items() if k != "TF_CONFIG" and not k.startswith(("TRAINER_", "TF_CPP"))}
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**own, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


def address_of(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def answering() -> Iterator[str]:
    """An address at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield address_of(listener)


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address at which nobody listens; it is kept so that nobody else does meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield address_of(bound)
