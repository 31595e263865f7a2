"""The numbers of requests between TensorFlow's tasks are those of request_ids.cc, with a beginning for each process."""

import ctypes
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer import compiler
from trainer.tensorflow import request_ids, tf

pytestmark = pytest.mark.skipif(not compiler.place(request_ids.SOURCE).exists(), reason="there is no compiler of C++")
ALL = 2**64
STEP = 0x9E3779B97F4A7C15
"""Between two states of SplitMix64."""


@pytest.fixture
def next_id() -> Callable[[], int]:
    """TensorFlow's own function, as it numbers a request."""
    library = ctypes.CDLL(str(Path(tf.__file__).with_name("libtensorflow_cc.so.2")))
    found = library._ZN10tensorflow18GetUniqueRequestIdEv
    found.restype = ctypes.c_uint64
    return found


def state_of(number: int) -> int:
    """The state of SplitMix64 from which it makes a number."""

    def undo(value: int, shift: int) -> int:
        found = value
        for _ in range(64 // shift):
            found = value ^ (found >> shift)
        return found

    mixed = undo(number, 31) * pow(0x94D049BB133111EB, -1, ALL) % ALL
    return undo(undo(mixed, 27) * pow(0xBF58476D1CE4E5B9, -1, ALL) % ALL, 30)


def test_threads_share_one_sequence_so_that_no_number_occurs_twice(next_id: Callable[[], int]) -> None:
    found: list[int] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: found.append(next_id()))
        thread.start()
        thread.join()
    states = list(map(state_of, found))
    for earlier, later in itertools.pairwise(states):
        others = (later - earlier) * pow(STEP, -1, ALL) % ALL
        assert 1 <= others < 100_000, "TensorFlow's other threads in this process may have numbered requests, too"


FORKS = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
next_id = library._ZN3tsl6random16ThreadLocalNew64Ev
next_id.restype = ctypes.c_uint64
print(next_id(), flush=True)
if os.fork():
    os.wait()
print(next_id(), flush=True)
"""


def test_a_fork_has_a_sequence_of_its_own() -> None:
    command = [sys.executable, "-c", FORKS, str(compiler.place(request_ids.SOURCE))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    first, of_child, of_parent = map(state_of, map(int, done.stdout.split()))
    assert of_parent == (first + STEP) % ALL
    apart = (of_child - first) * pow(STEP, -1, ALL) % ALL
    assert min(apart, ALL - apart) > 100_000
