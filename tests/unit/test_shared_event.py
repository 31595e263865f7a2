"""Shared events on a parameter server: other sessions see them, and a snapshot sets and clears its event."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.config import Settings
from trainer.graph import replica
from trainer.shards.shared_event import SAVING, SharedEvent
from trainer.tensorflow import tf

from .conftest import EXAMPLES, MLP, PARAMETERS, SIZE, Servers

PS = "/job:ps/task:0/device:CPU:0"
IsSet = Callable[[], bool]


@pytest.fixture
def is_set(servers: Servers) -> IsSet:
    """A function that checks from worker 1 whether SAVING is set on parameter server 0."""

    def check() -> bool:
        with tf.Graph().as_default() as graph:
            saving = SharedEvent(SAVING, PS).is_set()
        with servers.session(graph, worker=1) as session:
            return bool(session.run(saving))

    return check


def test_an_event_is_set_until_it_is_cleared(servers: Servers, is_set: IsSet) -> None:
    with tf.Graph().as_default() as graph:
        event = SharedEvent(SAVING, PS)
        set_event, clear_event = event.set(), event.clear()
    with servers.session(graph) as session:
        assert not is_set()
        for _ in range(200):  # more often than the capacity of the queue
            session.run(set_event)
        assert is_set()
        session.run(clear_event)
        assert not is_set()
        session.run(clear_event)


def test_saving_is_set_until_a_snapshot_is_fetched(servers: Servers, is_set: IsSet, tmp_path: Path) -> None:
    settings = Settings(batch_size=SIZE, steps_per_execution=1)
    chief: Any = replica.build(settings, servers.member(0), MLP, PARAMETERS, EXAMPLES, 0, "this run")
    with servers.session(chief.graph) as session:
        session.run(chief.initialize)
        snapshot = chief.saver.snapshot(session)
        assert is_set()
        snapshot.fetch()
        assert not is_set()  # the parameter server may exit: the chief has all values
        snapshot.write(tmp_path / "saved")
        chief.saver.snapshot(session)  # of a chief that is lost before it fetches
        assert is_set()
        chief.saver.save(session, tmp_path / "saved")
        assert not is_set()
