"""All-reduce between two TensorFlow servers in this process: parameters, and waiting between replicas."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from hack.ports import free_ports
from trainer.cluster.spec import Cluster, Task
from trainer.config import Settings
from trainer.graph import replica
from trainer.graph.replica import Replica
from trainer.graph.replication import CollectiveGroup
from trainer.tensorflow import tf1
from trainer.training import server
from trainer.training.server import TaskServer

from .conftest import EXAMPLES, MLP, PARAMETERS, SIZE, THREADS, Alone, Save, Values, assert_close, pick, values_in

pytestmark = pytest.mark.slow


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

    def start(self, operation: Any, feed: dict[Any, Any] | None = None) -> Any:
        """Start an op, which waits for the other replica; return its future."""
        return self.thread.submit(self.session.run, operation, feed, tf1.RunOptions(timeout_in_ms=60_000))

    def steps(self, *batches: int) -> Any:
        """Start an execution on these batches."""
        picks = dict(zip(self.replica.batches.feeds(len(batches)), [[pick(number) for number in batches]], strict=True))
        return self.start(self.replica.replication.executions[len(batches)].step, picks)

    def flat(self) -> Any:
        """The parameters as one vector."""
        return self.session.run("part_0_of_1/values/Read/ReadVariableOp:0")


@dataclass(frozen=True)
class Pair:
    """A cluster of two workers: the cluster spec of each, and their servers."""

    clusters: list[Cluster]
    servers: list[TaskServer]

    @contextlib.contextmanager
    def members(self, wire_dtype: Literal["float32", "bfloat16"] = "float32") -> Iterator[list[Member]]:
        """Both replicas, with executions of 1 and 3 steps, and different values until they have joined."""
        with contextlib.ExitStack() as stack:
            made = []
            for index, (seen, here) in enumerate(zip(self.clusters, self.servers, strict=True)):
                settings = Settings(
                    strategy="allreduce", batch_size=SIZE, steps_per_execution=3, seed=index, wire_dtype=wire_dtype
                )
                found = replica.build(settings, seen, MLP, PARAMETERS, EXAMPLES, 0, "this run")
                thread = stack.enter_context(ThreadPoolExecutor(max_workers=1))
                made.append(Member(found, stack.enter_context(here.session(found.graph)), thread))
                made[-1].session.run(found.initialize)
                found.batches.begin(made[-1].session)
            yield made
        for here in self.servers:
            tf1.Session.reset(here.target)


def start_pair() -> Pair:
    """Start the servers, which cannot be stopped."""
    addresses = tuple(f"localhost:{port}" for port in free_ports(2))
    clusters = [Cluster(Task("worker", index), (), addresses) for index in range(2)]
    return Pair(clusters, [server.start(member, THREADS) for member in clusters])


@pytest.fixture(scope="session")
def pair() -> Pair:
    """The servers of all tests with float32 in which no collective op fails."""
    return start_pair()


@pytest.fixture
def members(pair: Pair) -> Iterator[list[Member]]:
    """Both replicas."""
    with pair.members() as made:
        yield made


def results(*futures: Any) -> list[Any]:
    return [future.result() for future in futures]


def join(members: list[Member]) -> None:
    results(*[member.start(member.replica.replication.join) for member in members])


def test_two_replicas_equal_one_with_averaged_gradients(
    members: list[Member], save: Save, values: Callable[[Replica, Any], Values], alone: Alone
) -> None:
    chief, other = members
    join(members)
    start = save(chief.replica, chief.session)
    assert results(chief.steps(0, 2, 4), other.steps(1, 3, 5)) == [3, 3]
    assert results(chief.steps(6), other.steps(7)) == [4, 4]  # an execution of a single step
    end = values(chief.replica, chief.session)
    assert_close(end, alone(start, (0, 1), (2, 3), (4, 5), (6, 7)))
    assert not np.allclose(
        end["hidden/weights"], values_in(start)["hidden/weights"], atol=1e-2
    )  # the parameters have changed
    assert np.array_equal(chief.flat(), other.flat())


def test_gradients_that_are_summed_as_bfloat16_change_training_little_and_alike(
    save: Save, values: Callable[[Replica, Any], Values], alone: Alone
) -> None:
    with start_pair().members("bfloat16") as members:  # servers remember the type of each collective op
        chief, other = members
        join(members)
        start = save(chief.replica, chief.session)
        results(chief.steps(0, 2, 4), other.steps(1, 3, 5))
        assert np.array_equal(chief.flat(), other.flat())
        before, exact, kernel = values_in(start), alone(start, (0, 1), (2, 3), (4, 5)), "hidden/weights"
        first, second = (
            (after[kernel] - before[kernel]).ravel() for after in (values(chief.replica, chief.session), exact)
        )
        assert np.corrcoef(first, second)[0, 1] > 0.95
        assert not np.allclose(first, second, atol=1e-6)


def test_all_replicas_start_from_the_chiefs_checkpoint(members: list[Member], save: Save, alone: Alone) -> None:
    chief, other = members
    restored = save(chief.replica, chief.session)
    trained = alone(restored, (0,), (1,))
    join(members)
    results(chief.steps(0), other.steps(0))
    results(chief.steps(1), other.steps(1))
    checkpoint = save(chief.replica, chief.session)
    chief.session.run(chief.replica.initialize)
    other.session.run(other.replica.initialize)
    assert not np.array_equal(chief.flat(), other.flat())
    chief.replica.saver.restore(chief.session, checkpoint)
    join(members)
    assert np.array_equal(chief.flat(), other.flat())
    assert other.session.run(other.replica.global_step) == 2
    assert results(chief.steps(2), other.steps(2)) == [3, 3]  # equal parameters require equal moments
    assert np.array_equal(chief.flat(), other.flat())
    assert_close(values_in(checkpoint), trained)


def test_all_replicas_take_the_steps_that_the_chief_proposes(members: list[Member]) -> None:
    chief, other = members
    agreed = [chief.start(chief.collective.agreed, {chief.collective.wanted: 3})]
    agreed.append(other.start(other.collective.agreed, {other.collective.wanted: 1}))
    assert results(*agreed) == [3, 3]


def test_replicas_leave_with_the_chief(members: list[Member]) -> None:
    chief, other = members
    leaving = other.start(other.collective.leave)
    time.sleep(0.5)
    assert not leaving.done()
    results(chief.start(chief.collective.leave), leaving)


def test_a_blocked_replica_can_save_and_unblocks_when_its_session_closes(save: Save) -> None:
    with start_pair().members() as members:
        chief, other = members
        join(members)
        results(chief.steps(0), other.steps(0))
        stuck = chief.steps(1)  # the other replica does not contribute
        time.sleep(0.5)
        assert not stuck.done()
        saved = values_in(save(chief.replica, chief.session))["hidden/weights"]
        assert np.array_equal(saved.ravel(), chief.flat()[: saved.size])
        chief.session.close()
        with pytest.raises(server.LOST):
            stuck.result(60)


def test_a_single_worker_is_a_valid_group(save: Save, values: Callable[[Replica, Any], Values], alone: Alone) -> None:
    (port,) = free_ports(1)
    cluster = Cluster(Task("worker", 0), (), (f"localhost:{port}",))
    found = replica.build(
        Settings(strategy="allreduce", batch_size=SIZE, steps_per_execution=1),
        *(cluster, MLP, PARAMETERS, EXAMPLES, 0, "this run"),
    )
    with server.start(cluster, THREADS).session(found.graph) as session:
        member = Member(found, session, ThreadPoolExecutor(max_workers=1))
        session.run(found.initialize)
        found.batches.begin(session)
        start = save(found, session)
        join([member])
        assert member.steps(0).result() == 1
        assert_close(values(found, session), alone(start, (0,)))
