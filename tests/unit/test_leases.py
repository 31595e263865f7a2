"""Leases: each example of an epoch is dealt, whichever replicas come and go, and a checkpoint has what is left."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from trainer.data import leases
from trainer.data.epochs import Epochs, Position, Range
from trainer.data.leases import MOST_RANGES, Claimed, OwnLeases, fewer, merged
from trainer.data.orders import Deal, order
from trainer.graph.replication.lease_table import UNLIMITED, SharedLeases
from trainer.tensorflow import tf, tf1

REPLICAS = 3
STEPS = 4
"""Those of the first lease of a replica here."""


@dataclass
class Table:
    """The leases of three replicas in one session."""

    session: Any
    ops: list[SharedLeases]

    def reset(self, step: int, limit: int) -> None:
        self.ops[0].reset(self.session, step, limit)

    def own(self, index: int) -> OwnLeases:
        """The leases of a replica that joins."""
        self.session.run(self.ops[index].join)
        return self.ops[index].own(self.session)

    def report(self, index: int, done: int, step: int = -1) -> None:
        self.session.run(self.ops[index].report, {self.ops[index].done: done, self.ops[index].step: step})


@pytest.fixture(scope="module", params=[1, 2, 3], ids=lambda slots: f"{slots}_slots")
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    """The parts of a step are as many as the parameter; replicas that do not wait take all of a step."""
    with tf.Graph().as_default():
        with tf1.variable_scope("", reuse=tf1.AUTO_REUSE):
            ops = [
                SharedLeases.create(REPLICAS, index, "/cpu:0", request.param, (STEPS, MOST_RANGES), request.param > 1)
                for index in range(REPLICAS)
            ]
        with tf1.Session() as session:
            yield Table(session, ops)


def slots_of(table: Table) -> int:
    return int(table.ops[0].variables[0].shape[0]) - 4 * REPLICAS


@dataclass
class Replica:
    """A replica of a simulated run."""

    leases: OwnLeases
    place: int = 0
    """The parts that it has taken."""


@dataclass
class Run:
    """A simulated run: what its replicas have taken, and what they did not know to be done."""

    table: Table
    deal: Deal
    replicas: dict[int, Replica] = field(default_factory=dict)
    taken: Counter[tuple[int, int]] = field(default_factory=Counter)

    def take(self, index: int) -> bool:
        """Let a replica take one part; return whether there was one."""
        own = self.replicas[index]
        part = own.leases.at(own.place)
        if part is None:
            return False
        self.table.report(index, own.leases.done)
        self.taken.update(examples(self.deal.ranges(part.step, part.slot, 1)))
        own.leases.took(range(own.place, own.place + 1), is_done=True)
        own.place += 1
        return True

    def finish(self) -> None:
        """Let all replicas take what is left."""
        while not all(each.leases.is_over for each in self.replicas.values()):
            for index in self.replicas:
                self.take(index)


def examples(ranges: list[Range]) -> list[tuple[int, int]]:
    return [(epoch, place) for epoch, first, end in ranges for place in range(first, end)]


def drawn_deal(table: Table, data: st.DataObject) -> Deal:
    count, size = data.draw(st.integers(1, 60), "examples"), data.draw(st.integers(1, 5), "size")
    return Deal(count, size, slots_of(table), seed=0)


@hypothesis_settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_each_example_is_taken_whoever_comes_and_goes(table: Table, data: st.DataObject) -> None:
    deal = drawn_deal(table, data)
    count, size = deal.examples, deal.size
    table.reset(0, deal.epochs.last_step(2))
    run, lost = Run(table, deal), 0
    for event in data.draw(st.lists(st.tuples(st.sampled_from(["take", "join", "lose"]), st.integers(0, 2))), "events"):
        kind, index = event
        if kind == "join" or index not in run.replicas:
            lost += index in run.replicas  # its earlier process was killed
            run.replicas[index] = Replica(table.own(index))
        elif kind == "lose":
            table.ops[0].give_back(table.session, index)
            del run.replicas[index]
            lost += 1
        else:
            run.take(index)
    run.replicas |= {index: Replica(table.own(index)) for index in range(REPLICAS) if index not in run.replicas}
    run.finish()
    assert {*run.taken} == {*examples([(epoch, 0, count) for epoch in range(2)])}
    assert sum(run.taken.values()) - 2 * count <= lost * size  # a part that was not reported


@hypothesis_settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_checkpoint_has_what_is_left_for_any_number_of_learners(table: Table, data: st.DataObject) -> None:
    deal = drawn_deal(table, data)
    count, size = deal.examples, deal.size
    table.reset(0, data.draw(st.sampled_from([deal.epochs.last_step(2), UNLIMITED]), "limit"))
    run = Run(table, deal, {index: Replica(table.own(index)) for index in range(REPLICAS)})
    for index in data.draw(st.lists(st.integers(0, 2), max_size=40), "takes"):
        run.take(index)
    for index, own in run.replicas.items():
        table.report(index, own.leases.done)
    learners = data.draw(st.integers(1, 4), "learners")
    begun = table.ops[0].read(table.session).position(deal, 1, step=17)
    after = Epochs(count, size * learners).continued(replace(deal.epochs, begun=begun), 17)
    rest = Deal(count, size, learners, seed=0, begun=after.begun)
    epochs = max(2, begun.epoch + 1)  # without a limit, leases may be of later epochs
    for step in range(17, after.last_step(epochs)):
        for learner in range(learners):
            ranges = rest.ranges(step, learner, 1)
            indices, counted = rest.take(step, learner)
            run.taken.update(examples(ranges))
            in_order = [order(count, 0, epoch)[place] for epoch, place in examples(ranges)]
            assert in_order == indices[: len(in_order)].tolist()
            assert rest.is_even or counted == len(in_order)
    assert {*run.taken} == {*examples([(epoch, 0, count) for epoch in range(epochs)])}
    assert max(run.taken.values()) == 1 or len(begun.missed) == MOST_RANGES


def test_replicas_that_wait_for_each_other_take_the_parts_of_the_same_steps(table: Table) -> None:
    slots = slots_of(table)
    table.reset(0, 11)
    replicas = [table.own(index) for index in range(slots)]
    for step in range(11):
        found = [each.at(step) for each in reversed(replicas)]
        assert found == [(step, slot) for slot in reversed(range(slots))], "its own, whoever comes first"
        for each in replicas:
            each.took(range(step, step + 1), is_done=True)
    assert [each.at(11) for each in replicas] == [None] * slots
    assert replicas[-1].is_over


def test_a_checkpoint_between_two_steps_of_all_has_no_holes(table: Table) -> None:
    slots, deal = slots_of(table), Deal(100, 2, slots_of(table), seed=0)
    table.reset(0, UNLIMITED)
    replicas = [table.own(index) for index in range(slots)]
    for step in range(5):
        assert all(each.has(range(step, step + 1)) for each in replicas)
        for each in replicas:
            each.took(range(step, step + 1), is_done=True)
    for index in range(slots):
        table.report(index, 2, step=2)  # before the last execution
    read = table.ops[0].read(table.session)
    assert read.position(deal, 1, step=5) == Position(5, 0, 10 * slots)
    later = read.position(deal, 1, step=5, certain=3)  # a new chief does not know who was there
    assert later == Position(5, 0, 8 * slots)


def test_parts_that_a_step_did_not_take_are_taken_again() -> None:
    claims = iter([Claimed(0, 4, 0, False), Claimed(4, 4, 0, False)])
    own = OwnLeases(lambda *_: next(claims), (STEPS, STEPS))
    assert own.has(range(4))
    own.took(range(2), is_done=False)
    own.took(range(2, 4), is_done=True)
    assert own.done == 0
    assert [own.at(place).step for place in (4, 5, 6)] == [0, 1, 4]  # type: ignore[union-attr]
    own.took(range(4, 6), is_done=True)
    assert own.done == 4


def test_ranges_are_joined_where_there_are_too_many() -> None:
    assert merged([(1, 5, 7), (0, 0, 3), (1, 2, 5)]) == [(0, 0, 3), (1, 2, 7)]
    assert fewer([(0, 0, 1), (0, 5, 6), (0, 7, 8), (1, 0, 1)], 3) == [(0, 0, 1), (0, 5, 8), (1, 0, 1)]


def test_a_replica_that_needs_a_lease_soon_claims_a_larger_one_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEASE_SECONDS", math.inf)
    wanted: list[int] = []

    def claim(done: int, number: int, steps: int) -> Claimed:
        wanted.append(steps)
        return Claimed(number, steps, 0, False)

    own = OwnLeases(claim, (64, 256))
    own.at(0)
    own.at(1000)
    assert wanted == [64, 128, 256, 256, 256, 256]
