"""The number of steps per execution."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import Settings
from trainer.graph.execution import MAX_OPS, MAX_SECONDS, MAX_STEPS, ExecutionPlanner, sizes, steps_per_execution

FAST, SLOW = MAX_SECONDS / MAX_STEPS / 2, MAX_SECONDS


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
def test_a_full_execution_fits_the_intervals_unless_it_is_set(settings: dict[str, Any], expected: int) -> None:
    assert steps_per_execution(Settings(**settings), settings.get("local_steps", 1), ops_per_step=70) == expected


@pytest.mark.parametrize(("ops", "expected"), [(70, 50), (MAX_OPS // 25, 25), (MAX_OPS // 2, 2), (MAX_OPS * 2, 1)])
def test_a_large_model_has_fewer_steps_so_that_its_graph_builds_fast(ops: int, expected: int) -> None:
    assert steps_per_execution(Settings(train_steps=5000), 1, ops) == expected


def steps_to_the_end(settings: Settings, replicas: int, seconds_per_step: float, step: int = 0) -> list[int]:
    """The global steps at which the executions of a single replica end."""
    local, last_step = settings.local_steps, settings.train_steps
    planner = ExecutionPlanner(settings, local, steps_per_execution(settings, local, 70), replicas, last_step)
    ends = []
    while step < settings.train_steps:
        steps = planner.choose(step)
        planner.took(steps, steps * seconds_per_step)
        step += steps
        ends.append(step)
    return ends


def test_a_replica_starts_with_a_single_step_to_measure_its_duration() -> None:
    assert steps_to_the_end(Settings(train_steps=200), 1, FAST)[0] == 1
    assert steps_to_the_end(Settings(train_steps=200, steps_per_execution=50), 1, FAST)[0] == 50


def test_local_sgd_takes_whole_rounds() -> None:
    settings = Settings(train_steps=208, sync_replicas=True, local_steps=8)
    assert steps_to_the_end(settings, 1, SLOW) == list(range(8, 209, 8))
    settings = Settings(train_steps=208, sync_replicas=True, local_steps=8, steps_per_execution=50)
    assert steps_to_the_end(settings, 1, FAST) == [48, 96, 144, 192, 200, 208]


def test_local_sgd_rounds_end_at_reports_and_saves_where_possible() -> None:
    settings = Settings(train_steps=200, sync_replicas=True, local_steps=5, save_steps=20, report_steps=7)
    assert {20, 40, 60, 80, 100, 120, 140, 160, 180, 200} <= set(steps_to_the_end(settings, 1, FAST))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(MAX_SECONDS / 4, 4), (MAX_SECONDS / 9, 8), (MAX_SECONDS / 49, 32), (MAX_SECONDS / 50, 50)],
)
def test_slower_steps_have_shorter_executions(seconds: float, expected: int) -> None:
    planner = ExecutionPlanner(Settings(train_steps=10_000), 1, 50, 1, 10_000)
    planner.took(1, seconds)
    assert planner.choose(0) == expected
    assert planner.choose(9_999) == 1


def test_there_is_an_execution_for_each_size() -> None:
    assert sizes(50) == (1, 2, 4, 8, 16, 32, 50)
    assert sizes(48, 8) == (8, 16, 32, 48)
    assert sizes(1) == (1,)


def test_slow_steps_run_one_by_one_to_handle_signals() -> None:
    assert steps_to_the_end(Settings(train_steps=100), 1, SLOW) == list(range(1, 101))
    assert steps_to_the_end(Settings(train_steps=100, steps_per_execution=50), 1, SLOW) == [50, 100]  # as set


def test_steps_that_become_fast_run_in_full_executions_again() -> None:
    planner = ExecutionPlanner(Settings(train_steps=10_000), 1, 50, 1, 10_000)
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
def test_a_single_replica_stops_at_each_report_each_save_and_the_end(
    train_steps: int, report_steps: int, save_steps: int | None, step: int
) -> None:
    settings = Settings(train_steps=train_steps, report_steps=report_steps, save_steps=save_steps)
    ends = steps_to_the_end(settings, 1, FAST, step)
    stops = {
        number
        for number in range(step + 1, train_steps)
        for each in (report_steps, save_steps)
        if each and number % each == 0
    }
    assert stops <= set(ends)
    assert not ends or ends[-1] == train_steps


@given(replicas=st.integers(2, 4), train_steps=st.integers(1, 60), schedule=st.data())
def test_each_replica_exceeds_the_end_by_at_most_one_execution(
    replicas: int, train_steps: int, schedule: st.DataObject
) -> None:
    settings = Settings(train_steps=train_steps, steps_per_execution=5)
    planners = [ExecutionPlanner(settings, 1, 5, replicas, settings.train_steps) for _ in range(replicas)]
    step, running = 0, dict.fromkeys(range(replicas), 0)
    while step < train_steps or any(running.values()):
        index = schedule.draw(st.sampled_from(sorted(running)))
        step += running[index]  # its execution ends, and the next one starts at the current global step
        running[index] = planners[index].choose(step) if step < train_steps else 0
    assert train_steps <= step <= train_steps + (replicas - 1) * 5


def test_replicas_of_equal_speed_exceed_the_end_by_at_most_one_step() -> None:
    settings = Settings(train_steps=300, steps_per_execution=50)
    planner = ExecutionPlanner(settings, 1, 50, 3, settings.train_steps)
    step = 0
    while step < settings.train_steps:
        step += 3 * planner.choose(step)
    assert step <= 302
