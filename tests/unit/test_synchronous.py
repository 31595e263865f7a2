"""Synchronous replication, in a real cluster of this process: what the parameters are, and who waits for whom.

A replica's steps run in a thread of their own, as they wait for the chief's updates, which wait for gradients.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from trainer.config import Settings
from trainer.graph import parameters, replica
from trainer.graph.replica import Replica
from trainer.graph.replication import synchronous
from trainer.models import Model, Parameter, mlp
from trainer.tensorflow import tf, tf1

from .conftest import EXAMPLES, PARAMETERS, SIZE, Alone, Save, Servers, Values, assert_close, pick, values_in

TRAIN_STEPS = 1000
ValuesOf = Callable[[Replica, Any], Values]


@dataclass(frozen=True)
class Member:
    """A replica, its session, and the thread of its steps."""

    replica: Replica
    session: Any
    thread: ThreadPoolExecutor

    def run(self, operation: Any, seconds: float = 60) -> Any:
        """Run an op of the replica; it may wait for others for so long."""
        return self.session.run(operation, options=tf1.RunOptions(timeout_in_ms=int(1000 * seconds)))

    def steps(self, *batches: int, seconds: float = 60) -> "Future[int]":
        """Begin a call that gives the gradients of these batches; it will end with the global step after them."""
        picks = dict(zip(self.replica.batches.feeds, [[pick(number) for number in batches]], strict=True))
        options = tf1.RunOptions(timeout_in_ms=int(1000 * seconds))
        execution = self.replica.replication.executions[len(batches)].step
        return self.thread.submit(self.session.run, execution, picks, options)

    def update(self, steps: int = 1) -> int:
        """Make global steps of gradients, as the chief does beside its own steps; the global step after them."""
        return int(self.run(self.replica.replication.updates[steps]))

    def lead(self) -> None:
        self.run(self.replica.replication.lead)

    def join(self) -> None:
        self.replica.batches.begin(self.session)
        self.run(self.replica.replication.join)


def waits(*executions: "Future[int]") -> bool:
    """Whether calls do not end by themselves."""
    time.sleep(0.5)
    return not any(execution.done() for execution in executions)


def is_timed_out(run: Callable[[], Any]) -> bool:
    """Whether a run comes to its end by its time-out alone."""
    try:
        run()
    except tf.errors.DeadlineExceededError:
        return True
    return False


@dataclass(frozen=True)
class Gated:
    """The classic network behind a gate that a test opens: it stops a replica between its reading and its giving."""

    reached: threading.Event
    opened: threading.Event

    def parameters(self, image_shape: tuple[int, ...], classes: int, hidden_units: int) -> dict[str, Parameter]:
        return mlp.parameters(image_shape, classes, hidden_units)

    def logits(self, parameters: Mapping[str, Any], images: Any) -> Any:
        def wait(array: Any) -> Any:
            self.reached.set()
            assert self.opened.wait(60)
            return array

        with tf.control_dependencies(list(parameters.values())):
            held = tf.numpy_function(wait, [images], tf.float32)
        held.set_shape(images.shape)
        return mlp.logits(parameters, held)


@pytest.fixture
def member(servers: Servers) -> Iterator[Callable[..., Member]]:
    """Gives replica 0 or 1 of two with a session of its own."""
    with contextlib.ExitStack() as stack:

        def make(
            index: int,
            aggregate: int | None = None,
            model: Model = mlp,
            steps_per_execution: int = 1,
            train_steps: int = TRAIN_STEPS,
        ) -> Member:
            settings = Settings(
                sync_replicas=True,
                replicas_to_aggregate=aggregate,
                batch_size=SIZE,
                steps_per_execution=steps_per_execution,
                train_steps=train_steps,
            )
            found = replica.build(settings, servers.member(index), model, PARAMETERS, EXAMPLES, 0, "this run")
            thread = stack.enter_context(ThreadPoolExecutor(max_workers=1))
            return Member(found, stack.enter_context(servers.session(found.graph, index)), thread)

        yield make


@pytest.fixture
def begin(member: Callable[..., Member]) -> Callable[..., tuple[Member, Member]]:
    """Begins a run of two replicas, each of which has joined."""

    def run(aggregate: int | None = None, **more: int) -> tuple[Member, Member]:
        chief, other = member(0, aggregate, **more), member(1, aggregate, **more)
        chief.run(chief.replica.initialize)
        chief.lead()
        chief.join()
        other.join()
        return chief, other

    return run


def accumulator(shard: int) -> Any:
    """A part's accumulator, in the default graph."""
    name = f"part_{shard}_of_2/gradients"
    with tf1.device(f"/job:ps/task:{shard}"):
        shape = [parameters.plan(PARAMETERS, 2).shards[shard]]
        return tf1.ConditionalAccumulator(tf.float32, shape, shared_name=name, name=name)


def wait_for_gradients(servers: Servers, count: int) -> None:
    """Wait until so many replicas have given theirs."""
    with tf.Graph().as_default() as graph:
        given = [accumulator(shard).num_accumulated() for shard in range(2)]
    with servers.session(graph) as session:
        deadline = time.monotonic() + 60
        while session.run(given) != [count, count]:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_two_replicas_learn_as_one_that_averages_their_gradients(
    begin: Any, save: Save, values: ValuesOf, alone: Alone
) -> None:
    chief, other = begin()
    start = save(chief.replica, chief.session)
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7)]
    for step, (mine, others) in enumerate(pairs, start=1):
        executions = [chief.steps(mine), other.steps(others)]
        assert chief.update() == step
        assert [execution.result() for execution in executions] == [step, step]
    end = values(chief.replica, chief.session)
    assert_close(end, alone(start, *pairs))
    assert not np.allclose(end["hidden/weights"], values_in(start)["hidden/weights"], atol=1e-2)  # they did move


def test_a_call_of_several_steps_is_the_same_as_so_many_calls(
    begin: Any, save: Save, values: ValuesOf, alone: Alone
) -> None:
    chief, other = begin(steps_per_execution=4)
    start = save(chief.replica, chief.session)
    executions = [chief.steps(0, 2, 4, 6), other.steps(1, 3, 5, 7)]
    assert chief.update(4) == 4
    assert [execution.result() for execution in executions] == [4, 4]
    executions = [chief.steps(8), other.steps(9)]  # a call that is cut to one step
    assert chief.update() == 5
    assert [execution.result() for execution in executions] == [5, 5]
    end = values(chief.replica, chief.session)
    assert_close(end, alone(start, (0, 1), (2, 3), (4, 5), (6, 7), (8, 9)))


def test_a_replica_gives_one_gradient_a_step_and_then_waits(begin: Any) -> None:
    chief, other = begin()
    others = other.steps(0)
    assert waits(others)
    mine = chief.steps(1)
    assert chief.update() == 1
    assert (others.result(), mine.result()) == (1, 1)


def test_an_update_waits_for_all_replicas(begin: Any) -> None:
    chief, other = begin()
    mine = chief.steps(0)
    assert is_timed_out(lambda: chief.run(chief.replica.replication.updates[1], seconds=0.5))
    assert chief.run(chief.replica.global_step) == 0
    others = other.steps(1)
    assert waits(mine, others)
    assert chief.update() == 1
    assert (mine.result(), others.result()) == (1, 1)


def test_after_the_last_step_nobody_waits(begin: Any) -> None:
    chief, other = begin(steps_per_execution=4, train_steps=2)
    executions = [chief.steps(0, 1, 2, 3), other.steps(0, 1, 2, 3)]  # both reach beyond the end
    assert chief.update() == 1
    assert chief.update() == 2
    assert [execution.result() for execution in executions] == [2, 2]
    assert other.steps(4).result() == 2


def test_with_a_backup_replica_one_gradient_is_enough(begin: Any, save: Save, values: ValuesOf, alone: Alone) -> None:
    chief, other = begin(aggregate=1)
    start = save(chief.replica, chief.session)
    mine = chief.steps(0)
    assert chief.update() == 1
    assert mine.result() == 1
    others = other.steps(1)
    assert chief.update() == 2
    assert others.result() == 2
    assert_close(values(chief.replica, chief.session), alone(start, (0,), (1,)))


def test_of_more_gradients_than_are_wanted_the_first_count(
    begin: Any, servers: Servers, save: Save, values: ValuesOf, alone: Alone
) -> None:
    chief, other = begin(aggregate=1)
    start = save(chief.replica, chief.session)
    mine = chief.steps(0)
    wait_for_gradients(servers, 1)
    others = other.steps(1)
    assert waits(others)
    assert chief.update() == 1
    assert (mine.result(), others.result()) == (1, 1)
    assert_close(values(chief.replica, chief.session), alone(start, (0,)))


def test_a_straggler_holds_all_up_without_a_backup_and_nobody_with_one(
    member: Any, save: Save, values: ValuesOf, alone: Alone
) -> None:
    for aggregate in (2, 1):
        gate = Gated(threading.Event(), threading.Event())
        chief, slow = member(0, aggregate), member(1, aggregate, model=gate)
        chief.run(chief.replica.initialize)
        chief.lead()
        chief.join()
        slow.join()
        start = save(chief.replica, chief.session)
        late = slow.steps(9)
        assert gate.reached.wait(60)  # it has read the parameters of step 0
        first = chief.steps(0)
        if aggregate == 2:
            assert is_timed_out(lambda: chief.run(chief.replica.replication.updates[1], seconds=0.5))  # noqa: B023
            gate.opened.set()
            assert chief.update() == 1
            assert (first.result(), late.result()) == (1, 1)
            assert_close(values(chief.replica, chief.session), alone(start, (0, 9)))
        else:
            assert chief.update() == 1
            assert first.result() == 1
            gate.opened.set()
            assert late.result() == 1  # its gradient came too late, and the token of step 1 was there
            second = chief.steps(1)
            assert chief.update() == 2
            assert second.result() == 2
            assert_close(values(chief.replica, chief.session), alone(start, (0,), (1,)))


def test_a_replica_that_was_away_takes_part_in_the_step_that_is_on_now(
    begin: Any, member: Any, save: Save, values: ValuesOf, alone: Alone
) -> None:
    chief, _ = begin(aggregate=1)
    for number in range(3):
        mine = chief.steps(number)
        chief.update()
        mine.result()
    start = save(chief.replica, chief.session)
    back = member(1, aggregate=1)
    back.join()
    others = back.steps(3)
    assert chief.update() == 4
    assert others.result() == 4
    assert_close(values(chief.replica, chief.session), alone(start, (3,)))
    others = back.steps(4)  # and has found no pile of tokens of the steps before
    assert waits(others)
    assert chief.update() == 5
    assert others.result() == 5


def take_from(servers: Servers, shard: int) -> None:
    """Take the gradients of one part alone, as a chief does that dies in the midst of an update."""
    with tf.Graph().as_default() as graph:
        taken = accumulator(shard).take_grad(2)
    with servers.session(graph) as session:
        assert session.run(taken, options=tf1.RunOptions(timeout_in_ms=60_000)).any()


@pytest.mark.parametrize("taken", [[], [0], [1]])
def test_a_chief_that_comes_back_forgets_what_it_took_in_part_and_goes_on(
    taken: list[int],
    begin: Any,
    member: Any,
    servers: Servers,
    save: Save,
    values: ValuesOf,
    alone: Alone,
) -> None:
    former, other = begin()
    executions = [former.steps(0), other.steps(1)]
    former.update()
    assert [execution.result() for execution in executions] == [1, 1]
    start = save(former.replica, former.session)
    former.steps(2)
    others = other.steps(3)
    wait_for_gradients(servers, 2)
    for shard in taken:
        take_from(servers, shard)
    former.session.close()

    chief = member(0)
    chief.lead()
    chief.join()
    assert others.result() == 1  # its gradient is forgotten: the same step once more
    executions = [chief.steps(4), other.steps(5)]
    assert chief.update() == 2
    assert [execution.result() for execution in executions] == [2, 2]
    executions = [chief.steps(6), other.steps(7)]
    assert chief.update() == 3
    assert [execution.result() for execution in executions] == [3, 3]
    assert_close(values(chief.replica, chief.session), alone(start, (4, 5), (6, 7)))


def test_a_replica_that_never_comes_does_not_block_the_others_when_its_tokens_are_many(
    begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synchronous, "TOKENS_KEPT", 3)
    chief, other = begin(aggregate=1)
    for number in range(7):
        mine = chief.steps(0)
        assert chief.update() == number + 1
        assert mine.result() == number + 1
    other.join()  # back after more steps than it has tokens of
    for number in (8, 9):
        others = other.steps(1)
        assert chief.update() == number
        assert others.result() == number
