"""The ops of row_ops.cc, beside TensorFlow's own and Keras's optimizers."""

import threading
from typing import Any

import keras
import numpy as np
import pytest

from trainer.kernels import library, row_ops, row_sums, row_update
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.private import eager_mode

ROWS, DIM = 500, 19

pytestmark = pytest.mark.skipif(library.load() is None, reason="there is no compiler of C++")

OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"clipvalue": 0.5}),
    ("Adagrad", {}),
    ("Adagrad", {"weight_decay": 0.01}),
    ("RMSprop", {}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {"weight_decay": 0.1}),
    ("Ftrl", {"l1_regularization_strength": 0.1, "l2_regularization_strength": 0.2, "beta": 0.3}),
    ("Ftrl", {"l2_shrinkage_regularization_strength": 0.1}),
]


@pytest.mark.parametrize(("name", "settings"), OPTIMIZERS, ids=str)
def test_rows_are_updated_as_by_keras(name: str, settings: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=[ROWS, DIM]).astype(np.float32)
    with eager_mode():
        alone = getattr(keras.optimizers, name)(0.05, **settings)
        variable = keras.Variable(values)
        alone.build([variable])
        slots = [each for each in alone.variables if tuple(each.shape) == (ROWS, DIM)]
        initial = [each.numpy() for each in slots]
    by_rows = row_update.of(alone)
    assert by_rows
    with tf.Graph().as_default(), tf1.Session() as session:
        made = [
            tf1.get_variable(f"v{number}", initializer=each, use_resource=True)
            for number, each in enumerate([values, *initial])
        ]
        periods = tf1.get_variable("periods", initializer=np.zeros(ROWS, np.int32), use_resource=True)
        rows, gradients, count = (
            tf1.placeholder(kind, shape) for kind, shape in ((tf.int64, [None]), (tf.float32, [None]), (tf.int64, []))
        )
        update = by_rows.add(
            made[0],
            made[1:],
            periods,
            tf.constant(3),
            rows,
            gradients,
            0.05,
            count,
            True,
        )
        session.run(tf1.global_variables_initializer())
        for number in range(5):
            change = random.normal(size=[ROWS, DIM]).astype(np.float32)
            change[0, 0] = 0
            order = random.permutation(ROWS)
            session.run(update, {rows: order, gradients: change[order].ravel(), count: number})
            with eager_mode():
                alone.apply_gradients([(tf.constant(change), variable)])
        found = session.run(made)
        assert (session.run(periods) == 3).all()
    with eager_mode():
        expected = [variable.numpy(), *(each.numpy() for each in slots)]
    for own, other in zip(found, expected, strict=True):
        assert np.allclose(own, other, rtol=2e-5, atol=3e-6 * np.abs(other).max())


@pytest.mark.parametrize("count", [0, 1, 7, 10_000])
def test_distinct_ids_are_those_of_tensorflow(count: int) -> None:
    random = np.random.default_rng(count)
    ids = np.concatenate([random.integers(-(2**62), 2**62, count), random.integers(0, 50, count)])
    random.shuffle(ids)
    with tf.Graph().as_default(), tf1.Session() as session:
        found, expected = session.run([row_ops.distinct(tf.constant(ids)), tf.unique(tf.constant(ids))])
    for own, other in zip(found, expected, strict=True):
        assert own.dtype == other.dtype
        assert np.array_equal(own, other)


@pytest.mark.usefixtures("row_ops")
def test_contributions_to_a_round_are_averaged_by_row_and_those_to_earlier_ones_dropped() -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        sums = row_sums.create("sums", ROWS, 2)
        rows, gradients = tf1.placeholder(tf.int64, [None]), tf1.placeholder(tf.float32, [None])
        weight, step = tf1.placeholder(tf.float32, []), tf1.placeholder(tf.int64, [])
        add, take, start, empty = sums.add(rows, gradients, weight, step), sums.take(), sums.start(step), sums.empty()

        def contribute(own: list[int], values: list[float], by: float, at: int) -> None:
            session.run(add, {rows: own, gradients: values, weight: by, step: at})

        session.run(start, {step: 5})
        contribute([3], [100, 100], 1, 4)
        contribute([7, 3], [1, 2, 3, 4], 1, 5)
        contribute([3, 9], [10, 20, 30, 40], 0.5, 5)
        contribute([], [], 0.5, 5)
        found, averages = session.run(take)
        order = np.argsort(found)
        assert found[order].tolist() == [3, 7, 9]
        assert averages.reshape(-1, 2)[order].tolist() == [[6.5, 12], [0.5, 1], [15, 20]]
        contribute([3], [100, 100], 1, 5)  # too late: the round was taken
        contribute([1], [2, 4], 2, 6)
        assert [each.tolist() for each in session.run(take)] == [[1], [1, 2]]
        contribute([1], [2, 4], 2, 7)
        session.run(empty)
        session.run(start, {step: 8})
        contribute([2], [4, 8], 4, 8)
        assert [each.tolist() for each in session.run(take)] == [[2], [1, 2]]
        contribute(list(range(ROWS)), [1, 2] * ROWS, 1, 9)  # the table of places grows
        contribute(list(range(ROWS - 2, -1, -1)), [3, 4] * (ROWS - 1), 1, 9)
        found, averages = session.run(take)
        expected = [[2, 3]] * (ROWS - 1) + [[0.5, 1]]
        assert averages.reshape(-1, 2)[np.argsort(found)].tolist() == expected


def test_sums_of_rows_are_those_of_their_gradients() -> None:
    random = np.random.default_rng(0)
    gradients = [random.normal(size=shape).astype(np.float32) for shape in ([40, 5, DIM], [30, DIM], [0, DIM])]
    places = [random.integers(0, 20, each.shape[:-1]).astype(np.int32) for each in gradients]
    expected = np.zeros([25, DIM])
    for gradient, place in zip(gradients, places, strict=True):
        np.add.at(expected, place.ravel(), gradient.reshape(-1, DIM))
    with tf.Graph().as_default(), tf1.Session() as session:
        given = [tf.constant(gradients[0]), *map(tf.constant, gradients[1:])]
        found = session.run(row_ops.sums(given, [*map(tf.constant, places)], tf.constant(25), DIM))
    assert np.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "places", "expected"),
    [
        ([0, ROWS], [0], "a row is not in the table"),
        ([-1], [0], "a row is not in the table"),
        ([0], [9], "out of range"),
    ],
)
def test_what_is_out_of_range_is_an_error_and_changes_nothing(
    rows: list[int], places: list[int], expected: str
) -> None:
    with eager_mode():
        optimizer = keras.optimizers.SGD(0.1)
    by_rows = row_update.of(optimizer)
    assert by_rows
    with tf.Graph().as_default(), tf1.Session() as session:
        values = tf1.get_variable("values", initializer=np.ones([ROWS, 1], np.float32), use_resource=True)
        periods = tf1.get_variable("periods", initializer=np.zeros(ROWS, np.int32), use_resource=True)
        given = tf.constant(rows, tf.int64), tf.ones([len(rows)]), 0.1, tf.constant(0, tf.int64), False
        update = by_rows.add(values, [], periods, tf.constant(1), *given)
        summed = row_ops.sums([tf.ones([1, 1])], [tf.constant(places)], tf.constant(3), 1)
        session.run(tf1.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
            session.run([update, summed] if "row" in expected else summed)
        assert (session.run(values) == 1).all()


def test_no_update_is_lost_while_others_update_and_read() -> None:
    """Four threads add 1 to all rows 200 times, as four replicas do that share a server; reads find whole rows."""
    with eager_mode():
        optimizer = keras.optimizers.SGD(1.0)
    by_rows = row_update.of(optimizer)
    assert by_rows
    rows, threads, times = 20_000, 4, 100
    with tf.Graph().as_default(), tf1.Session() as session:
        values = tf1.get_variable("values", initializer=np.zeros([rows, DIM], np.float32), use_resource=True)
        periods = tf1.get_variable("periods", initializer=np.zeros(rows, np.int32), use_resource=True)
        given = tf.range(rows, dtype=tf.int64), -tf.ones([rows * DIM]), 1.0, tf.constant(0, tf.int64), False
        update = by_rows.add(values, [], periods, tf.constant(1), *given)
        some = values.sparse_read(tf.range(0, rows, 7, dtype=tf.int64))
        whole = values.read_value()
        session.run(tf1.global_variables_initializer())
        started = [threading.Thread(target=lambda: [session.run(update) for _ in range(times)]) for _ in range(threads)]
        for each in started:
            each.start()
        while any(each.is_alive() for each in started):
            for found in session.run([some, whole]):
                assert (found == found[:, :1]).all()  # no update stops within a row
        assert (session.run(values) == threads * times).all()
