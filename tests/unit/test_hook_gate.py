"""Replicas wait where the chief calls hooks, in a cluster of TensorFlow servers in this process."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trainer import config
from trainer.graph import replica
from trainer.graph.replica import Replica
from trainer.graph.replication.membership import Membership
from trainer.problem import problem
from trainer.tensorflow import tf
from trainer.training import hook_gate
from trainer.training.hook_gate import POLL_SECONDS, HookGate
from trainer.training.watch.watchdog import Watchdog

from .conftest import Servers

pytestmark = pytest.mark.slow

STEPS = 10
"""Those of an epoch."""
MODEL = """
import keras
import numpy as np


def train_data(context):
    return np.zeros([80, 2]), np.zeros([80, 1])


test_data = train_data


def model():
    network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    network.compile("sgd", "mse")
    return network


def fit_arguments():
    return {"epochs": 3, "batch_size": 4, "callbacks": [keras.callbacks.Callback()]}
"""
Member = tuple[Replica, Any]


@pytest.fixture
def members(servers: Servers, tmp_path: Path) -> Iterator[list[Member]]:
    """The chief and another replica, each with its session, of a run with callbacks."""
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    built = []
    for index in range(2):
        cluster = servers.member(index)
        found = problem.load(config.load_values({"model": str(path)}), cluster)
        learnt = found.settings, cluster, found.model, found.parameters, found.dataset.train
        built.append(replica.build(*learnt, 0, "this run", found.epochs))
    with servers.session(built[0].graph) as chief, servers.session(built[1].graph, 1) as other:
        chief.run(built[0].initialize)
        yield [(built[0], chief), (built[1], other)]


def gate_of(member: Member) -> Callable[[int], bool]:
    """Passes the gate at a global step."""
    gate, watchdog = HookGate(*member, lambda step: (step // STEPS + 1) * STEPS), Watchdog(60, 5, save_seconds=1)
    return lambda step: gate.pass_through(step, watchdog)


def test_a_replica_goes_on_when_the_chief_has_called_its_hooks(members: list[Member]) -> None:
    chief, other = map(gate_of, members)
    with ThreadPoolExecutor(1) as thread:
        for step in (0, STEPS):
            passed = thread.submit(other, step)
            assert not threading.Event().wait(2 * POLL_SECONDS[1])
            assert not passed.done()
            assert chief(step)
            assert passed.result(60)
        assert thread.submit(other, STEPS + 1).result(60), "no hooks follow that step"


def test_a_replica_leaves_when_the_chief_has_ended_the_run_instead(members: list[Member]) -> None:
    (chief, session), other = members[0], gate_of(members[1])
    with ThreadPoolExecutor(1) as thread:
        passed = thread.submit(other, 0)
        session.run(chief.end_early)
        assert passed.result(60) is False


def test_the_chief_waits_for_those_that_took_the_step(
    members: list[Member], servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_gate, "ARRIVAL_SECONDS", 600.0)
    gate = HookGate(*members[1], lambda step: STEPS)
    hook_gate.wait_for_others(*members[0], STEPS, 0)  # nobody has
    with tf.Graph().as_default() as graph:
        contributed = Membership.create(2, 1, "/job:ps/task:0").contributed(tf.constant(STEPS - 1, tf.int64))
    with servers.session(graph) as session:
        session.run(contributed)
    with ThreadPoolExecutor(1) as thread:
        waited = thread.submit(hook_gate.wait_for_others, *members[0], STEPS, 0)
        assert not threading.Event().wait(0.1)
        assert not waited.done()
        assert gate_of(members[0])(0)
        assert gate.pass_through(0, Watchdog(60, 5, save_seconds=1))
        assert not waited.done()
        gate.arrive(STEPS)
        waited.result(60)
