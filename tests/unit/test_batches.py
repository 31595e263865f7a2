"""Batches: how an epoch is dealt, and their tensors in a graph."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import Settings
from trainer.data.examples import Examples
from trainer.data.orders import Deal, order
from trainer.data.stream import Stream
from trainer.graph import learners
from trainer.graph.batches import Batches, InMemoryBatches, MultiDeviceBatches, Share, dealt_batches, stream_batches
from trainer.graph.placement import Placement
from trainer.mode import Mode
from trainer.tensorflow import tf, tf1


def test_the_seed_and_the_epoch_determine_the_order() -> None:
    found = {at: order(50, *at).tolist() for at in ((0, 0), (0, 1), (1, 0), (1, 1))}
    assert all(order(50, *at).tolist() == each for at, each in found.items())
    assert len({str(each) for each in found.values()}) == 4


@given(count=st.integers(1, 300), size=st.integers(1, 70), batches=st.integers(1, 9), step=st.integers(0, 10**6))
def test_the_learners_of_an_epoch_have_each_example_once(count: int, size: int, batches: int, step: int) -> None:
    deal = Deal(count, size, batches, seed=3)
    end = deal.epochs.end(step)
    steps = range(end - deal.epochs.steps, end)
    dealt = [deal.take(number, learner) for number in steps for learner in range(batches)]
    assert sorted(each for indices, own in dealt for each in indices[:own].tolist()) == list(range(count))
    assert all(max(1, own) == len(indices) <= size for indices, own in dealt)
    if deal.is_even:
        assert {own for _, own in dealt} == {size}


@given(count=st.integers(1, 300), size=st.integers(1, 70), learners=st.integers(1, 9))
def test_the_order_does_not_depend_on_the_learners(count: int, size: int, learners: int) -> None:
    one, several = Deal(count, size * learners, 1, seed=3), Deal(count, size, learners, seed=3)
    assert one.epochs.steps == several.epochs.steps
    for step in range(one.epochs.steps + 1):
        whole, own = one.take(step, 0)
        parts = [several.take(step, learner) for learner in range(learners)]
        assert np.array_equal(whole[:own], np.concatenate([indices[:count] for indices, count in parts]))


def test_a_model_of_one_batch_size_gets_full_batches() -> None:
    deal = Deal(10, 4, batches=1, seed=0, is_full=True)
    assert deal.is_even
    taken = [deal.take(step, 0) for step in range(3)]
    assert [(len(indices), count) for indices, count in taken] == [(4, 4)] * 3
    assert {*np.concatenate([indices for indices, _ in taken]).tolist()} == {*range(10)}


@pytest.fixture
def examples() -> Examples:
    random = np.random.default_rng(0)
    return Examples(random.random((30, 4, 4, 1), np.float32), random.integers(0, 10, 30, np.int32))


def read(made: Batches, executions: Sequence[int]) -> list[tuple[list[npt.NDArray[Any]], float]]:
    """The batches of executions with these numbers of steps, and their shares."""
    tensors = [(made.tensors(number), made.share(number)) for number in range(max(executions))]
    found: list[Any] = []
    with tf1.Session() as session:
        made.begin(session)
        for steps in executions:
            values = made.take(steps, len(found))
            found += session.run(tensors[:steps], dict(zip(made.feeds(steps), values, strict=True)))
    return found


@pytest.mark.parametrize("is_fed", [True, False], ids=["fed", "in_memory"])
@pytest.mark.parametrize("size", [6, 8], ids=["even", "uneven"])
@pytest.mark.parametrize("executions", [[1, 1, 1, 1, 1, 1], [4, 1, 1], [1, 5]], ids=str)
def test_a_graph_gets_the_batches_of_its_learner(
    examples: Examples, executions: list[int], size: int, is_fed: bool
) -> None:
    deal = Deal(len(examples), size, batches=2, seed=3)
    with tf.Graph().as_default():
        made = (
            dealt_batches(examples.signature, lambda indices: examples.take(indices).arrays, Share(deal, 1))
            if is_fed
            else InMemoryBatches(examples, Share(deal, 1))
        )
        found = read(made, executions)
    assert len(found) == 6
    for step, ((images, labels), share) in enumerate(found):
        indices, count = deal.take(step, 1)
        assert np.array_equal(images, examples.inputs[indices])
        assert np.array_equal(labels, examples.targets[indices])
        assert share == pytest.approx(count / size)


@pytest.mark.parametrize("is_fed", [True, False], ids=["fed", "in_memory"])
def test_a_run_that_continues_takes_the_examples_that_follow(examples: Examples, is_fed: bool) -> None:
    deal = Deal(len(examples), 8, batches=1, seed=0)
    with tf.Graph().as_default():
        made: Batches = InMemoryBatches(examples, Share(deal, 0))
        if is_fed:
            made = dealt_batches(examples.signature, lambda indices: (indices,), Share(deal, 0))
        for step in (6, 7, 10, 2):
            first, *_ = made.take(1, step)
            assert np.array_equal(first, deal.take(step, 0)[0])


def test_each_batch_of_a_stream_keeps_its_own_padding(examples: Examples) -> None:
    batches = iter([[np.full([2, 3], -1), np.zeros(2)], [np.full([1, 5], 7), np.zeros(1)]])
    made = stream_batches(examples.signature, None, 2, batches)
    with tf.Graph().as_default():
        made.tensors(0)
        made.tensors(1)
    first, _, share, second, _, last = made.take(2, 0)
    assert (first.shape, second.shape, share, last) == ((2, 3), (1, 5), 1.0, 0.5)


def test_no_batch_of_a_stream_goes_to_two_devices(examples: Examples) -> None:
    def batches(size: int, is_full: bool = True) -> Iterator[list[npt.NDArray[Any]]]:
        return ([np.full((size, 4, 4, 1), number, np.float32), np.zeros(size, np.int32)] for number in range(9))

    settings, devices = Settings(batch_size=2), ("/device:CPU:0", "/device:CPU:1")
    stream = Stream(examples.signature, batches, endless=batches)
    at = Placement(devices[0], devices, devices[:1], devices[0], [0, 1])
    with tf.Graph().as_default():
        made = learners.make_batches(settings, Mode.of(settings, None, 2), at, stream, None, 2)
        for each in made:
            each.tensors(0)
            each.tensors(1)
        fed = MultiDeviceBatches(made).take(2, 0)
    assert [each.item(0) for each in fed if np.ndim(each) == 4] == [0, 1, 2, 3]
