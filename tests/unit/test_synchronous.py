"""Synchronous replication in a cluster of TensorFlow servers in this process: parameters and waiting.

The steps of a replica run in a separate thread: they wait for the chief's updates, which wait for gradients.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hack.cluster.waiting import until
from hack.ports import free_ports
from trainer.config import Settings
from trainer.graph import replica
from trainer.graph.replica import Replica
from trainer.graph.replication import synchronous
from trainer.graph.replication.membership import ABSENT, Membership
from trainer.models import Model, Parameter, mlp
from trainer.models.ops_model import OpsModel
from trainer.shards import parameters
from trainer.tensorflow import tf, tf1
from trainer.training.callback import Callback
from trainer.training.watch.replica_monitor import QUIET_SECONDS, ReplicaMonitor

from .conftest import EXAMPLES, MLP, PARAMETERS, SIZE, Alone, Save, Servers, Values, assert_close, pick, values_in

pytestmark = pytest.mark.slow

TRAIN_STEPS = 1000
WAIT = 5.0
"""Seconds after which an update that waits is cancelled. TensorFlow would never return from one that it has not begun
by then, as on a busy machine it may not have within half a second."""
ValuesOf = Callable[[Replica, Any], Values]


@dataclass(frozen=True)
class Member:
    """A replica, its session, and the thread of its steps."""

    replica: Replica
    session: Any
    thread: ThreadPoolExecutor

    def run(self, operation: Any, seconds: float = 60) -> Any:
        """Run an op of the replica, with a timeout."""
        return self.session.run(operation, options=tf1.RunOptions(timeout_in_ms=int(1000 * seconds)))

    def steps(self, *batches: int, seconds: float = 60) -> "Future[int]":
        """Start an execution on these batches. Its result is the global step after them."""
        picks = dict(zip(self.replica.batches.feeds(len(batches)), [[pick(number) for number in batches]], strict=True))
        options = tf1.RunOptions(timeout_in_ms=int(1000 * seconds))
        execution = self.replica.replication.executions[len(batches)].step
        return self.thread.submit(self.session.run, execution, picks, options)

    def update(self, steps: int = 1) -> int:
        """Run steps of the chief's update loop, and return the global step after them."""
        return int(self.run(self.replica.replication.updates[steps]))

    def lead(self) -> None:
        self.run(self.replica.replication.lead)

    def join(self) -> None:
        self.replica.batches.begin(self.session)
        self.run(self.replica.replication.join)


def are_blocked(*executions: "Future[int]") -> bool:
    """Whether the executions do not complete."""
    time.sleep(0.5)
    return not any(execution.done() for execution in executions)


def times_out(run: Callable[[], Any]) -> bool:
    """Whether a run ends with its timeout."""
    try:
        run()
    except tf.errors.DeadlineExceededError:
        return True
    return False


@dataclass(frozen=True)
class Gated:
    """The MLP behind a gate that the test opens. It blocks a replica between reading parameters and contributing."""

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
            gated = tf.numpy_function(wait, [images], tf.float32)
        gated.set_shape(images.shape)
        return mlp.logits(parameters, gated)


@pytest.fixture
def member(servers: Servers) -> Iterator[Callable[..., Member]]:
    """A function that makes replica 0 or 1 of two, with its own session."""
    with contextlib.ExitStack() as stack:

        def make(
            index: int,
            aggregate: int | None = None,
            model: Model = MLP,
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
    """A function that starts a run of two replicas, both of which have joined."""

    def run(aggregate: int | None = None, **more: int) -> tuple[Member, Member]:
        chief, other = member(0, aggregate, **more), member(1, aggregate, **more)
        chief.run(chief.replica.initialize)
        chief.lead()
        chief.join()
        other.join()
        return chief, other

    return run


def accumulator(shard: int) -> Any:
    """The accumulator of a shard, in the default graph."""
    name = f"part_{shard}_of_2/gradients"
    with tf1.device(f"/job:ps/task:{shard}"):
        shape = [parameters.plan(PARAMETERS, 2).shards[shard] + 1]
        return tf1.ConditionalAccumulator(tf.float32, shape, shared_name=name, name=name, reduction_type="SUM")


def wait_for_gradients(servers: Servers, count: int) -> None:
    """Wait until this number of replicas have contributed."""
    with tf.Graph().as_default() as graph:
        counts = [accumulator(shard).num_accumulated() for shard in range(2)]
    with servers.session(graph) as session:
        deadline = time.monotonic() + 60
        while session.run(counts) != [count, count]:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_step_costs_three_messages_between_parameter_servers(begin: Any) -> None:
    """That the second one has applied the round, the next round, and each replica's token: with 100, not 10,000."""
    chief, other = begin(steps_per_execution=2)

    def messages(operation: Any, feeds: Any = None) -> int:
        traced = tf1.RunMetadata()
        options = tf1.RunOptions(output_partition_graphs=True, timeout_in_ms=60_000)
        chief.session.run(operation, feeds, options, traced)
        ends = [
            [node.attr[end].s.decode() for end in ("send_device", "recv_device")]
            for graph in traced.partition_graphs
            for node in graph.node
            if node.op == "_Send"
        ]
        return sum(all("/job:ps" in end for end in each) and each[0] != each[1] for each in ends)

    found = []
    for steps in (1, 2):
        picks = {chief.replica.batches.feeds(1)[0]: [pick(number) for number in range(steps)]}
        others = other.steps(*range(steps))
        step = chief.thread.submit(messages, chief.replica.replication.executions[steps].step, picks)
        found.append([messages(chief.replica.replication.updates[steps]), step.result()])
        others.result()
    (update, step), (updates, both) = found
    assert (updates - update, both - step) == (2, 1)


def test_two_replicas_equal_one_with_averaged_gradients(begin: Any, save: Save, values: ValuesOf, alone: Alone) -> None:
    chief, other = begin()
    start = save(chief.replica, chief.session)
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7)]
    for step, (chief_batch, other_batch) in enumerate(pairs, start=1):
        executions = [chief.steps(chief_batch), other.steps(other_batch)]
        assert chief.update() == step
        assert [execution.result() for execution in executions] == [step, step]
    end = values(chief.replica, chief.session)
    assert_close(end, alone(start, *pairs))
    assert not np.allclose(
        end["hidden/weights"], values_in(start)["hidden/weights"], atol=1e-2
    )  # the parameters have changed


def test_an_execution_of_several_steps_equals_several_executions(
    begin: Any, save: Save, values: ValuesOf, alone: Alone
) -> None:
    chief, other = begin(steps_per_execution=4)
    start = save(chief.replica, chief.session)
    executions = [chief.steps(0, 2, 4, 6), other.steps(1, 3, 5, 7)]
    assert chief.update(4) == 4
    assert [execution.result() for execution in executions] == [4, 4]
    executions = [chief.steps(8), other.steps(9)]  # an execution of a single step
    assert chief.update() == 5
    assert [execution.result() for execution in executions] == [5, 5]
    end = values(chief.replica, chief.session)
    assert_close(end, alone(start, (0, 1), (2, 3), (4, 5), (6, 7), (8, 9)))


def test_a_replica_contributes_once_per_step_and_then_waits(begin: Any) -> None:
    chief, other = begin()
    other_steps = other.steps(0)
    assert are_blocked(other_steps)
    chief_steps = chief.steps(1)
    assert chief.update() == 1
    assert (other_steps.result(), chief_steps.result()) == (1, 1)


def test_an_update_waits_for_all_replicas(begin: Any) -> None:
    chief, other = begin()
    chief_steps = chief.steps(0)
    assert times_out(lambda: chief.run(chief.replica.replication.updates[1], seconds=WAIT))
    assert chief.run(chief.replica.global_step) == 0
    other_steps = other.steps(1)
    assert are_blocked(chief_steps, other_steps)
    assert chief.update() == 1
    assert (chief_steps.result(), other_steps.result()) == (1, 1)


def test_no_replica_waits_after_the_last_step(begin: Any) -> None:
    chief, other = begin(steps_per_execution=4, train_steps=2)
    executions = [chief.steps(0, 1, 2, 3), other.steps(0, 1, 2, 3)]  # more steps than the run has
    assert chief.update() == 1
    assert chief.update() == 2
    assert [execution.result() for execution in executions] == [2, 2]
    assert other.steps(4).result() == 2


def test_with_a_backup_one_gradient_is_enough(begin: Any, save: Save, values: ValuesOf, alone: Alone) -> None:
    chief, other = begin(aggregate=1)
    start = save(chief.replica, chief.session)
    chief_steps = chief.steps(0)
    assert chief.update() == 1
    assert chief_steps.result() == 1
    other_steps = other.steps(1)
    assert chief.update() == 2
    assert other_steps.result() == 2
    assert_close(values(chief.replica, chief.session), alone(start, (0,), (1,)))


def test_excess_gradients_are_dropped(begin: Any, servers: Servers, save: Save, values: ValuesOf, alone: Alone) -> None:
    chief, other = begin(aggregate=1)
    start = save(chief.replica, chief.session)
    chief_steps = chief.steps(0)
    wait_for_gradients(servers, 1)
    other_steps = other.steps(1)
    assert are_blocked(other_steps)
    assert chief.update() == 1
    assert (chief_steps.result(), other_steps.result()) == (1, 1)
    assert_close(values(chief.replica, chief.session), alone(start, (0,)))


def test_a_straggler_blocks_the_others_only_without_a_backup(
    member: Any, save: Save, values: ValuesOf, alone: Alone
) -> None:
    for aggregate in (2, 1):
        gate = Gated(threading.Event(), threading.Event())
        chief, slow = member(0, aggregate), member(1, aggregate, model=OpsModel("gated", gate, 100))
        chief.run(chief.replica.initialize)
        chief.lead()
        chief.join()
        slow.join()
        start = save(chief.replica, chief.session)
        late = slow.steps(9)
        assert gate.reached.wait(60)  # it has read the parameters of step 0
        first = chief.steps(0)
        if aggregate == 2:
            assert times_out(lambda: chief.run(chief.replica.replication.updates[1], seconds=WAIT))  # noqa: B023
            gate.opened.set()
            assert chief.update() == 1
            assert (first.result(), late.result()) == (1, 1)
            assert_close(values(chief.replica, chief.session), alone(start, (0, 9)))
        else:
            assert chief.update() == 1
            assert first.result() == 1
            gate.opened.set()
            assert late.result() == 1  # its gradient arrived too late, and its queue has the token of step 1
            second = chief.steps(1)
            assert chief.update() == 2
            assert second.result() == 2
            assert_close(values(chief.replica, chief.session), alone(start, (0,), (1,)))


def test_a_replica_that_rejoins_takes_the_current_step(
    begin: Any, member: Any, save: Save, values: ValuesOf, alone: Alone
) -> None:
    chief, _ = begin(aggregate=1)
    for number in range(3):
        chief_steps = chief.steps(number)
        chief.update()
        chief_steps.result()
    start = save(chief.replica, chief.session)
    rejoined = member(1, aggregate=1)
    rejoined.join()
    other_steps = rejoined.steps(3)
    assert chief.update() == 4
    assert other_steps.result() == 4
    assert_close(values(chief.replica, chief.session), alone(start, (3,)))
    other_steps = rejoined.steps(4)  # it has processed no tokens of earlier steps
    assert are_blocked(other_steps)
    assert chief.update() == 5
    assert other_steps.result() == 5


def take_from(servers: Servers, shard: int) -> None:
    """Take the gradients of a single shard, like a chief that dies during an update."""
    with tf.Graph().as_default() as graph:
        gradients = accumulator(shard).take_grad(2)
    with servers.session(graph) as session:
        assert session.run(gradients, options=tf1.RunOptions(timeout_in_ms=60_000)).any()


@pytest.mark.parametrize("taken_shards", [[], [0], [1]])
def test_a_restarted_chief_discards_gradients_and_continues(
    taken_shards: list[int],
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
    other_steps = other.steps(3)
    wait_for_gradients(servers, 2)
    for shard in taken_shards:
        take_from(servers, shard)
    former.session.close()

    chief = member(0)
    chief.lead()
    chief.join()
    assert other_steps.result() == 1  # its gradient is discarded, so it repeats the step
    executions = [chief.steps(4), other.steps(5)]
    assert chief.update() == 2
    assert [execution.result() for execution in executions] == [2, 2]
    executions = [chief.steps(6), other.steps(7)]
    assert chief.update() == 3
    assert [execution.result() for execution in executions] == [3, 3]
    assert_close(values(chief.replica, chief.session), alone(start, (4, 5), (6, 7)))


def test_a_full_token_queue_of_an_absent_replica_does_not_block_the_others(
    begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synchronous, "TOKEN_QUEUE_CAPACITY", 3)
    chief, other = begin(aggregate=1, steps_per_execution=4)
    for number in (4, 8):  # the queue becomes full during the first execution
        chief_steps = chief.steps(0, 0, 0, 0)
        assert chief.update(4) == number
        assert chief_steps.result() == number
    other.join()  # rejoins after more steps than its queue has tokens
    for number in (9, 10):
        other_steps = other.steps(1)
        assert chief.update() == number
        assert other_steps.result() == number


def test_a_replica_that_joins_does_not_take_the_place_of_another(begin: Any, servers: Servers) -> None:
    chief, other = begin()
    rounds = chief.replica.replication.rounds
    is_counted = other.replica.replication.executions[1].is_counted
    chief.session.run(rounds.want, {rounds.wanted: 1, rounds.counted: [True, False]})
    early = other.thread.submit(other.session.run, is_counted, feeds_of(other, 1))
    with pytest.raises(TimeoutError):
        early.result(1)  # it waits for the next round
    wait_for_gradients(servers, 0)
    mine = chief.thread.submit(
        chief.session.run, chief.replica.replication.executions[1].is_counted, feeds_of(chief, 0)
    )
    assert chief.update() == 1
    assert (mine.result(60), early.result(60)) == (True, False)
    chief.session.run(rounds.want, {rounds.wanted: 2, rounds.delay: 2})  # round 3 is the first that waits for both
    found = []
    for step in (2, 3, 4):
        steps = chief.steps(step)
        counted = other.thread.submit(other.session.run, is_counted, feeds_of(other, step))
        wait_for_no_tokens(servers, 1)  # or the round would end before the other one has seen it
        assert chief.update() == step
        steps.result(60)
        found.append(counted.result(60))
    assert found == [False, False, True]


def wait_for_no_tokens(servers: Servers, replica: int) -> None:
    """Wait until a replica has taken all its tokens."""
    with tf.Graph().as_default() as graph, tf1.device("/job:ps/task:0"):
        size = synchronous._token_queue(replica).size()
    with servers.session(graph) as session:
        deadline = time.monotonic() + 60
        while session.run(size):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def feeds_of(member: Member, batch: int) -> dict[Any, Any]:
    return dict(zip(member.replica.batches.feeds(1), [[pick(batch)]], strict=True))


def test_a_new_chief_takes_a_round_again_that_some_shards_have_not_applied(begin: Any, servers: Servers) -> None:
    chief, other = begin()
    with tf.Graph().as_default() as graph, tf1.device("/job:ps/task:0"):
        updates = tf1.get_variable("part_0_of_2/updates", [], tf.int64, use_resource=True)
        applied = updates.assign_add(1)
    with servers.session(graph) as session:  # as an earlier chief has applied a round to the first shard alone
        session.run(applied)
    chief.lead()
    assert chief.run(chief.replica.global_step) == 0
    chief.join()
    other.join()
    steps = chief.steps(0), other.steps(1)
    assert chief.update() == 1
    assert [each.result(60) for each in steps] == [1, 1]


def complete(chief: Member, step: int) -> None:
    """End the round of this step, as the chief does when replicas are gone or late."""
    rounds = chief.replica.replication.rounds
    assert rounds
    chief.session.run(rounds.complete, {rounds.step: step})


def want(chief: Member, contributions: int, counted: Sequence[bool] = (True, True), delay: int = 0) -> None:
    rounds = chief.replica.replication.rounds
    assert rounds
    chief.session.run(rounds.want, {rounds.wanted: contributions, rounds.counted: counted, rounds.delay: delay})


def monitored(chief: Member, servers: Servers, callback: Callback | None = None, **settings: Any) -> ReplicaMonitor:
    """The monitor of two workers."""
    addresses = dict(zip(("worker 0", "worker 1"), servers.workers, strict=True))
    given = Settings(sync_replicas=True, train_steps=TRAIN_STEPS, **settings)
    membership = chief.replica.replication.membership
    assert membership
    return ReplicaMonitor(chief.session, chief.replica, membership, addresses, given, callback or Callback())


def test_a_round_for_which_nobody_counts_is_taken_again_by_one_of_those_that_are_back(
    begin: Any, servers: Servers, save: Save, values: ValuesOf, alone: Alone
) -> None:
    chief, other = begin()
    rounds = chief.replica.replication.rounds
    with monitored(chief, servers), ThreadPoolExecutor(max_workers=1) as updating:
        begun = chief.steps(0), other.steps(1)
        assert chief.update() == 1
        assert [each.result(60) for each in begun] == [1, 1]
        start = save(chief.replica, chief.session)
        updated = updating.submit(chief.update)
        for each in (chief, other):
            each.run(each.replica.replication.membership.pause)
        assert until(lambda: int(chief.run(rounds.needed)) == 0, 60)
        dropped = chief.steps(2), other.steps(3)
        assert [each.result(60) for each in dropped] == [1, 1], "they have a token of the same round again"
        taken = chief.steps(4), other.steps(5)
        assert updated.result(60) == 2
        assert [each.result(60) for each in taken] == [2, 2]
        assert_close(values(chief.replica, chief.session), alone(start, (4,)))


def test_a_round_ends_without_a_replica_that_has_left_and_is_back(begin: Any, servers: Servers) -> None:
    chief, _ = begin()
    with ThreadPoolExecutor(max_workers=1) as updating:
        updated = updating.submit(chief.update)
        mine = chief.steps(0)
        wait_for_gradients(servers, 1)
        want(chief, 1, (True, False))
        want(chief, 2, delay=2)
        complete(chief, 0)
        assert (updated.result(60), mine.result(60)) == (1, 1)


def test_a_round_that_is_ended_early_averages_the_gradients_that_were_given(
    begin: Any, servers: Servers, save: Save, values: ValuesOf, alone: Alone
) -> None:
    chief, other = begin()
    start = save(chief.replica, chief.session)
    update = ThreadPoolExecutor(max_workers=1)
    updated = update.submit(chief.update)
    chief_steps = chief.steps(0)
    wait_for_gradients(servers, 1)
    complete(chief, 0)  # two contributions are wanted: no effect
    assert are_blocked(chief_steps)
    want(chief, 1)
    assert are_blocked(chief_steps), "the round that waits for two goes on waiting"
    complete(chief, 0)
    assert updated.result(60) == 1
    assert chief_steps.result() == 1
    complete(chief, 0)  # the round is over: no effect on the next one
    assert_close(values(chief.replica, chief.session), alone(start, (0,)))

    late = other.steps(1)  # from now on one contribution is enough
    assert chief.update() == 2
    assert late.result() == 2
    assert_close(values(chief.replica, chief.session), alone(start, (0,), (1,)))
    want(chief, 2)
    start = save(chief.replica, chief.session)
    executions = [chief.steps(2), other.steps(3)]
    assert chief.update() == 3
    assert [execution.result() for execution in executions] == [3, 3]
    assert_close(values(chief.replica, chief.session), alone(start, (2, 3)))
    update.shutdown()


class Evaluating(Callback):
    """The chief's while it evaluates an epoch."""

    is_evaluating_epoch = True


def test_a_gradient_that_has_reached_one_of_two_shards_is_awaited_for_straggler_seconds(
    begin: Any, servers: Servers
) -> None:
    chief, _ = begin()
    chief_steps = chief.steps(0)
    wait_for_gradients(servers, 1)
    with tf.Graph().as_default() as graph:  # the other replica freezes after the first of its two pushes
        size = parameters.plan(PARAMETERS, 2).shards[0] + 1
        with tf.control_dependencies([accumulator(0).apply_grad(tf.ones([size]), 0)]):
            pushed = Membership.create(2, 1, "/job:ps/task:0").contributed(tf.constant(0, tf.int64))
    with servers.session(graph) as session:
        session.run(pushed)
    evaluating = Evaluating()
    with monitored(chief, servers, evaluating, straggler_seconds=0.5):
        update = ThreadPoolExecutor(1).submit(chief.update)
        assert wait([update], timeout=2).not_done, "the limit has passed four times"
        evaluating.is_evaluating_epoch = False
        assert update.result() == 1
        assert chief_steps.result() == 1


def test_the_first_round_waits_for_a_replica_whose_program_has_not_started(begin: Any, servers: Servers) -> None:
    chief, other = begin()
    addresses = {"worker 0": servers.workers[0], "worker 1": f"localhost:{free_ports(1)[0]}"}  # where nothing answers
    membership = chief.replica.replication.membership
    settings = Settings(sync_replicas=True, train_steps=TRAIN_STEPS)
    with ReplicaMonitor(chief.session, chief.replica, membership, addresses, settings, Callback()):
        chief_steps, update = chief.steps(0), ThreadPoolExecutor(1).submit(chief.update)
        assert wait([update], timeout=2 * QUIET_SECONDS + 1).not_done
        other_steps = other.steps(1)
        assert update.result(60) == 1
        assert [chief_steps.result(60), other_steps.result(60)] == [1, 1]


def test_a_round_without_a_gradient_is_not_ended(begin: Any) -> None:
    chief, _ = begin()
    want(chief, 1)
    complete(chief, 0)
    complete(chief, 0)
    assert times_out(lambda: chief.run(chief.replica.replication.updates[1], seconds=WAIT))


def test_the_parameter_server_knows_who_contributes_and_who_has_left(begin: Any) -> None:
    chief, other = begin()

    def last_steps() -> list[int]:
        return list(map(int, chief.run(chief.replica.replication.membership.last_steps)))

    assert last_steps() == [ABSENT, ABSENT]
    executions = [chief.steps(0), other.steps(1)]
    chief.update()
    assert [execution.result() for execution in executions] == [1, 1]
    assert last_steps() == [0, 0]
    other.run(other.replica.replication.membership.leave)
    assert last_steps() == [0, ABSENT]
    chief.lead()  # of a chief that has restarted
    assert last_steps() == [ABSENT, ABSENT]
