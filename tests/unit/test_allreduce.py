"""All-reduce, between two real servers of this process: what the parameters are, and who waits for whom."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.ports import free_ports
from trainer.cluster.spec import Cluster, Task
from trainer.config import Settings
from trainer.graph import replica
from trainer.graph.replica import Replica
from trainer.graph.replication import CollectiveGroup
from trainer.models import mlp
from trainer.tensorflow import tf1
from trainer.training import server

from .conftest import EXAMPLES, PARAMETERS, SIZE, THREADS, Alone, Save, Values, assert_close, pick, values_in


@dataclass(frozen=True)
class Member:
    """A replica, its session, and the thread of its steps."""

    replica: Replica
    session: Any
    thread: ThreadPoolExecutor

    @property
    def collective(self) -> CollectiveGroup:
        assert self.replica.replication.collective
        return self.replica.replication.collective

    def begin(self, operation: Any, feed: dict[Any, Any] | None = None) -> Any:
        """Begin an op, which waits for the other member's; its future."""
        return self.thread.submit(self.session.run, operation, feed, tf1.RunOptions(timeout_in_ms=60_000))

    def steps(self, *batches: int) -> Any:
        """Begin a call that learns from these batches."""
        picks = dict(zip(self.replica.batches.feeds, [[pick(number) for number in batches]], strict=True))
        return self.begin(self.replica.replication.executions[len(batches)].step, picks)

    def flat(self) -> Any:
        """The parameters as one vector."""
        return self.session.run("part_0_of_1/values/Read/ReadVariableOp:0")


@dataclass(frozen=True)
class Pair:
    """A cluster of two workers, as each of them sees it, and their servers."""

    clusters: list[Cluster]
    servers: list[Any]

    @contextlib.contextmanager
    def members(self) -> Iterator[list[Member]]:
        """Both replicas, with calls of 1 and 3 steps, and other values each until they have joined."""
        with contextlib.ExitStack() as stack:
            made = []
            for index, (seen, here) in enumerate(zip(self.clusters, self.servers, strict=True)):
                settings = Settings(strategy="allreduce", batch_size=SIZE, steps_per_execution=3, seed=index)
                found = replica.build(settings, seen, mlp, PARAMETERS, EXAMPLES, 0, "this run")
                thread = stack.enter_context(ThreadPoolExecutor(max_workers=1))
                made.append(Member(found, stack.enter_context(server.open_session(found.graph, here, THREADS)), thread))
                made[-1].session.run(found.initialize)
                found.batches.begin(made[-1].session)
            yield made
        for here in self.servers:
            tf1.Session.reset(here.target)


def start_pair() -> Pair:
    """Start its servers, which TensorFlow cannot stop."""
    addresses = tuple(f"localhost:{port}" for port in free_ports(2))
    clusters = [Cluster(Task("worker", index), (), addresses) for index in range(2)]
    return Pair(clusters, [server.start(member, THREADS) for member in clusters])


@pytest.fixture(scope="session")
def pair() -> Pair:
    """What all tests share in which no collective op fails."""
    return start_pair()


@pytest.fixture
def members(pair: Pair) -> Iterator[list[Member]]:
    """Both replicas."""
    with pair.members() as made:
        yield made


def results(*futures: Any) -> list[Any]:
    return [future.result() for future in futures]


def join(members: list[Member]) -> None:
    results(*[member.begin(member.replica.replication.join) for member in members])


def test_two_replicas_learn_as_one_that_averages_their_gradients(
    members: list[Member], save: Save, values: Callable[[Replica, Any], Values], alone: Alone
) -> None:
    chief, other = members
    join(members)
    start = save(chief.replica, chief.session)
    assert results(chief.steps(0, 2, 4), other.steps(1, 3, 5)) == [3, 3]
    assert results(chief.steps(6), other.steps(7)) == [4, 4]  # a call that is cut to one step
    end = values(chief.replica, chief.session)
    assert_close(end, alone(start, (0, 1), (2, 3), (4, 5), (6, 7)))
    assert not np.allclose(end["hidden/weights"], values_in(start)["hidden/weights"], atol=1e-2)  # they did move
    assert np.array_equal(chief.flat(), other.flat())


def test_all_begin_with_what_the_chief_has_restored(members: list[Member], save: Save, alone: Alone) -> None:
    chief, other = members
    restored = save(chief.replica, chief.session)
    trained = alone(restored, (0,), (1,))
    join(members)
    results(chief.steps(0), other.steps(0))
    results(chief.steps(1), other.steps(1))
    again = save(chief.replica, chief.session)
    chief.session.run(chief.replica.initialize)
    other.session.run(other.replica.initialize)
    assert not np.array_equal(chief.flat(), other.flat())
    chief.replica.saver.restore(chief.session, again)
    join(members)
    assert np.array_equal(chief.flat(), other.flat())
    assert other.session.run(other.replica.global_step) == 2
    assert results(chief.steps(2), other.steps(2)) == [3, 3]  # which takes its moments too to be the same on both
    assert np.array_equal(chief.flat(), other.flat())
    assert_close(values_in(again), trained)


def test_all_take_as_many_steps_as_the_chief_would(members: list[Member]) -> None:
    chief, other = members
    wishes = [chief.begin(chief.collective.agreed, {chief.collective.wanted: 3})]
    wishes.append(other.begin(other.collective.agreed, {other.collective.wanted: 1}))
    assert results(*wishes) == [3, 3]


def test_nobody_leaves_before_the_chief(members: list[Member]) -> None:
    chief, other = members
    leaving = other.begin(other.collective.leave)
    time.sleep(0.5)
    assert not leaving.done()
    results(chief.begin(chief.collective.leave), leaving)


def test_who_is_stuck_in_a_step_can_save_and_is_freed_by_the_end_of_its_session(save: Save) -> None:
    with start_pair().members() as members:
        chief, other = members
        join(members)
        results(chief.steps(0), other.steps(0))
        stuck = chief.steps(1)  # the other gives nothing
        time.sleep(0.5)
        assert not stuck.done()
        saved = values_in(save(chief.replica, chief.session))["hidden/weights"]
        assert np.array_equal(saved.ravel(), chief.flat()[: saved.size])
        chief.session.close()
        with pytest.raises(server.LOST):
            stuck.result(60)


def test_a_worker_alone_is_a_ring_too(save: Save, values: Callable[[Replica, Any], Values], alone: Alone) -> None:
    (port,) = free_ports(1)
    cluster = Cluster(Task("worker", 0), (), (f"localhost:{port}",))
    found = replica.build(
        Settings(strategy="allreduce", batch_size=SIZE, steps_per_execution=1),
        *(cluster, mlp, PARAMETERS, EXAMPLES, 0, "this run"),
    )
    with server.open_session(found.graph, server.start(cluster, THREADS), THREADS) as session:
        member = Member(found, session, ThreadPoolExecutor(max_workers=1))
        session.run(found.initialize)
        found.batches.begin(session)
        start = save(found, session)
        join([member])
        assert member.steps(0).result() == 1
        assert_close(values(found, session), alone(start, (0,)))
