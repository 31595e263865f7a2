"""Leases: which replica takes which part of an epoch, where replicas do not all take the same steps.

The steps of an epoch are dealt in blocks of consecutive steps. A lease is a replica's part of each step of a block: its
slot. A replica asks for the next lease before it has taken all of the last one, so a slow one gets fewer, and one that
joins gets one at once. The lease of a replica that is lost is dealt again. Without faults the replicas that wait for
each other take the same block at the same time, and their steps are those of a single process.

`trainer.graph.replication.lease_table` keeps the leases that are not done, on the first parameter server. The idea is
that of the dynamic shards of DLRover (Wang et al., "DLRover-RM", 2024).
"""

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from trainer.data.epochs import Position, Range
from trainer.data.orders import Deal

STEP, STEPS, SLOT, BEGIN, OWNER = range(5)
"""The columns of a table: the first step of a lease, their number (0 for an empty row), the slot, the number of parts
that its replica takes before it, and the replica."""
NOBODY = -1
UNKNOWN = -1
"""The global step of a report, if the parts that a replica takes after it may be fewer than the steps that follow."""
ASK_SECONDS = 0.05
"""Between two questions for a lease, where there is none."""
LEAST_STEPS, MOST_STEPS = 64, 256
"""The steps of a lease, unless few are left, or an execution has more."""
LEASE_SECONDS = 0.5
"""A lease for which a replica needs less time is followed by a larger one, as each costs a message and its answer."""
MOST_RANGES = MOST_STEPS
"""The ranges of missed examples in a checkpoint, at most. Where there are more, some examples are taken twice."""


class Part(NamedTuple):
    """A replica's part of a step."""

    step: int
    slot: int


class Claimed(NamedTuple):
    """What a replica gets that asks for a lease."""

    step: int
    steps: int
    """0 if there is none."""
    slot: int
    is_over: bool
    """Whether all leases are done."""


@dataclass(frozen=True)
class LeaseTable:
    """The leases that are not done, as they were at one moment."""

    next: int
    """The first step that was not dealt."""
    rows: npt.NDArray[np.int64]
    """[leases, 5]."""
    reports: npt.NDArray[np.int64]
    """[replicas, 2]: of each, how many parts it has taken, and at which global step that was, or UNKNOWN."""

    def left(self, step: int, certain: int = UNKNOWN) -> list[tuple[int, int, int]]:
        """What is not done of each lease at a global step: its first step, their number and the slot.

        A replica of which others wait for each step has taken one part a step since its report, if that is from after
        the global step `certain`, at which a chief has gone on with the run.
        """
        found = []
        for first, steps, slot, begin, owner in self.rows.tolist():
            done = 0
            if owner != NOBODY:
                taken, since = self.reports[owner].tolist()
                if since > certain:
                    taken += max(0, step - since)
                done = min(max(0, taken - begin), steps)
            if done < steps:
                found.append((first + done, steps - done, slot))
        return found

    @property
    def owners(self) -> list[int]:
        """The replicas that have leases."""
        return sorted({int(each) for each in self.rows[self.rows[:, STEPS] > 0, OWNER]} - {NOBODY})

    @property
    def of_files(self) -> list[int]:
        """What is not done where each step is a file.

        That is the first one that was not dealt and then, for each lease, its first one and their number.
        """
        return [self.next, *(number for first, steps, _ in self.left(0) for number in (first, steps))]

    def position(self, deal: Deal, learners: int, step: int, certain: int = UNKNOWN) -> Position:
        """The position in the data at a global step.

        Args:
            deal: Deals the steps.
            learners: Those of a slot.
            step: The global step.
            certain: See `left`.
        """
        missed = [
            each
            for first, steps, slot in self.left(step, certain)
            for number in range(first, first + steps)
            for each in deal.ranges(number, slot * learners, learners)
        ]
        at = deal.epochs.at(self.next)
        epoch, taken, ranges = at.epoch, at.taken, merged([*missed, *at.missed])
        while ranges:
            if taken == 0:
                epoch, taken = epoch - 1, deal.examples
            if ranges[-1][0] != epoch or ranges[-1][2] != taken:
                break
            _, taken, _ = ranges.pop()
        ranges = fewer(ranges, MOST_RANGES)
        if len(ranges) > MOST_RANGES:  # of many short epochs
            (epoch, taken, _), ranges = ranges[0], []
        return Position(step, epoch, taken, tuple(ranges))


def merged(ranges: Sequence[Range]) -> list[Range]:
    """The same examples in as few ranges as possible, sorted."""
    found: list[Range] = []
    for epoch, first, end in sorted(ranges):
        if found and found[-1][0] == epoch and found[-1][2] >= first:
            found[-1] = epoch, found[-1][1], max(found[-1][2], end)
        else:
            found.append((epoch, first, end))
    return found


def fewer(ranges: list[Range], most: int) -> list[Range]:
    """Ranges, sorted, of which the nearest are joined where there are too many. An epoch keeps its own."""
    gaps = [
        (after[1] - before[2], index)
        for index, (before, after) in enumerate(itertools.pairwise(ranges), 1)
        if before[0] == after[0]
    ]
    joined = {index for _, index in sorted(gaps)[: max(0, len(ranges) - most)]}
    found: list[Range] = []
    for index, (epoch, first, end) in enumerate(ranges):
        if index in joined:
            found[-1] = epoch, found[-1][1], end
        else:
            found.append((epoch, first, end))
    return found


class Leases(Protocol):
    """What a replica takes one after the other, in one session."""

    @property
    def follows_steps(self) -> bool:
        """Whether `done` counts parts of steps."""
        ...

    @property
    def done(self) -> int:
        """How much is done, before the first that is not."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether all leases are done."""
        ...

    def has(self, places: range) -> bool:
        """Whether there are parts for all of these places of the replica's steps now."""
        ...

    def took(self, places: range, is_done: bool) -> None:
        """Take note of an execution at these places: its parts are done, or are to be taken again."""
        ...


class OwnLeases:
    """The parts that this replica takes one after the other, in one session. Several threads may ask for them."""

    follows_steps = True

    def __init__(self, claim: Callable[[int, int, int], Claimed], steps: tuple[int, int]) -> None:
        """Take leases.

        Args:
            claim: Returns the next lease, given how many parts are done, how many have been claimed, and how many steps
                the lease should have.
            steps: Those of the first one, and those of the largest.
        """
        self._claim, (self._steps, self._most) = claim, steps
        self._claimed_at = -math.inf
        self._lock = threading.Lock()
        self._claimed: deque[Part] = deque()
        """Parts of leases that are not among the places yet."""
        self._again: deque[int] = deque()
        """The numbers of parts that are to be taken once more."""
        self._parts: dict[int, Part] = {}
        """Parts that are not known to be done, by their number in the order in which they were claimed."""
        self._places: dict[int, int] = {}
        """The numbers of parts by the places at which this replica takes them."""
        self._end = self._number = 0
        self._ended: set[int] = set()
        """The numbers of parts that are done, although some before them are not."""
        self.done = 0
        """The number of parts that are done, before the first one that is not."""
        self.is_over = False
        """Whether all leases are done."""

    def at(self, place: int) -> Part | None:
        """The part that this replica takes at a place, from 0; None if there is none now."""
        with self._lock:
            while place >= self._end:
                if not self._add():
                    return None
            return self._parts[self._places[place]]

    def has(self, places: range) -> bool:
        """Whether there are parts for all of these places now, with one more lease at most."""
        with self._lock:
            has_claimed = False
            while places[-1] >= self._end:
                needs_one = not self._again and not self._claimed
                if (needs_one and has_claimed) or not self._add():
                    return False
                has_claimed = has_claimed or needs_one
            return True

    def _add(self) -> bool:
        """Add a place."""
        if self._again:
            number = self._again.popleft()
        else:
            if not self._claimed:
                found = self._claim(self.done, self._number, self._wanted())
                self.is_over = found.is_over
                self._claimed.extend(Part(found.step + number, found.slot) for number in range(found.steps))
            if not self._claimed:
                return False
            number, self._number = self._number, self._number + 1
            self._parts[number] = self._claimed.popleft()
        self._places[self._end] = number
        self._end += 1
        return True

    def _wanted(self) -> int:
        """The steps that the next lease should have."""
        last, self._claimed_at = self._claimed_at, time.monotonic()
        if self._claimed_at - last < LEASE_SECONDS and 2 * self._steps <= self._most:
            self._steps *= 2
        return self._steps

    def took(self, places: range, is_done: bool) -> None:
        """Take note of an execution at these places: its parts are done, or are to be taken again."""
        with self._lock:
            numbers = [self._places.pop(place) for place in places]
            if not is_done:
                self._again.extend(numbers)
                return
            self._ended.update(numbers)
            while self.done in self._ended:
                self._ended.remove(self.done)
                del self._parts[self.done]
                self.done += 1
