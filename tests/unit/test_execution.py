"""How many steps a call takes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import Settings
from trainer.graph.execution import LONGEST_CALL, MOST_OPS, MOST_STEPS, ExecutionPlanner, steps_per_execution

FAST, SLOW = LONGEST_CALL / MOST_STEPS / 2, LONGEST_CALL


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"train_steps": 5000}, 50),
        ({"train_steps": 5000, "report_steps": 10}, 10),
        ({"train_steps": 5000, "report_steps": 1}, 1),
        ({"train_steps": 5000, "report_steps": 60}, 30),
        ({"train_steps": 5000, "report_steps": 101}, 33),
        ({"train_steps": 5000, "save_steps": 40}, 40),
        ({"train_steps": 5000, "save_steps": 250}, 50),
        ({"train_steps": 500}, 25),
        ({"train_steps": 200}, 10),
        ({"train_steps": 20}, 1),
        ({"train_steps": 5000, "steps_per_execution": 7}, 7),
        ({"train_steps": 5000, "steps_per_execution": 200}, 200),
        ({"train_steps": 5000, "sync_replicas": True, "local_steps": 8}, 48),
        ({"train_steps": 5000, "sync_replicas": True, "local_steps": 100}, 100),
        ({"train_steps": 5000, "sync_replicas": True, "local_steps": 8, "steps_per_execution": 20}, 16),
    ],
    ids=str,
)
def test_a_full_call_fits_the_intervals_unless_it_is_set(settings: dict[str, Any], expected: int) -> None:
    assert steps_per_execution(Settings(**settings), ops_per_step=70) == expected


@pytest.mark.parametrize(("ops", "expected"), [(70, 50), (MOST_OPS // 25, 25), (MOST_OPS // 2, 2), (MOST_OPS * 2, 1)])
def test_the_steps_of_a_large_model_are_fewer_so_that_its_graph_is_made_soon(ops: int, expected: int) -> None:
    assert steps_per_execution(Settings(train_steps=5000), ops) == expected


def steps_to_the_end(settings: Settings, replicas: int, seconds_per_step: float, step: int = 0) -> list[int]:
    """Where the calls of one replica end that has the global step for itself."""
    planner, ends = ExecutionPlanner(settings, steps_per_execution(settings, 70), replicas), []
    while step < settings.train_steps:
        steps = planner.choose(step)
        planner.took(steps, steps * seconds_per_step)
        step += steps
        ends.append(step)
    return ends


def test_a_replica_begins_with_one_step_to_see_how_long_it_takes() -> None:
    assert steps_to_the_end(Settings(train_steps=200), 1, FAST)[0] == 1
    assert steps_to_the_end(Settings(train_steps=200, steps_per_execution=50), 1, FAST)[0] == 50


def test_local_steps_are_taken_in_whole_rounds_to_the_end() -> None:
    settings = Settings(train_steps=208, sync_replicas=True, local_steps=8)
    assert steps_to_the_end(settings, 1, SLOW) == list(range(8, 209, 8))
    settings = Settings(train_steps=208, sync_replicas=True, local_steps=8, steps_per_execution=50)
    assert steps_to_the_end(settings, 1, FAST) == [48, 96, 144, 192, 200, 208]


def test_rounds_of_local_steps_end_where_reports_and_saves_are_due_if_they_can() -> None:
    settings = Settings(train_steps=200, sync_replicas=True, local_steps=5, save_steps=20, report_steps=7)
    assert {20, 40, 60, 80, 100, 120, 140, 160, 180, 200} <= set(steps_to_the_end(settings, 1, FAST))


def test_slow_steps_are_taken_one_by_one_so_that_a_signal_is_heard() -> None:
    assert steps_to_the_end(Settings(train_steps=100), 1, SLOW) == list(range(1, 101))
    assert steps_to_the_end(Settings(train_steps=100, steps_per_execution=50), 1, SLOW) == [50, 100]  # as it was told


def test_steps_that_become_fast_are_taken_together_again() -> None:
    planner = ExecutionPlanner(Settings(train_steps=10_000), 50, 1)
    assert planner.choose(0) == 1
    planner.took(1, SLOW)
    assert planner.choose(0) == 1
    planner.took(1, FAST)
    assert planner.choose(0) == 50


@given(
    train_steps=st.integers(1, 400),
    report_steps=st.integers(1, 120),
    save_steps=st.none() | st.integers(1, 120),
    step=st.integers(0, 100),
)
def test_a_replica_alone_meets_every_report_every_save_and_the_end(
    train_steps: int, report_steps: int, save_steps: int | None, step: int
) -> None:
    settings = Settings(train_steps=train_steps, report_steps=report_steps, save_steps=save_steps)
    ends = steps_to_the_end(settings, 1, FAST, step)
    met = {
        number
        for number in range(step + 1, train_steps)
        for each in (report_steps, save_steps)
        if each and number % each == 0
    }
    assert met <= set(ends)
    assert not ends or ends[-1] == train_steps


@given(replicas=st.integers(2, 4), train_steps=st.integers(1, 60), turns=st.data())
def test_replicas_together_take_at_most_a_call_too_many_each(
    replicas: int, train_steps: int, turns: st.DataObject
) -> None:
    settings = Settings(train_steps=train_steps, steps_per_execution=5)
    paces = [ExecutionPlanner(settings, 5, replicas) for _ in range(replicas)]
    step, under_way = 0, dict.fromkeys(range(replicas), 0)
    while step < train_steps or any(under_way.values()):
        turn = turns.draw(st.sampled_from(sorted(under_way)))
        step += under_way[turn]  # its call ends, and the next one begins where the run is now
        under_way[turn] = paces[turn].choose(step) if step < train_steps else 0
    assert train_steps <= step <= train_steps + (replicas - 1) * 5


def test_replicas_of_equal_speed_take_at_most_one_step_too_many_each() -> None:
    settings = Settings(train_steps=300, steps_per_execution=50)
    planner = ExecutionPlanner(settings, 50, 3)
    step = 0
    while step < settings.train_steps:
        step += 3 * planner.choose(step)
    assert step <= 302
