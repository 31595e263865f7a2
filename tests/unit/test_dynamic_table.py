"""Tables that grow, on a server: the ops on them, beside those on fixed tables and the initial rows of plain Keras."""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import pytest

from trainer.dynamic.ids import NO_ID
from trainer.dynamic.initial_rows import InitialRows
from trainer.kernels import library, row_update
from trainer.kernels.dynamic_table import DynamicTable
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.private import eager_mode

pytestmark = pytest.mark.skipif(library.load() is None, reason="there is no compiler of C++")

Array = npt.NDArray[Any]

DIM, SLOT = 5, 0.25
SEED = 7
NUMBERS = itertools.count()


class Rows:
    """A table, whose ops run at once."""

    def __init__(
        self,
        capacity: int = 1000,
        admit_after: int = 1,
        expire_after: int = 0,
        initializer: tuple[str, float, float] = ("uniform", -0.5, 0.5),
        dim: int = DIM,
        slots: tuple[float, ...] = (),
    ) -> None:
        self.table = DynamicTable(f"table_{next(NUMBERS)}")
        self.dim, self.now = dim, 0
        self.table.create(dim, slots, capacity, admit_after, expire_after, initializer, SEED)

    def read(self, *ids: int, now: int | None = None) -> Array:
        """The values of rows, at the next step or at this one."""
        self.now = self.now + 1 if now is None else now
        found = self.table.read(tf.constant(ids, tf.int64), tf.constant(self.now, tf.int64))
        return found.numpy().reshape(-1, self.dim)  # type: ignore[no-any-return]

    def update(self, optimizer: Any, ids: Any, gradients: Array, count: int = 0) -> None:
        rule = row_update.of(optimizer)
        assert rule
        rate = float(optimizer.learning_rate.numpy())
        given = tf.constant(ids, tf.int64), tf.constant(gradients.ravel(), tf.float32)
        rule.add_dynamic(self.table.name, *given, rate, tf.constant(count, tf.int64), True)

    def stored(self, ids: bool = True) -> dict[int, Array]:
        """All rows with their slots, by id or else by number."""
        end = self.table.counts()[0]
        keys, _, values = (each.numpy() for each in self.table.between(tf.constant(0, tf.int64), end))
        assert len(keys) == end
        pairs = enumerate(keys) if not ids else ((key, number) for number, key in enumerate(keys))
        return {
            int(key): values[key if not ids else number]
            for key, number in pairs
            if (number if not ids else key) != NO_ID
        }

    def counts(self) -> dict[str, int]:
        names = ("end", "rows", "left", "period", "index_bytes")
        return dict(zip(names, map(int, self.table.counts().numpy()), strict=True))


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    with eager_mode():
        yield


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.RandomUniform(-0.2, 0.7, seed=SEED),
        keras.initializers.RandomNormal(0.3, 0.5, seed=SEED),
        keras.initializers.TruncatedNormal(0.3, 0.5, seed=SEED),
        keras.initializers.Constant(0.4),
        keras.initializers.Ones(),
        keras.initializers.Zeros(),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_new_row_has_the_initial_values_of_its_id(initializer: Any) -> None:
    initial = InitialRows(initializer, DIM)
    rows = Rows(100_000, initializer=(initial.kind, initial.first, initial.second), slots=(SLOT,))
    ids = np.random.default_rng(0).integers(-(2**63) + 1, 2**63 - 1, 20_000)
    found = rows.read(*ids)
    assert np.allclose(found, initial.of(ids), rtol=0, atol=1e-6)
    assert np.array_equal(
        found[5:9], Rows(4, initializer=(initial.kind, initial.first, initial.second)).read(*ids[5:9])
    )
    drawn = initializer(found.shape).numpy()
    assert found.mean() == pytest.approx(drawn.mean(), abs=0.01)
    assert found.std() == pytest.approx(drawn.std(), abs=0.01)
    assert found.min() == pytest.approx(drawn.min(), abs=0.3)
    assert (rows.stored()[int(ids[3])][DIM:] == SLOT).all()


def test_other_initializers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"RandomUniform, .* was expected"):
        InitialRows(keras.initializers.GlorotUniform(), DIM)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SGD", {}),
        ("Adagrad", {}),
        ("RMSprop", {}),
        ("AdamW", {"weight_decay": 0.1}),
        ("Adam", {"amsgrad": True}),
        ("Ftrl", {}),
    ],
    ids=str,
)
def test_rows_are_updated_as_those_of_a_fixed_table(name: str, settings: dict[str, Any]) -> None:
    """Each update has some of the rows, in another order, and ids without a row, whose gradients have no effect."""
    optimizer = getattr(keras.optimizers, name)(0.1, **settings)
    random = np.random.default_rng(0)
    ids = random.integers(-(2**63) + 1, 2**63 - 1, 3000)
    initial = InitialRows(keras.initializers.RandomUniform(-0.5, 0.5, seed=SEED), DIM).of(ids)
    variable = keras.Variable(initial)
    optimizer.build([variable])
    slots = [each for each in optimizer.variables if tuple(each.shape) == (3000, DIM)]
    rows = Rows(10_000, slots=tuple(float(each.numpy()[0, 0]) for each in slots))
    rows.read(*ids)
    made = [tf.Variable(each.numpy()) for each in (variable, *slots)]
    periods, rule = tf.Variable(np.zeros(3000, np.int32)), row_update.of(optimizer)
    assert rule
    for count in range(4):
        places = random.permutation(3000)[:2000]
        gradients = random.normal(size=(2000, DIM)).astype(np.float32)
        rate, number = float(optimizer.learning_rate.numpy()), tf.constant(count, tf.int64)
        changed = tf.constant(places), tf.constant(gradients.ravel())
        rule.add(made[0], made[1:], periods, tf.constant(1), *changed, rate, number, True)
        absent = np.concatenate([[NO_ID], np.arange(100), ids[places]])
        rows.update(optimizer, absent, np.concatenate([np.ones((101, DIM)), gradients]), count)
    expected = np.concatenate([each.numpy() for each in made], axis=1)
    stored = rows.stored()
    assert stored.keys() == set(ids.tolist())
    assert np.allclose(np.stack([stored[each] for each in ids.tolist()]), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("capacity", [3000, 40_001])
def test_rows_of_ids_beyond_the_capacity_are_those_read_last(capacity: int) -> None:
    """Those that were read long ago leave, and of the last tenth none does. All is found by its id."""
    rows = Rows(capacity, initializer=("constant", 0, 0))
    steps, batch = 60, capacity // 10
    for step in range(steps):
        ids = np.arange(step * batch, (step + 1) * batch)
        rows.read(*ids)
        rows.update(keras.optimizers.SGD(1.0), ids, -np.repeat(ids.astype(np.float32)[:, None], DIM, 1), step)
    stored = rows.stored()
    assert 0.9 * capacity < len(stored) <= capacity
    assert rows.counts()["rows"] == len(stored)
    assert rows.counts()["left"] == steps * batch - len(stored)
    assert stored.keys() >= {*range((steps - 1) * batch, steps * batch)}
    assert np.median([*stored]) > (steps - 9) * batch
    for key, values in stored.items():
        assert np.array_equal(values, np.full(DIM, key, np.float32))
    assert (rows.read(0) == 0).all()


def test_more_ids_in_a_step_than_rows_read_zeros() -> None:
    rows = Rows(100, initializer=("constant", 1, 0))
    found = rows.read(*range(1000))
    assert (found.sum(axis=1) == DIM).sum() == 100
    assert (found.sum(axis=1) == 0).sum() == 900
    assert rows.counts()["left"] == 0


def test_the_id_of_padding_never_has_a_row() -> None:
    rows = Rows(initializer=("constant", 1, 0))
    assert rows.read(NO_ID, 0, -1).tolist() == [[0.0] * DIM, [1.0] * DIM, [1.0] * DIM]
    rows.update(keras.optimizers.SGD(1.0), [NO_ID], np.ones((1, DIM)))
    assert rows.stored().keys() == {0, -1}


def test_an_id_is_admitted_when_it_was_read_often_enough() -> None:
    rows = Rows(admit_after=3, initializer=("constant", 1, 0))
    for _ in range(2):
        assert (rows.read(*range(50)) == 0).all()
    rows.update(keras.optimizers.SGD(1.0), np.arange(50), np.ones((50, DIM)))
    assert (rows.read(*range(25)) == 1).all()
    assert rows.stored().keys() == {*range(25)}


def test_ids_that_are_read_once_are_not_admitted_by_the_number_of_others() -> None:
    """The counts of ids are halved at times, so that they stay apart."""
    rows = Rows(5000, admit_after=2, initializer=("constant", 1, 0))
    for start in range(0, 400_000, 2000):
        rows.read(*range(start, start + 2000))
    assert rows.counts()["rows"] + rows.counts()["left"] < 0.6 * 400_000


@pytest.mark.parametrize("expire_after", [10, 1000])
def test_rows_that_were_not_read_for_long_leave_and_others_get_their_places(expire_after: int) -> None:
    rows = Rows(20_000, expire_after=expire_after)
    rows.read(*range(5000), now=0)
    for now in range(1, 2 * expire_after, max(1, expire_after // 20)):
        rows.read(*range(4000, 5000), *range(10**6 + 10 * now, 10**6 + 10 * now + 10), now=now)
        if now <= expire_after:
            assert rows.stored().keys() >= {*range(5000)}
    assert not rows.stored().keys() & {*range(4000)}
    assert rows.stored().keys() >= {*range(4000, 5000)}
    assert rows.counts()["left"] == 0
    end = rows.counts()["end"]
    rows.read(*range(2 * 10**6, 2 * 10**6 + 3000), now=2 * expire_after)
    assert rows.counts()["end"] == end


def test_changed_rows_are_those_since_a_period() -> None:
    rows = Rows(expire_after=100, initializer=("constant", 1, 0))
    rows.read(*range(10), now=0)

    def changed(since: int, period: int) -> dict[int, int]:
        numbers, ids, used, values = rows.table.changed(tf.constant(since), tf.constant(period))
        assert values.shape == (len(ids), DIM)
        assert ((used.numpy() == 0) | (ids.numpy() != NO_ID)).all()
        return dict(zip(numbers.numpy().tolist(), ids.numpy().tolist(), strict=True))

    rows.table.begin(tf.constant(1))
    assert changed(1, 2) == {}
    rows.update(keras.optimizers.SGD(1.0), [3], np.ones((1, DIM)))
    rows.read(11, now=50)
    assert sorted(changed(2, 3).values()) == [3, 11]
    assert sorted(changed(2, 4).values()) == [3, 11]
    assert changed(3, 5) == {}
    rows.read(11, now=140)
    assert [*changed(5, 6).values()] == [NO_ID] * 10, "rows that have left"
    assert rows.counts()["period"] == 6


def test_rows_are_loaded_with_their_slots_and_times() -> None:
    rows, other = (Rows(capacity, expire_after=100, slots=(SLOT,)) for capacity in (10_000, 20_000))
    random = np.random.default_rng(0)
    ids = random.integers(-(2**62), 2**62, 5000)
    rows.read(*ids, now=7)
    rows.update(keras.optimizers.Adagrad(0.1), ids, random.normal(size=(5000, DIM)))
    other.table.load(*rows.table.between(tf.constant(0, tf.int64), tf.constant(rows.counts()["end"], tf.int64)))
    expected = rows.stored()
    found = other.stored()
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[key], expected[key]) for key in expected)
    other.read(1, now=107)
    assert len(other.stored()) == 5001
    for now in range(108, 160):
        other.read(*range(2, 300), now=now)
    assert other.stored().keys() == {*range(1, 300)}


def test_threads_lose_no_update_and_find_each_row_while_others_come_and_go() -> None:
    """Three threads add 1 to some rows, while others are inserted and leave, and snapshots are taken."""
    kept, times, table = np.arange(4000), 60, DynamicTable("of_threads")
    rule = row_update.of(keras.optimizers.SGD(1.0))
    assert rule
    now = itertools.count()
    with tf.Graph().as_default(), tf1.Session() as session:
        create = table.create(DIM, (), 30_000, 1, 0, ("constant", 0.0, 0.0), SEED)
        ids, step, period = (tf1.placeholder(kind) for kind in (tf.int64, tf.int64, tf.int32))
        read, counts = table.read(ids, step), table.counts()
        gradients = -tf.ones([len(kept) * DIM])
        with tf.control_dependencies([read]):
            add = rule.add_dynamic(table.name, tf.constant(kept), gradients, 1.0, tf.constant(0, tf.int64), True)
        snapshot = [
            table.changed(period, period + 1),
            table.between(*map(tf.constant, (np.int64(0), np.int64(30_000)))),
        ]
        session.run(create)
        failures: list[Exception] = []

        def run(wanted: Any, feeds: Callable[[int], dict[Any, Any]]) -> None:
            try:
                for number in range(times):
                    session.run(wanted, feeds(number))
            except Exception as error:
                failures.append(error)

        def others(number: int) -> dict[Any, Any]:
            new = np.arange(2000) + 10**6 + 2000 * number
            return {ids: np.concatenate([kept, new]), step: next(now)}  # so that the first ones stay

        works = [(add, lambda _: {ids: kept, step: next(now)})] * 3 + [(read, others)] * 2
        works.append((snapshot, lambda number: {period: number}))
        threads = [threading.Thread(target=run, args=each) for each in works]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert not failures
        found = session.run(read, {ids: kept, step: next(now)}).reshape(-1, DIM)
        assert np.array_equal(found, np.full((len(kept), DIM), 3.0 * times))
        assert session.run(counts)[2] > 0, "rows have left"


def test_the_index_takes_few_bytes_of_a_row() -> None:
    rows = Rows(10**6, dim=1, slots=())
    for start in range(0, 800_000, 100_000):
        rows.read(*range(start, start + 100_000))
    counts = rows.counts()
    assert counts["rows"] == 800_000
    assert counts["index_bytes"] / counts["rows"] < 48


def test_a_table_that_was_not_made_is_not_initialized() -> None:
    table = DynamicTable("none")
    assert not table.is_there().numpy()
    with pytest.raises(tf.errors.FailedPreconditionError, match="the table none is not initialized"):
        table.counts()
    assert Rows().table.is_there().numpy()
