"""A program of test_devices.py: replicas with four devices end with the values of others with larger batches.

An epoch of 200 examples has a step of eight full batches, and one in which most devices have no example left.

It runs in its own process, because TensorFlow's logical devices cannot be changed later. On a machine with a GPU,
the devices are parts of it; `python -m tests.unit.on_devices synchronous` runs a case there.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from hack.ports import free_ports
from tests.unit.conftest import EXAMPLES, MLP, PARAMETERS, SIZE, THREADS, Values, assert_close, values_in
from trainer.cluster.spec import Cluster, Task
from trainer.config import Settings
from trainer.data.examples import Examples
from trainer.graph import devices, replica
from trainer.graph.replication.lease_table import UNLIMITED
from trainer.models.keras_model import KerasModel
from trainer.tensorflow import tf, tf1
from trainer.training import server
from trainer.training.server import TaskServer

DEVICES, WORKERS, ROUNDS = 4, 2, 3
GPUS = tf.config.list_physical_devices("GPU")
CASES: Mapping[str, Mapping[str, Any]] = {
    "synchronous": {"sync_replicas": True},
    "asynchronous": {"sync_replicas": False, "staleness_aware": False},
    "local": {"sync_replicas": True, "local_steps": 2, "steps_per_execution": 2},
    "allreduce": {"strategy": "allreduce"},
    "tables": {"sync_replicas": True},
}
IDS = Examples(np.random.default_rng(1).integers(0, 50, (len(EXAMPLES), 4)).astype(np.int32), EXAMPLES.targets)


def embedding() -> Any:
    """A model with two tables, one of them read twice; the devices read some rows in common."""
    import keras

    # With names of their own, as each replica makes the model.
    ids = keras.Input((4,), dtype="int32")
    # Each of several servers would draw other uniform values than one.
    first = keras.layers.Embedding(50, 4, "glorot_uniform", name="first")
    second = keras.layers.Embedding(60, 3, "glorot_uniform", name="second")
    rows = [first(ids), second(ids[:, :3]), first(49 - ids)]
    flat = keras.layers.Concatenate()([keras.layers.Flatten()(each) for each in rows])
    network = keras.Model(ids, keras.layers.Dense(10, name="out")(flat))
    network.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return network


class Trained:
    """Replicas that train in this process."""

    def __init__(self, case: str) -> None:
        """Start the servers of a cluster."""
        self._case, self._settings = case, CASES[case]
        servers = {"allreduce": 0, "tables": 2}.get(case, 1)
        ps = tuple(f"localhost:{port}" for port in free_ports(servers))
        workers = tuple(f"localhost:{port}" for port in free_ports(WORKERS))
        tasks = [Task("ps", index) for index in range(len(ps))] + [Task("worker", index) for index in range(WORKERS)]
        self._clusters = {task: Cluster(task, (), workers, ps) for task in tasks}
        self._servers = {task: server.start(cluster, THREADS) for task, cluster in self._clusters.items()}

    def alone(self, steps: int = ROUNDS) -> Values:
        """The values after training by one process, with the batches of all devices of all workers in each step."""
        made = self._build(None, WORKERS * DEVICES, 1)
        with TaskServer(THREADS).session(made.graph) as session:
            session.run(made.initialize)
            made.batches.begin(session)
            for step in range(steps):
                feeds = dict(zip(made.batches.feeds(1), made.batches.take(1, step), strict=True))
                session.run(made.replication.executions[1].step, feeds)
            return values_in(str(made.saver.save(session, Path("alone"))))

    def by(self, count: int) -> Values:
        """The values after training by workers with this number of devices, which share the same batches."""
        shared = DEVICES // count
        steps = self._settings.get("local_steps", 1)
        with contextlib.ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(WORKERS + 1))
            found, sessions = [], []
            for index in range(WORKERS):
                task = Task("worker", index)
                found.append(self._build(self._clusters[task], shared, count))
                sessions.append(stack.enter_context(self._servers[task].session(found[-1].graph, "/job:ps")))
            chief = found[0]
            for index, (made, session) in enumerate(zip(found, sessions, strict=True)):
                if index == 0 or self._case == "allreduce":
                    session.run(made.initialize)
                if index == 0 and made.leases:
                    made.leases.reset(session, 0, UNLIMITED)
                made.batches.begin(session, leases=made.leases.own(session) if made.leases else None)
            sessions[0].run(chief.replication.lead)
            joined = [pool.submit(each.run, made.replication.join) for made, each in zip(found, sessions, strict=True)]
            _ = [each.result(60) for each in joined]
            for number in range(ROUNDS):
                running = []
                for made, session in zip(found, sessions, strict=True):
                    leases = made.leases
                    reported = {leases.done: number * steps, leases.step: -1} if leases else {}
                    feeds = dict(zip(made.batches.feeds(steps), made.batches.take(steps, number * steps), strict=True))
                    running.append(pool.submit(session.run, made.replication.executions[steps].step, feeds | reported))
                    if self._case == "asynchronous":
                        running[-1].result(60)
                if chief.replication.updates:
                    running.append(pool.submit(sessions[0].run, chief.replication.updates[steps]))
                for each in as_completed(running, 60):
                    each.result()
            return values_in(str(chief.saver.save(sessions[0], Path(f"by-{count}"))))

    def forget(self) -> None:
        """Reset the servers' variables and queues."""
        tf1.Session.reset(self._servers[Task("worker", 0)].target)

    def _build(self, cluster: Cluster | None, batches: int, count: int) -> Any:
        settings = dict(self._settings) if cluster else {}
        chosen = Settings(**{"steps_per_execution": 1, "batch_size": batches * SIZE, "train_steps": 100, **settings})
        model: Any = MLP
        parameters, examples = PARAMETERS, EXAMPLES
        if self._case == "tables":
            model, examples = KerasModel("mine", embedding, 0, None, table_rows=50), IDS
            parameters = model.parameters(examples.signature)
        with mock.patch.object(devices, "count_cpus", return_value=count):
            gpus = count if GPUS else 0
            return replica.build(chosen, cluster, model, parameters, examples, gpus, "this run")


def main(case: str) -> None:
    """Compare a case."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    part = tf.config.LogicalDeviceConfiguration(memory_limit=1024) if GPUS else tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(GPUS[0] if GPUS else cpu, [part] * DEVICES)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    trained = Trained(case)
    runs: dict[str, Callable[[], Values]] = {"one device": lambda: trained.by(1)}
    if case in ("synchronous", "allreduce", "tables"):
        runs = {"one process": trained.alone, **runs}
    found = trained.by(DEVICES)
    for run in runs.values():
        trained.forget()
        expected = run()
        assert_close(found, expected)
    started = trained.alone(steps=0)
    assert any(np.abs(found[name] - started[name]).max() > 0.01 for name in started)


if __name__ == "__main__":
    main(sys.argv[1])
