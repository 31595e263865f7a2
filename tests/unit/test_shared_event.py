"""Flags on a real parameter server: another session sees them, and the saver's is up while it saves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.config import Settings
from trainer.graph import replica
from trainer.graph.shared_event import SAVING, SharedEvent
from trainer.models import mlp
from trainer.tensorflow import tf

from .conftest import EXAMPLES, PARAMETERS, SIZE, Servers

PS = "/job:ps/task:0/device:CPU:0"
SeesFlag = Callable[[], bool]


@pytest.fixture
def is_set(servers: Servers) -> SeesFlag:
    """Looks from worker 1 whether the flag SAVING is up on parameter server 0."""

    def look() -> bool:
        with tf.Graph().as_default() as graph:
            up = SharedEvent(SAVING, PS).is_set()
        with servers.session(graph, worker=1) as session:
            return bool(session.run(up))

    return look


def test_a_flag_is_seen_until_it_is_taken_down(servers: Servers, is_set: SeesFlag) -> None:
    with tf.Graph().as_default() as graph:
        flag = SharedEvent(SAVING, PS)
        up, down = flag.set(), flag.clear()
    with servers.session(graph) as session:
        assert not is_set()
        for _ in range(200):  # more often than its queue has room
            session.run(up)
        assert is_set()
        session.run(down)
        assert not is_set()
        session.run(down)


def test_parameter_servers_are_told_of_a_save_before_it_begins_and_when_it_has_ended(
    servers: Servers, is_set: SeesFlag, tmp_path: Path
) -> None:
    settings = Settings(batch_size=SIZE, steps_per_execution=1)
    chief: Any = replica.build(settings, servers.member(0), mlp, PARAMETERS, EXAMPLES, 0, "this run")
    with servers.session(chief.graph) as session:
        session.run(chief.initialize)
        (tmp_path / "file").touch()
        with pytest.raises(tf.errors.OpError):  # it has begun, but does not come to its end
            chief.saver.save(session, tmp_path / "file" / "saved")
        assert is_set()
        chief.saver.save(session, tmp_path / "saved")
        assert not is_set()
