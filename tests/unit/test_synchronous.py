"""Synchronous replication, in a real cluster of this process: what the parameters are, and who waits for whom.

Steps are taken one after another from one thread: a replica's step ends when it has given its gradient, and the chief's
update waits until there are enough.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from trainer import parameters, replica
from trainer.config import Settings
from trainer.model import Model, Parameter
from trainer.models import mlp
from trainer.replica import Replica
from trainer.replication import synchronous
from trainer.tensorflow import tf, tf1

from .conftest import Batch, Servers, values_in

PARAMETERS = mlp.parameters((784,), 10, 100)
Save = Callable[[Replica, Any], str]
Values = Callable[[Replica, Any], dict[str, npt.NDArray[Any]]]
MakeBatch = Callable[[int], Batch]


@dataclass(frozen=True)
class Member:
    """A replica and its session."""

    replica: Replica
    session: Any

    def run(self, operation: Any, batch: Batch | None = None, seconds: float = 60) -> Any:
        """Run an op of the replica; it may wait for others for so long."""
        feed = {self.replica.images: batch[0], self.replica.labels: batch[1]} if batch else None
        return self.session.run(operation, feed, tf1.RunOptions(timeout_in_ms=int(1000 * seconds)))

    def step(self, batch: Batch) -> int:
        """Give the gradient of a batch."""
        return int(self.run(self.replica.replication.step, batch))

    def update(self) -> int:
        """Apply the average of the gradients, as the chief does beside its own steps; the global step after it."""
        return int(self.run(self.replica.replication.update))

    def lead(self) -> None:
        self.run(self.replica.replication.lead)

    def join(self) -> None:
        self.run(self.replica.replication.join)

    def waits_for(self, operation: Any, batch: Batch | None = None) -> bool:
        """Whether an op does not end by itself."""
        try:
            self.run(operation, batch, seconds=0.5)
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

        def make(index: int, aggregate: int | None = None, model: Model = mlp) -> Member:
            settings = Settings(sync_replicas=True, replicas_to_aggregate=aggregate)
            found = replica.build(settings, servers.member(index), model, PARAMETERS, (784,), 0, "this run")
            return Member(found, stack.enter_context(servers.session(found.graph, index)))

        yield make


@pytest.fixture
def begin(member: Callable[..., Member]) -> Callable[..., tuple[Member, Member]]:
    """Begins a run of two replicas, each of which has joined."""

    def run(aggregate: int | None = None) -> tuple[Member, Member]:
        chief, other = member(0, aggregate), member(1, aggregate)
        chief.run(chief.replica.initialize)
        chief.lead()
        chief.join()
        other.join()
        return chief, other

    return run


@pytest.fixture
def alone(values: Values) -> Callable[[str, list[Batch]], dict[str, npt.NDArray[Any]]]:
    """Gives the values that a single process reaches from a cluster's checkpoint, stepping through these batches."""

    def train(start: str, batches: list[Batch]) -> dict[str, npt.NDArray[Any]]:
        found = replica.build(Settings(), None, mlp, PARAMETERS, (784,), 0, "this run")
        with tf1.Session(graph=found.graph) as session:
            found.saver.restore(session, start)
            for images, labels in batches:
                session.run(found.replication.step, {found.images: images, found.labels: labels})
            return values(found, session)

    return train


def joined(*batches: Batch) -> Batch:
    """The batch whose mean loss is the mean of these batches' mean losses."""
    return np.concatenate([images for images, _ in batches]), np.concatenate([labels for _, labels in batches])


def assert_close(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.allclose(found[name], value, rtol=1e-3, atol=2e-5), name


def test_two_replicas_learn_as_one_that_averages_their_gradients(
    begin: Any, make_batch: MakeBatch, save: Save, values: Values, alone: Any
) -> None:
    chief, other = begin()
    start = save(chief.replica, chief.session)
    batches = [(make_batch(2 * number), make_batch(2 * number + 1)) for number in range(4)]
    for number, (mine, others) in enumerate(batches):
        assert chief.step(mine) == number
        assert other.step(others) == number
        assert chief.update() == number + 1
    end = values(chief.replica, chief.session)
    assert_close(end, alone(start, [joined(*pair) for pair in batches]))
    assert not np.allclose(end["hidden/weights"], values_in(start)["hidden/weights"], atol=1e-2)  # they did move


def test_a_replica_gives_one_gradient_a_step_and_then_waits(begin: Any, make_batch: MakeBatch) -> None:
    chief, other = begin()
    other.step(make_batch(0))
    assert other.waits_for(other.replica.replication.step, make_batch(1))
    chief.step(make_batch(2))
    chief.update()
    assert other.step(make_batch(3)) == 1


def test_an_update_waits_for_all_replicas(begin: Any, make_batch: MakeBatch) -> None:
    chief, other = begin()
    chief.step(make_batch(0))
    assert chief.waits_for(chief.replica.replication.update)
    assert chief.run(chief.replica.global_step) == 0
    other.step(make_batch(1))
    assert other.waits_for(other.replica.replication.step, make_batch(1))


def test_after_the_last_update_nobody_waits(begin: Any, make_batch: MakeBatch) -> None:
    chief, other = begin()
    for each in (chief, other):
        each.step(make_batch(0))
    chief.update()
    assert [each.step(make_batch(1)) for each in (other, chief)] == [1, 1]


def test_with_a_backup_replica_one_gradient_is_enough(
    begin: Any, make_batch: MakeBatch, save: Save, values: Values, alone: Any
) -> None:
    chief, other = begin(aggregate=1)
    start = save(chief.replica, chief.session)
    chief.step(make_batch(0))
    chief.update()
    other.step(make_batch(1))
    chief.update()
    assert_close(values(chief.replica, chief.session), alone(start, [make_batch(0), make_batch(1)]))


def test_a_gradient_that_comes_too_late_is_dropped(
    member: Any, make_batch: MakeBatch, save: Save, values: Values, alone: Any
) -> None:
    gate = Gated(threading.Event(), threading.Event())
    chief, slow = member(0, aggregate=1), member(1, aggregate=1, model=gate)
    chief.run(chief.replica.initialize)
    chief.lead()
    chief.join()
    slow.join()
    start = save(chief.replica, chief.session)
    late = threading.Thread(target=slow.step, args=[make_batch(9)])
    late.start()
    assert gate.reached.wait(60)  # it has read the parameters of step 0
    chief.step(make_batch(0))
    assert chief.update() == 1
    gate.opened.set()
    late.join()
    chief.step(make_batch(1))
    assert chief.update() == 2
    assert_close(values(chief.replica, chief.session), alone(start, [make_batch(0), make_batch(1)]))


def test_a_replica_that_was_away_takes_part_in_the_step_that_is_on_now(
    begin: Any, member: Any, make_batch: MakeBatch, save: Save, values: Values, alone: Any
) -> None:
    chief, _ = begin(aggregate=1)
    for number in range(3):
        chief.step(make_batch(number))
        chief.update()
    start = save(chief.replica, chief.session)
    back = member(1, aggregate=1)
    back.join()
    assert back.step(make_batch(3)) == 3
    chief.update()
    assert_close(values(chief.replica, chief.session), alone(start, [make_batch(3)]))
    assert back.step(make_batch(4)) == 4  # and has found no pile of tokens of the steps before
    assert back.waits_for(back.replica.replication.step, make_batch(5))


def take_from(session_of: Servers, part: int) -> None:
    """Take the gradients of one part alone, as a chief does that dies in the midst of an update."""
    layout = parameters.plan(PARAMETERS, 2)
    graph = tf.Graph()
    with graph.as_default(), tf1.device(f"/job:ps/task:{part}"):
        shared = f"part_{part}_of_2/gradients"
        accumulator = tf1.ConditionalAccumulator(tf.float32, [layout.parts[part]], shared_name=shared, name=shared)
        taken = accumulator.take_grad(2)
    with session_of.session(graph) as session:
        assert session.run(taken, options=tf1.RunOptions(timeout_in_ms=60_000)).any()


@pytest.mark.parametrize("taken", [[], [0], [1]])
def test_a_chief_that_comes_back_forgets_what_it_took_in_part_and_goes_on(
    taken: list[int],
    begin: Any,
    member: Any,
    servers: Servers,
    make_batch: MakeBatch,
    save: Save,
    values: Values,
    alone: Any,
) -> None:
    former, other = begin()
    former.step(make_batch(0))
    other.step(make_batch(1))
    former.update()
    start = save(former.replica, former.session)
    former.step(make_batch(2))
    other.step(make_batch(3))
    for part in taken:
        take_from(servers, part)
    former.session.close()

    chief = member(0)
    chief.lead()
    chief.join()
    assert chief.step(make_batch(4)) == 1
    assert other.step(make_batch(5)) == 1  # the same step once more
    assert chief.update() == 2
    chief.step(make_batch(6))
    other.step(make_batch(7))
    assert chief.update() == 3
    expected = alone(start, [joined(make_batch(4), make_batch(5)), joined(make_batch(6), make_batch(7))])
    assert_close(values(chief.replica, chief.session), expected)


def test_a_replica_that_never_comes_does_not_block_the_others_when_its_tokens_are_many(
    begin: Any, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synchronous, "TOKENS_KEPT", 3)
    chief, other = begin(aggregate=1)
    for number in range(7):
        assert chief.step(make_batch(0)) == number
        assert chief.update() == number + 1
    other.join()  # back after more steps than it has tokens of
    assert other.step(make_batch(1)) == 7
    assert chief.update() == 8
    assert other.step(make_batch(1)) == 8
