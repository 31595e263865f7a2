"""How many workers an elastic run has, and whose scale the supervisor keeps."""

import dataclasses
from typing import Any

import pytest

from trainer.supervisor import elastic, policy, scales
from trainer.supervisor.elastic import FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS
from trainer.supervisor.notes import Notes
from trainer.supervisor.observed import Observed
from trainer.supervisor.policy import PendingTask
from trainer.supervisor.run import Elastic, Role, Run

from .test_supervision import EXIT_CODE, NEVER, NOW, RUNNING, a_pod, a_run

PATIENCE_SECONDS = a_run().node_wait_seconds
ROLES = {
    "worker": Role(replicas=4, exits=EXIT_CODE, addresses=6),
    "ps": Role(replicas=1, exits=NEVER),
}
FOUR = dataclasses.replace(RUNNING, replicas={"worker": 4, "ps": 1}, scales={"worker": 4, "ps": 1})


def elastic_run(least: int = 1, most: int = 6) -> Run:
    return a_run(roles=ROLES, elastic=Elastic(min=least, max=most))


def stuck(*indices: int, since: float = NOW) -> list[PendingTask]:
    why = "0/3 nodes are available: 3 Insufficient cpu."
    return [PendingTask(f"mnist-worker-{i}", "worker", since, False, why, unscheduled=True) for i in indices]


def adjust(run: Run, notes: Notes, pending: list[PendingTask], now: float) -> tuple[Notes, str]:
    return elastic.adjust(run, notes, pending, now)


def test_an_elastic_run_goes_on_with_the_workers_that_fit_and_tries_more_at_growing_intervals() -> None:
    run, notes, now, gaps = elastic_run(), FOUR, NOW + PATIENCE_SECONDS, []
    assert adjust(run, notes, stuck(2, 3), now - 1) == (notes, "")
    for _ in range(8):
        notes, sentence = adjust(run, notes, stuck(2, 3, since=now - PATIENCE_SECONDS), now)
        assert notes.scales["worker"] == 2
        assert "mnist-worker-2 (and 1 more) cannot be scheduled: no node has enough cpu left" in sentence
        assert adjust(run, notes, [], notes.elastic.retry - 1) == (notes, "")
        gaps.append(notes.elastic.retry - now)
        notes, sentence = adjust(run, notes, [], notes.elastic.retry)
        assert (notes.scales["worker"], sentence) == (4, "trying 4 instead of 2 workers (run.elastic)")
        now += gaps[-1] + PATIENCE_SECONDS
    assert gaps[:3] == [FIRST_RETRY_SECONDS, 2 * FIRST_RETRY_SECONDS, 4 * FIRST_RETRY_SECONDS]
    assert gaps[-1] == LAST_RETRY_SECONDS
    notes, sentence = adjust(run, notes, [], now)
    assert (notes.elastic.gap, sentence) == (0.0, ""), "there is room: the next time begins with the shortest interval"


def test_an_elastic_run_keeps_its_minimum() -> None:
    notes, _ = adjust(elastic_run(3), FOUR, stuck(1, 2, 3), NOW + PATIENCE_SECONDS)
    assert notes.scales["worker"] == 3
    assert adjust(elastic_run(3), notes, stuck(1, 2), NOW + 900) == (notes, "")


@pytest.mark.parametrize("more", [{"gated": True}, {"unresolved": True}, {"problem": "ErrImagePull"}])
def test_only_workers_that_cannot_be_scheduled_make_a_run_smaller(more: dict[str, Any]) -> None:
    waiting = [dataclasses.replace(task, **({"unscheduled": False} | more)) for task in stuck(3)]
    assert adjust(elastic_run(), FOUR, waiting, NOW + 900) == (FOUR, "")
    assert adjust(a_run(roles=ROLES), FOUR, stuck(3), NOW + 900) == (FOUR, "")


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (a_pod("mnist-worker-1", node="", running=False, problem="0/1 nodes are available: 1 Insufficient cpu."), True),
        (a_pod("mnist-worker-1", node="", running=False, problem="gated", gated=True), False),
        (a_pod("mnist-worker-1", running=False, problem="ErrImagePull"), False),
    ],
)
def test_a_task_is_unscheduled_if_kubernetes_finds_no_node(pod: Any, expected: bool) -> None:
    there = {each.name: each for each in (a_pod("mnist-worker-0"), pod, a_pod("mnist-ps-0"))}
    (task,) = policy.pending_tasks(a_run(), RUNNING, Observed(pods=there, scales={"worker": 2, "ps": 1}), NOW)
    assert task.unscheduled is expected


@pytest.mark.parametrize(("scale", "kept"), [(1, False), (2, True), (4, True), (5, True), (6, False), (0, False)])
def test_a_scale_that_a_user_or_an_autoscaler_sets_within_the_limits_is_kept(scale: int, kept: bool) -> None:
    run, now = elastic_run(2, 5), NOW + PATIENCE_SECONDS
    smaller, _ = adjust(run, FOUR, stuck(2, 3), now)
    found = scales.adopt(run, smaller, smaller.scales, {"worker": scale, "ps": 1})
    assert found.scales["worker"] == (scale if kept else 2)
    if kept and scale != 2:
        assert (found.elastic.wanted, found.elastic.gap) == (scale, 0.0)
