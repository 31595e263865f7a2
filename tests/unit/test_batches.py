"""Batches: their order, and their tensors in a graph."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.examples import Examples
from trainer.data.orders import orders
from trainer.graph import batches
from trainer.graph.batches import Batches, FedBatches, InMemoryBatches, make_batches
from trainer.tensorflow import tf, tf1


def drawn(count: int, size: int, seed: tuple[int, int], number: int) -> list[list[int]]:
    return [order.tolist() for order in itertools.islice(orders(count, size, seed), number)]


def test_the_seed_determines_the_order() -> None:
    found = {seed: drawn(50, 10, seed, 20) for seed in ((0, 0), (0, 1), (1, 0), (1, 1))}
    assert all(drawn(50, 10, seed, 20) == order for seed, order in found.items())
    assert len({str(order) for order in found.values()}) == 4


def test_epochs_have_different_orders() -> None:
    first, second = drawn(50, 50, (0, 0), 2)
    assert first != second


@given(count=st.integers(1, 30), size=st.integers(1, 70))
def test_batches_are_full_and_each_epoch_has_each_example_once(count: int, size: int) -> None:
    made = drawn(count, size, (0, 0), 3 * count // size + 2)
    assert {len(batch) for batch in made} == {size}
    stream = list(itertools.chain.from_iterable(made))
    for epoch in range(3):
        assert sorted(stream[epoch * count : (epoch + 1) * count]) == list(range(count))


@pytest.fixture
def examples() -> Examples:
    random = np.random.default_rng(0)
    return Examples(random.random((30, 4, 4, 1), np.float32), random.integers(0, 10, 30, np.int32))


def read(made: Batches, executions: list[int]) -> list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """The batches of executions with these numbers of steps."""
    tensors = [made.tensors(number) for number in range(max(executions))]
    found = []
    with tf1.Session() as session:
        made.begin(session)
        for steps in executions:
            feed = dict(zip(made.feeds, made.take(steps), strict=True))
            found += session.run(tensors[:steps], feed)
    return found


@pytest.mark.parametrize("limit", [0, 1 << 20], ids=["fed", "in_memory"])
@pytest.mark.parametrize("executions", [[1, 1, 1, 1, 1, 1], [4, 1, 1], [1, 5]], ids=str)
def test_a_graph_gets_the_batches_in_the_order_of_the_seed(
    examples: Examples, limit: int, executions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "IN_MEMORY_BYTES", limit)
    with tf.Graph().as_default():
        found = read(make_batches(examples, 8, (3, 1)), executions)
    expected = orders(30, 8, (3, 1))
    for (images, labels), pick in zip(found, expected, strict=False):
        assert np.array_equal(images, examples.inputs[pick])
        assert np.array_equal(labels, examples.targets[pick])
    assert len(found) == 6


def test_only_small_data_sets_are_copied_to_the_device(examples: Examples, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, expected in ((examples.nbytes, InMemoryBatches), (examples.nbytes - 1, FedBatches)):
        monkeypatch.setattr(batches, "IN_MEMORY_BYTES", limit)
        with tf.Graph().as_default():
            assert isinstance(make_batches(examples, 8, (0, 0)), expected)
