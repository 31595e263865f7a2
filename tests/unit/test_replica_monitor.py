"""Which replicas take part in a run, and what the chief reports about them."""

import itertools
import threading

import pytest

from trainer.graph.replication.membership import ABSENT, PAUSED
from trainer.training.watch.replica_monitor import QUIET_SECONDS, ReplicaMonitor, Reports, Roster


def a_roster(step: int, *last_steps: int, now: float = 0.0) -> Roster:
    roster = Roster(len(last_steps))
    roster.observe(step, last_steps, now)
    return roster


def test_a_replica_takes_part_from_its_first_contribution_until_it_leaves() -> None:
    roster = a_roster(5, 5, ABSENT, ABSENT)
    assert (roster.present, roster.expected) == ([0], 1)
    roster.observe(7, [7, 6, ABSENT], 1.0)
    assert (roster.present, roster.expected, roster.late) == ([0, 1], 2, [1])
    roster.observe(8, [7, ABSENT, 8], 2.0)
    assert (roster.present, roster.late) == ([0, 2], [0])


def test_if_nobody_is_late_a_round_waits_for_one_whose_contribution_reached_a_part_of_the_shards() -> None:
    roster = a_roster(7, 7, 6, 7)
    assert roster.suspects == [1]
    roster.observe(7, [7, 7, 7], 1.0)
    assert (roster.late, roster.suspects) == ([], [0, 1, 2])


def test_the_first_round_waits_for_replicas_that_are_awaited() -> None:
    roster = a_roster(0, ABSENT, ABSENT, ABSENT)
    assert roster.expected == 1
    roster.awaited = {0, 1}
    assert (roster.expected, roster.late) == (2, [0, 1])
    roster.observe(0, [0, ABSENT, ABSENT], 1.0)
    assert (roster.expected, roster.late) == (2, [1])
    assert roster.quiet(2 * QUIET_SECONDS) == [], "its program may not have started yet"
    roster.pass_over([1])
    assert (roster.expected, roster.late) == (1, [])
    roster.observe(0, [0, 0, ABSENT], 2.0)
    assert roster.present == [0, 1], "it contributes after all"


def test_a_replica_that_is_passed_over_takes_part_again_with_its_next_contribution() -> None:
    roster = a_roster(9, 9, 8, 9)
    roster.pass_over(roster.late)
    assert roster.present == [0, 2]
    roster.observe(12, [12, 8, 11], 1.0)
    assert roster.present == [0, 2]
    roster.observe(13, [13, 9, 13], 2.0)
    assert roster.present == [0, 1, 2]


def test_replicas_that_have_not_contributed_for_a_while_are_quiet_the_longest_first() -> None:
    roster = a_roster(5, 5, 5, 5, ABSENT)
    roster.observe(6, [6, 5, 6, ABSENT], 0.5)
    assert roster.quiet(QUIET_SECONDS - 0.1) == []
    assert roster.quiet(QUIET_SECONDS + 0.6) == [1, 2], "neither the chief itself, nor one that does not take part"


def test_a_replica_that_waits_for_a_lease_does_not_take_part_and_is_not_lost() -> None:
    roster = a_roster(5, 5, 5, PAUSED)
    assert (roster.present, roster.paused, roster.late) == ([0, 1], [2], [])
    roster.observe(6, [6, 6, 6], 1.0)
    assert (roster.present, roster.paused) == ([0, 1, 2], [])


def test_a_replica_that_comes_and_goes_is_reported_at_growing_intervals() -> None:
    reports, seen = Reports(), []
    assert reports.due({0, 1}, 5, 0.0) == ({0: 5, 1: 5}, {})
    for second in range(1, 2000):
        joined, left = reports.due({0, 1} if second % 2 else {0}, second, float(second))
        seen += [second] * ({**joined, **left} != {})
    gaps = [after - before for before, after in itertools.pairwise(seen)]
    assert 5 <= len(seen) <= 12
    assert gaps == sorted(gaps)


def test_a_change_within_an_interval_is_reported_after_it_if_it_lasts() -> None:
    reports = Reports()
    reports.due({0, 1}, 0, 0.0)
    assert reports.due({0}, 7, 0.1) == ({}, {})
    assert reports.due({0}, 350, 5.0) == ({}, {1: 7})
    assert reports.due({0, 1}, 400, 6.0) == ({}, {})
    assert reports.due({0}, 450, 7.0) == ({}, {}), "it has not lasted"
    assert reports.due({0, 1}, 500, 60.0) == ({1: 500}, {})


@pytest.mark.parametrize(("error", "lines"), [(TypeError("a mistake"), 1), (RuntimeError("a closed session"), 0)])
def test_a_monitor_that_fails_is_seen_unless_its_session_is_closed(
    error: Exception, lines: int, log_lines: list[str]
) -> None:
    class Failing(ReplicaMonitor):
        def __init__(self) -> None:
            self._over = threading.Event()

        def _take_pass(self, now: float) -> None:
            raise error

    Failing()._watch()
    assert len(log_lines) == lines
    assert all("the replica monitor has failed" in line for line in log_lines)
