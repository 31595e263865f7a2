"""Leases of files: which batches a replica takes, and which files it knows to be done."""

import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from trainer.data.examples import Array
from trainer.data.file_leases import FileLeases
from trainer.data.leases import Claimed, OwnLeases

FILES = [[[1, 2], [3]], [], [[4, 5]]]
"""The batches of each file."""


def read(file: list[list[int]]) -> Iterator[Sequence[Array]]:
    return iter([[np.array(batch)] for batch in file])


@pytest.fixture
def begin() -> Callable[..., FileLeases]:
    """The leases of one epoch for a replica with this number of devices."""

    def begun(devices: int, least: int = 1) -> FileLeases:
        claims = iter([Claimed(number, 1, 0, False) for number in range(3)])
        own = OwnLeases(lambda done, *_: next(claims, Claimed(0, 0, 0, done == 3)), (1, 1))
        return FileLeases([functools.partial(read, each) for each in FILES], 0, devices, least).begin(own)

    return begun


def taken(files: FileLeases, count: int) -> list[list[int]]:
    batches = files.batches()
    return [next(batches)[0][0].tolist() for _ in range(count)]


def test_a_file_is_done_when_its_last_batch_is(begin: Callable[..., FileLeases]) -> None:
    files, found = begin(1), []
    for place in range(3):
        assert files.has(range(place, place + 1))
        found += taken(files, 1)
        before = files.done
        files.took(range(place, place + 1), is_done=True)
        assert files.done - before <= 2, "one, and the empty one"
    assert sorted(found) == [[1, 2], [3], [4, 5]]
    while not files.is_over:
        assert not files.has(range(3, 4))
    assert files.done == 3


def test_batches_that_a_step_did_not_take_come_again_in_their_order(begin: Callable[..., FileLeases]) -> None:
    files = begin(1)
    assert files.has(range(2))
    first = taken(files, 2)
    files.took(range(2), is_done=False)
    assert files.done <= 1, "at most the empty one"
    assert files.has(range(2, 4))
    assert taken(files, 2) == first


def test_the_last_step_has_a_batch_for_each_device(begin: Callable[..., FileLeases]) -> None:
    files = begin(2)
    assert files.has(range(1))
    taken(files, 2)
    assert not files.has(range(1, 3)), "there is one more batch"
    assert files.has(range(1, 2))
    batches = files.batches()
    assert [next(batches)[1] > 0, next(batches)[1]] == [True, 0], "the second one does not count"
    for place in range(2):
        files.took(range(place, place + 1), is_done=True)
    while not files.is_over:
        assert not files.has(range(2, 3))
    assert files.done == 3


def test_the_last_round_has_a_batch_for_each_of_its_steps(begin: Callable[..., FileLeases]) -> None:
    files = begin(1, least=4)
    assert not files.has(range(8))
    assert files.has(range(4))
    batches = files.batches()
    assert [next(batches)[1] > 0 for _ in range(4)] == [True, True, True, False]
    files.took(range(4), is_done=True)
    while not files.is_over:
        assert not files.has(range(4, 8))
    assert files.done == 3
