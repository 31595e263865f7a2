"""The chief's loop of updates, with a real session."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from trainer.tensorflow import tf, tf1
from trainer.training.update_loop import UpdateLoop


@pytest.fixture
def session() -> Iterator[Any]:
    """A session on a counter, and a queue that stays empty."""
    with tf.Graph().as_default() as graph:
        counter = tf1.get_variable("counter", initializer=0, use_resource=True)
        tf.identity(counter.assign_add(1), name="count")
        tf.identity(counter.assign_add(6), name="count_six")
        tf.identity(counter.read_value(), name="now")
        tf.identity(tf.queue.FIFOQueue(1, tf.int32, shapes=[()]).dequeue(), name="wait")
        with tf1.Session(graph=graph) as made:
            made.run(counter.initializer)
            yield made


def wait_for(updates: UpdateLoop) -> None:
    updates._thread.join(60)
    assert not updates._thread.is_alive()


def test_updates_run_until_the_last_step(session: Any) -> None:
    several = {1: session.make_callable("count:0"), 6: session.make_callable("count_six:0")}
    with UpdateLoop(session, several, step=0, stop=lambda _: 20) as updates:
        wait_for(updates)
    assert updates.error is None
    assert session.run("now:0") == 20


def test_no_update_runs_after_the_last_step(session: Any) -> None:
    with UpdateLoop(session, {1: session.make_callable("count:0")}, step=20, stop=lambda _: 20) as updates:
        wait_for(updates)
    assert session.run("now:0") == 0


def test_exiting_the_context_ends_the_loop_before_the_last_step(session: Any) -> None:
    begun = threading.Event()
    count = session.make_callable("count:0")

    def update() -> int:
        begun.set()
        return int(count())

    with UpdateLoop(session, {1: update}, step=0, stop=lambda _: 10**9) as updates:
        assert begun.wait(60)
    wait_for(updates)
    assert updates.error is None


def test_an_error_unblocks_the_main_thread_and_is_raised_there(session: Any) -> None:
    def update() -> int:
        raise tf.errors.UnavailableError(None, None, "the parameter server is gone")

    updates = UpdateLoop(session, {1: update}, step=0, stop=lambda _: 20)
    with pytest.raises(tf.errors.UnavailableError, match="the parameter server is gone"), updates:
        session.run("wait:0")
