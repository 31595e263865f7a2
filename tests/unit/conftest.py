"""Shared fixtures: TensorFlow servers in this process, addresses, and a Python subprocess."""

import contextlib
import gc
import itertools
import logging
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

from hack.ports import free_ports
from tests.fuzzing import examples
from tests.unit.data_command import DataCommand
from trainer.checkpoint.table_files import StoredArrays
from trainer.cluster import peers
from trainer.cluster.spec import Cluster, Task
from trainer.config import Settings
from trainer.data.examples import Examples
from trainer.graph import replica
from trainer.graph.replica import Replica
from trainer.kernels import library
from trainer.models import mlp
from trainer.models.ops_model import OpsModel
from trainer.telemetry.metrics import Metrics
from trainer.tensorflow import tf1
from trainer.training import server
from trainer.training.context import TaskContext
from trainer.training.server import TaskServer
from trainer.training.threads import Threads
from trainer.training.train import train
from trainer.training.watch.watchdog import Watchdog

hypothesis.settings.register_profile("same examples each time", examples(50))
hypothesis.settings.load_profile("same examples each time")

THREADS = Threads(1, 4)

SIZE = 20
_random = np.random.default_rng(0)
EXAMPLES = Examples(_random.random((10 * SIZE, 784), np.float32), _random.integers(0, 10, 10 * SIZE, np.int32))
"""Ten batches, numbered from 0."""

MLP = OpsModel("mlp", mlp, 100)
PARAMETERS = mlp.parameters((784,), 10, 100)


def pick(number: int) -> list[int]:
    """Indices of the examples in the batch with this number."""
    return list(range(number * SIZE, (number + 1) * SIZE))


@dataclass(frozen=True)
class Servers:
    """A cluster of TensorFlow servers in this process: two parameter servers and two workers."""

    ps: tuple[str, ...]
    workers: tuple[str, ...]
    running: Mapping[Task, TaskServer]

    def member(self, worker: int, workers: int = 2, ps: int = 2) -> Cluster:
        """The cluster of the first `workers` workers and `ps` parameter servers, with this worker as the task."""
        return Cluster(Task("worker", worker), (), self.workers[:workers], self.ps[:ps])

    def session(self, graph: Any, worker: int = 0) -> contextlib.AbstractContextManager[Any]:
        """Open a session on this worker's server."""
        return self.running[Task("worker", worker)].session(graph, "/job:ps")


@pytest.fixture(scope="session", autouse=True)
def _freeze_imported_objects() -> None:
    """Keep what was imported out of garbage collections: Keras collects for each model, and takes half a second."""
    gc.freeze()


@pytest.fixture(scope="session")
def _servers() -> Servers:
    """TensorFlow servers cannot be stopped, so all tests share them."""
    addresses = [f"localhost:{port}" for port in free_ports(4)]
    ps, workers = tuple(addresses[:2]), tuple(addresses[2:])
    tasks = [Task("ps", 0), Task("ps", 1), Task("worker", 0), Task("worker", 1)]
    return Servers(ps, workers, {task: server.start(Cluster(task, (), workers, ps), THREADS) for task in tasks})


@pytest.fixture
def servers(_servers: Servers) -> Iterator[Servers]:
    """The shared servers. Their variables and queues are reset after each test."""
    yield _servers
    tf1.Session.reset(_servers.running[Task("worker", 0)].target)


@contextlib.contextmanager
def listening(note: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """Passes each record that the trainer logs to a function."""
    handler = logging.Handler()
    handler.emit = note  # type: ignore[method-assign, assignment]
    logger = logging.getLogger("trainer")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def log_lines() -> Iterator[list[str]]:
    """The messages that the trainer logs."""
    messages: list[str] = []
    with listening(lambda record: messages.append(record.getMessage())):
        yield messages


@pytest.fixture
def task_context() -> Callable[..., TaskContext]:
    """A function that makes the context of a task, whose watchdog is not started."""

    def make(settings: Settings, cluster: Cluster | None = None) -> TaskContext:
        watchdog = Watchdog(settings.stall_seconds, settings.grace_seconds, save_seconds=1)
        role, index = (cluster.task.role, cluster.task.index) if cluster else ("single", 0)
        return TaskContext(settings, cluster, watchdog, Metrics(role, index))

    return make


Save = Callable[[Replica, Any], str]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """A function that saves a checkpoint of a chief and returns its path."""
    numbers = itertools.count()

    def run(chief: Replica, session: Any) -> str:
        path = str(tmp_path / f"saved-{next(numbers)}")
        return str(chief.saver.save(session, Path(path)))

    return run


Values = dict[str, npt.NDArray[Any]]


def values_in(checkpoint: str) -> Values:
    """All arrays of a checkpoint, by name."""
    arrays = StoredArrays(checkpoint)
    return {name: arrays.whole(name) for name in arrays.names}


@pytest.fixture
def values(save: Save) -> Callable[[Replica, Any], Values]:
    """A function that returns the values of a chief by name, through a checkpoint."""
    return lambda chief, session: values_in(save(chief, session))


def assert_close(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.allclose(found[name], value, rtol=1e-3, atol=2e-5), name


Alone = Callable[..., Values]


@pytest.fixture
def alone(values: Callable[[Replica, Any], Values]) -> Alone:
    """A function that trains a single process from a checkpoint, with one or more batches per step."""

    def train(start: str, *steps: tuple[int, ...], model: Any = MLP, parameters: Any = PARAMETERS) -> Values:
        settings = Settings(batch_size=SIZE * len(steps[0]), steps_per_execution=1)
        found = replica.build(settings, None, model, parameters, EXAMPLES, 0, "this run")
        (picks,) = found.batches.feeds(1)
        with tf1.Session(graph=found.graph) as session:
            found.saver.restore(session, start)
            found.batches.begin(session)
            for batches in steps:
                indices = [example for number in batches for example in pick(number)]
                session.run(found.replication.executions[1].step, {picks: [indices]})
            return values(found, session)

    return train


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run this Python with these arguments, in an empty folder and without trainer settings in the environment."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        inherited = {
            k: v for k, v in os.environ.items() if k != "TF_CONFIG" and not k.startswith(("TRAINER_", "TF_CPP"))
        }
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**inherited, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,  # for a machine that does other work too
        )

    return run


def address_of(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address that drops packets: a listener with a full queue that accepts no connection."""
    monkeypatch.setattr(peers, "PROBE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        yield address_of(listener)
        for each in waiting:
            each.close()


@pytest.fixture
def answering() -> Iterator[str]:
    """An address with a listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield address_of(listener)


GRPC_SERVER = """
import concurrent.futures, grpc
server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
"""


@dataclass(frozen=True)
class GrpcServer:
    """A process with a gRPC server."""

    process: subprocess.Popen[str]
    address: str


@pytest.fixture
def grpc_server() -> Iterator[GrpcServer]:
    """A gRPC server that a test may kill."""
    with subprocess.Popen([sys.executable, "-c", GRPC_SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield GrpcServer(process, f"127.0.0.1:{process.stdout.readline().strip()}")
        process.kill()


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address without a listening socket. It stays bound, so that no other process uses it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield address_of(bound)


@pytest.fixture
def data(capsys: pytest.CaptureFixture[str]) -> DataCommand:
    """Runs `trainer data` in this process."""
    return DataCommand(capsys)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The path of a table that does not exist yet."""
    return str(tmp_path / "data.lance")


@pytest.fixture(params=["row_ops.cc", "TensorFlow"])
def row_ops(request: pytest.FixtureRequest) -> Iterator[None]:
    """Rows of tables are updated by the ops in C++, if they are compiled, and then by those of TensorFlow."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "TensorFlow":
            patch.setenv(library.OFF, "0")
        library.load.cache_clear()
        if request.param == "row_ops.cc" and library.load() is None:
            pytest.skip("there is no compiler of C++")
        yield
    library.load.cache_clear()


def train_alone(settings: Settings) -> None:
    """Train in this process alone, to the end."""
    assert train(TaskContext(settings, None, Watchdog(60, 1, 1), Metrics("single", 0)))
