"""The supervisor's pure parts that act on a cluster which changes: states, scales, rules for failures, lost nodes."""

import dataclasses
from typing import Any

import pytest

from tests.unit.test_supervision import EXIT_CODE, NOW, SCALE, STARTED, TENSORBOARD, a_pod, a_run, outcome
from trainer.supervisor import diagnosis, lifecycle, policy, scales
from trainer.supervisor.changes import PodsListed, ScalesObserved
from trainer.supervisor.notes import Notes, to_ended
from trainer.supervisor.observed import Observed
from trainer.supervisor.pods import Pod
from trainer.supervisor.run import (
    DataWatch,
    Elastic,
    FailurePolicy,
    Gang,
    PodCondition,
    Role,
    Rule,
    Run,
    Stage,
    Stages,
)
from trainer.supervisor.view import View

SUCCEEDED = dataclasses.replace(STARTED, state="Succeeded", reason="so")
WATCHED = a_run(data_watch=DataWatch(uri="/data/a.lance", tag="", interval_seconds=1))
TASKS = [a_pod("mnist-worker-0"), a_pod("mnist-worker-1"), a_pod("mnist-ps-0")]


def test_a_new_run_starts_with_the_scales_of_the_values() -> None:
    notes = lifecycle.begin(a_run(), Notes(), [], NOW)
    assert (notes.hash, notes.state, notes.started) == ("abc", "Starting", NOW)
    assert notes.scales == notes.replicas == SCALE
    assert scales.wanted(a_run(), notes, {}, NOW) == SCALE


def test_the_tasks_of_a_changed_run_end_before_the_new_ones_start() -> None:
    changed = a_run(hash="new")
    notes = lifecycle.begin(changed, STARTED, TASKS, NOW + 9)
    assert notes.state == "Stopping"
    assert scales.wanted(changed, notes, {}, NOW) == {"worker": 0, "ps": 0}
    nothing = {"worker": 0, "ps": 0}
    assert lifecycle.advance(a_run(), notes, {"mnist-ps-0": TASKS[2]}, nothing, NOW + 10) == notes
    assert lifecycle.advance(a_run(), notes, {}, SCALE, NOW + 10) == notes, "StatefulSets could still create pods"
    started = lifecycle.advance(a_run(), notes, {}, nothing, NOW + 10)
    assert (started.state, started.started) == ("Starting", NOW + 10)
    assert lifecycle.advance(a_run(), started, {}, {"worker": 1, "ps": 1}, NOW + 11).state == "Starting"
    assert lifecycle.advance(a_run(), started, {}, SCALE, NOW + 11).state == "Running"


def test_a_supervisor_continues_where_the_one_before_it_was_interrupted() -> None:
    for state in ("Stopping", "Starting", "Running"):
        notes = dataclasses.replace(STARTED, state=state)
        assert lifecycle.begin(a_run(), notes, TASKS, NOW + 9) == notes


def test_a_run_is_suspended_and_resumed() -> None:
    notes = lifecycle.begin(a_run(suspend=True), STARTED, TASKS, NOW + 9)
    assert notes.state == "Suspended"
    assert scales.wanted(a_run(suspend=True), notes, {}, NOW) == {"worker": 0, "ps": 0}
    resumed = lifecycle.begin(a_run(), notes, [], NOW + 99)
    assert (resumed.state, resumed.started, resumed.scales) == ("Starting", NOW + 99, SCALE)
    changed = lifecycle.begin(a_run(hash="new"), notes, [], NOW + 99)
    assert (changed.state, changed.hash) == ("Starting", "new")


def test_a_run_without_a_version_of_its_data_is_suspended_until_it_has_one() -> None:
    notes = lifecycle.begin(WATCHED, Notes(), [], NOW)
    assert notes.state == "Suspended"
    begun = lifecycle.begin(WATCHED.on_version("1"), notes, [], NOW + 9)
    assert (begun.state, begun.data_version) == ("Starting", "1")


def test_a_run_on_another_version_of_the_data_starts_when_the_tasks_of_the_one_before_are_gone() -> None:
    first = lifecycle.begin(WATCHED.on_version("1"), Notes(), [], NOW)
    over = dataclasses.replace(first, state="Succeeded", finished={"mnist-worker-0": 0})
    assert lifecycle.begin(WATCHED.on_version("1"), over, [], NOW) == over
    second = lifecycle.begin(WATCHED.on_version("2"), over, [a_pod("mnist-worker-0", 0)], NOW)
    assert (second.state, second.data_version, second.finished) == ("Stopping", "2", {})
    assert lifecycle.begin(WATCHED.on_version("2"), over, [], NOW).state == "Starting"


def test_a_supervisor_goes_on_with_the_version_of_the_one_before_it_unless_the_run_has_changed() -> None:
    notes = lifecycle.begin(WATCHED.on_version("1"), Notes(), [], NOW)
    assert lifecycle.version_to_go_on(WATCHED, notes) == "1"
    assert lifecycle.version_to_go_on(dataclasses.replace(WATCHED, hash="a later chart"), notes) == "1"
    assert lifecycle.version_to_go_on(dataclasses.replace(WATCHED, definition="changed"), notes) == ""
    assert lifecycle.version_to_go_on(WATCHED, Notes()) == ""
    assert lifecycle.begin(a_run(), notes, [a_pod("mnist-ps-0")], NOW).state == "Stopping", "no longer watched"


def test_tasks_on_a_version_of_the_data_see_only_their_own_ends() -> None:
    first = lifecycle.begin(WATCHED.on_version("1"), Notes(), [], NOW)
    over = dataclasses.replace(first, state="Succeeded", finished={"mnist-worker-0": 0})
    seen = {"run": "abc.v1", "data_version": "1", "mnist-worker-0": "abc.v1 0"}
    assert to_ended(over, WATCHED.tasks_wait, {}) == seen
    second = lifecycle.begin(WATCHED.on_version("2"), over, [a_pod("mnist-worker-0", 0)], NOW)
    assert to_ended(second, WATCHED.tasks_wait, seen) == {"run": "", "data_version": "2", "mnist-worker-0": None}


@pytest.mark.parametrize(
    ("run", "starts"),
    [
        ({}, False),
        ({"suspend": True}, False),
        ({"hash": "of a new version of the chart"}, False),
        ({"hash": "2", "attempt": 2}, True),
        ({"hash": "2", "definition": "the user's own change"}, True),
    ],
)
def test_a_run_that_is_over_starts_again_only_for_an_attempt_or_the_users_own_change(
    run: dict[str, Any], starts: bool
) -> None:
    notes = lifecycle.begin(a_run(**run), SUCCEEDED, [], NOW + 9)
    assert notes.has_ended != starts
    assert notes.hash == a_run(**run).hash


def test_a_lower_attempt_after_a_rollback_starts_nothing() -> None:
    ended = dataclasses.replace(SUCCEEDED, attempt=2, hash="2")
    assert lifecycle.begin(a_run(), ended, [], NOW).has_ended


def test_changed_replicas_are_set_and_a_users_scale_of_an_unchanged_role_is_kept() -> None:
    notes = dataclasses.replace(STARTED, scales={"worker": 3, "ps": 1})
    assert lifecycle.begin(a_run(), notes, TASKS, NOW).scales == {"worker": 3, "ps": 1}
    roles = {"worker": Role(replicas=4, exits=EXIT_CODE), "ps": Role(replicas=1, exits=EXIT_CODE)}
    found = lifecycle.begin(a_run(roles=roles), notes, TASKS, NOW)
    assert (found.scales, found.state) == ({"worker": 4, "ps": 1}, "Starting")


@pytest.mark.parametrize(
    ("before", "now", "adopted"),
    [
        ({"worker": 2}, {"worker": 3}, 3),
        ({"worker": 2}, {"worker": 0}, 2),
        ({"worker": 2}, {}, 2),
        ({}, {"worker": 1}, 2),
    ],
    ids=["kubectl scale", "scaled to 0", "deleted", "created anew"],
)
def test_only_a_users_scale_of_the_workers_is_adopted(before: Any, now: Any, adopted: int) -> None:
    assert scales.adopt(a_run(), STARTED, before, now).scales["worker"] == adopted
    starting = dataclasses.replace(STARTED, state="Starting")
    assert scales.adopt(a_run(), starting, before, now) == starting


def test_tasks_without_an_address_are_not_part_of_the_run() -> None:
    roles = {
        "worker": Role(replicas=2, exits=EXIT_CODE, addresses=3),
        "ps": Role(replicas=1, exits=EXIT_CODE),
    }
    tasks = ("mnist-worker-2", "mnist-worker-3", "mnist-ps-0", "mnist-ps-1", "mnist-chief-0")
    assert [a_run(roles=roles).lists(task) for task in tasks] == [True, False, True, False, False]


def test_a_changed_scale_of_parameter_servers_is_reconcile() -> None:
    notes = scales.adopt(a_run(), STARTED, SCALE, {"worker": 2, "ps": 3})
    assert scales.wanted(a_run(), notes, {}, NOW)["ps"] == 1


def test_the_view_is_complete_when_every_watch_has_shown_its_list() -> None:
    view = View(frozenset({"worker", "ps", "tensorboard"}))
    view.apply(ScalesObserved(frozenset({"worker", "ps"}), {"worker": 1}))
    view.apply(ScalesObserved(frozenset({"tensorboard"}), {"tensorboard": 1}))
    assert not view.complete
    view.apply(PodsListed([]))
    assert view.complete
    assert view.scales == {"worker": 1, "tensorboard": 1}
    view.apply(ScalesObserved(frozenset({"worker", "ps"}), {"worker": 2, "ps": 1}))
    assert view.scales == {"worker": 2, "ps": 1, "tensorboard": 1}


def pending(pods: list[Pod], observed: dict[str, int], now: float) -> list[policy.PendingTask]:
    there = {pod.name: pod for pod in pods}
    return policy.pending_tasks(a_run(), STARTED, Observed(pods=there, scales=observed), now)


def test_an_absent_object_is_waited_for_without_a_limit() -> None:
    found = pending([], {"worker": 2}, NOW + 9000)
    waiting = {task.name: diagnosis.diagnose(task.role, task.problem) for task in found if task.held}
    assert waiting == {
        "mnist-ps-0": "the StatefulSet mnist-ps does not exist: complete the installation with `helm upgrade`"
    }
    the_run = a_run(start_timeout_seconds=5)
    assert policy.start_outcome(the_run, STARTED, [task for task in found if task.held], NOW + 9000) is None


def test_a_pod_that_outlives_its_grace_period_is_on_a_lost_node() -> None:
    hanging = a_pod("mnist-ps-0", terminating=True, deadline=NOW + 30, node="node-7")
    pods = [*TASKS[:2], hanging]
    assert pending(pods, SCALE, NOW + 90) == []
    (task,) = pending(pods, SCALE, NOW + 91)
    assert "the node node-7 does not answer" in diagnosis.diagnose(task.role, task.problem)
    assert policy.start_outcome(a_run(start_timeout_seconds=5), STARTED, [task], NOW + 9000) is None


def with_exits(exits: str, **policy: Any) -> Run:
    """A run with these rules for the exit codes of workers, and with this failure policy."""
    roles = {
        "worker": Role(replicas=2, exits=f"{exits} {EXIT_CODE}".lstrip()),
        "ps": Role(replicas=1, exits=EXIT_CODE),
    }
    return a_run(roles=roles, failure_policy=FailurePolicy(**policy), backoff_limit=0)


def judged(run: Run, *pods: Pod, before: Notes = STARTED) -> tuple[Notes, Any]:
    notes = policy.observe_pods(run, before, pods, NOW)
    return notes, outcome(run, notes, {pod.name: pod for pod in pods}, NOW)


@pytest.mark.parametrize(
    ("code", "action"),
    [(0, "End"), (1, "Ignore"), (2, "Ignore"), (137, "Restart"), (3, "Fail"), (13, "Fail"), (255, "Fail")],
)
def test_the_first_rule_that_applies_to_an_exit_code_decides(code: int, action: str) -> None:
    run = with_exits("1,2:Ignore !0,137:Fail")
    assert run.on_exit("worker", code) == action
    assert run.is_final("worker", code) == (action in ("End", "Fail"))
    assert run.on_exit("ps", code) == ("End" if code < 128 else "Restart")


def test_an_ignored_failure_restarts_the_task_and_does_not_count() -> None:
    run = with_exits("1:Ignore")
    notes, outcome = judged(run, a_pod("mnist-worker-0", 1, 1))
    assert (notes.counted.incidents, notes.finished, outcome) == (0, {}, None)
    notes, outcome = judged(run, a_pod("mnist-worker-0", 137, 1))
    assert notes.counted.incidents == 1
    assert "exceed run.backoffLimit (0)" in outcome.reason


def test_restart_all_ends_every_task_up_to_its_limit() -> None:
    run = with_exits("138:RestartAll", max_restarts=1)
    notes, decision = judged(run, a_pod("mnist-worker-0"), a_pod("mnist-worker-1", 138, 0))
    reason = "mnist-worker-1 failed with code 138: restarting all tasks (restart 1 of 1)"
    assert decision == policy.RestartAll(reason)
    notes = lifecycle.restart_all(a_run(), notes)
    assert (notes.state, notes.finished, notes.counted.of_all) == ("Stopping", {}, 1)
    _, decision = judged(run, a_pod("mnist-worker-1", 138, 0), before=dataclasses.replace(notes, state="Running"))
    assert decision.reason.endswith("all tasks have restarted run.failurePolicy.maxRestarts (1) times")


def test_a_rule_may_act_on_a_disruption() -> None:
    rule = Rule(action="Fail", roles=["ps"], on_pod_conditions=[PodCondition(type="DisruptionTarget")])
    worker, server = (
        a_pod(name, terminating=True, conditions={"DisruptionTarget": "True"})
        for name in ("mnist-worker-0", "mnist-ps-0")
    )
    _, outcome = judged(with_exits("", rules=[rule]), worker, a_pod("mnist-ps-0"))
    assert outcome is None
    _, outcome = judged(with_exits("", rules=[rule]), a_pod("mnist-worker-0"), server)
    assert outcome.reason == "mnist-ps-0 was disrupted, and run.failurePolicy fails the run"
    parked = dataclasses.replace(a_pod("mnist-ps-0", 0, 1), conditions=server.conditions)
    before = dataclasses.replace(STARTED, finished={"mnist-ps-0": 0})
    _, outcome = judged(with_exits("", rules=[rule]), a_pod("mnist-worker-0"), parked, before=before)
    assert outcome is None, "a task that has ended cannot be disrupted"


def test_tensorboard_runs_after_the_run_until_its_time_to_live_is_over() -> None:
    ended = dataclasses.replace(SUCCEEDED, ended=NOW, leader="uid")
    limited = a_run(tensorboard=dataclasses.replace(TENSORBOARD, ttl_seconds_after_finished=60))
    after = [scales.tensorboard_after(limited, ended, NOW + seconds) for seconds in (0, 59, 60)]
    assert after == [1, 1, 0]
    assert scales.tensorboard_after(a_run(), ended, NOW + 1e9) == 1
    assert scales.tensorboard_after(a_run(), dataclasses.replace(ended, leader=""), NOW) is None, "it never had a node"
    assert scales.tensorboard_after(a_run(tensorboard=None), ended, NOW) is None


def test_tensorboard_that_need_not_wait_runs_at_once() -> None:
    shared = dataclasses.replace(TENSORBOARD, gated=False, ttl_seconds_after_finished=60)
    assert scales.wanted(a_run(tensorboard=shared), STARTED, {}, NOW)["tensorboard"] == 1


def test_the_pod_of_a_client_that_has_ended_does_not_hold_up_a_suspension_or_a_new_run() -> None:
    ended = a_pod("mnist-client-0", 0, running=False, succeeded=True)
    stopping = dataclasses.replace(STARTED, state="Stopping")
    assert lifecycle.are_gone([ended])
    assert lifecycle.advance(a_run(), stopping, {ended.name: ended}, {"worker": 0, "ps": 0}, NOW).state == "Starting"
    assert not lifecycle.are_gone([ended, a_pod("mnist-ps-0")])


def test_all_tasks_cannot_restart_after_the_client_has_ended() -> None:
    roles = {
        "worker": Role(replicas=1, exits=f"42:RestartAll {EXIT_CODE}"),
        "client": Role(replicas=1, exits=EXIT_CODE, job="mnist-client-1"),
    }
    the_run = a_run(roles=roles, success_policy="AllWorkers")
    client = a_pod("mnist-client-0", 0, running=False, succeeded=True)
    there = {pod.name: pod for pod in (client, a_pod("mnist-worker-0", 42, restart_count=1))}
    notes = policy.observe_pods(the_run, STARTED, there.values(), NOW)
    found = outcome(the_run, notes, there, NOW)
    assert found == policy.Outcome(
        False,
        "mnist-worker-0 failed with code 42, and all tasks cannot restart, as mnist-client-0 has ended",
        ("mnist-worker-0",),
    )


def test_a_pod_with_the_values_of_another_upgrade_is_reported_and_replaced_by_the_next_supervisor() -> None:
    other = a_pod("mnist-worker-0", run_hash="other")
    waiting, *_ = policy.pending_tasks(a_run(), STARTED, Observed(pods={other.name: other}, scales=SCALE), NOW)
    assert "complete or roll back that upgrade, then run `kubectl delete pod mnist-worker-0`" in diagnosis.diagnose(
        "worker", waiting.problem
    )
    assert lifecycle.begin(a_run(), STARTED, [other], NOW).state == "Stopping"


def test_a_scale_for_which_the_cluster_has_no_addresses_is_not_adopted() -> None:
    roles = {"worker": Role(replicas=2, exits=EXIT_CODE, addresses=4)}
    for wanted, adopted in ((4, 4), (5, 2)):
        notes = scales.adopt(a_run(roles=roles), STARTED, SCALE, {"worker": wanted})
        assert notes.scales["worker"] == adopted


MEMBERS: Any = {"worker": 2, "ps": 1}
STAGE = Stage(name="a", digest="1", job="mnist-a")
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "gang": {"gang": Gang(kind="workload", members=MEMBERS)},
    "queue": {"gang": Gang(kind="kueue", members=MEMBERS, queue="research")},
    "elastic": {"elastic": Elastic(min=1, max=4)},
    "watch": {"data_watch": DataWatch(uri="/data", tag="", interval_seconds=60), "data_version": "1"},
    "stages": {"stages": Stages(before=[STAGE], after=[STAGE])},
    "suspend": {"suspend": True},
}
NEXT_STATES = """
state      event             plain      gang       queue      elastic    watch      stages     suspend
any        changed           Starting   Starting   Queued     Starting   Starting   Preparing  Starting
any        outdated          Stopping   Stopping   Stopping   Stopping   Stopping   Stopping   Stopping
any        suspended         Suspended  Suspended  Suspended  Suspended  Suspended  Suspended  Suspended
any        trained           Finishing  Finishing  Finishing  Finishing  Finishing  Finishing  Finishing
Suspended  resumed           Starting   Starting   Queued     Starting   Starting   Preparing  Starting
Stopping   superseded        Suspended  Suspended  Suspended  Suspended  Suspended  Suspended  Suspended
Stopping   tasks_ended       Starting   Starting   Queued     Starting   Starting   Preparing  Starting
Preparing  failed            Failed     Failed     Failed     Failed     Failed     Failed     Failed
Preparing  stages_done       Starting   Starting   Queued     Starting   Starting   Starting   Starting
Preparing  superseded        Suspended  Suspended  Suspended  Suspended  Suspended  Suspended  Suspended
Queued     admitted          Starting   Starting   Starting   Starting   Starting   Starting   Starting
Queued     superseded        Suspended  Suspended  Suspended  Suspended  Suspended  Suspended  Suspended
Starting   evicted           Stopping   Stopping   Stopping   Stopping   Stopping   Stopping   Stopping
Starting   failed            Failed     Failed     Failed     Failed     Failed     Failed     Failed
Starting   rescaled          Starting   Starting   Starting   Starting   Starting   Starting   Starting
Starting   restart_all       Stopping   Stopping   Stopping   Stopping   Stopping   Stopping   Stopping
Starting   scales_set        Running    Running    Running    Running    Running    Running    Running
Starting   succeeded         Succeeded  Succeeded  Succeeded  Succeeded  Succeeded  Finishing  Succeeded
Starting   superseded        Suspended  Suspended  Suspended  Suspended  Suspended  Suspended  Suspended
Running    evicted           Stopping   Stopping   Stopping   Stopping   Stopping   Stopping   Stopping
Running    failed            Failed     Failed     Failed     Failed     Failed     Failed     Failed
Running    gang_lost_nodes   Stopping   Stopping   Stopping   Stopping   Stopping   Stopping   Stopping
Running    rescaled          Starting   Starting   Starting   Starting   Starting   Starting   Starting
Running    restart_all       Stopping   Stopping   Stopping   Stopping   Stopping   Stopping   Stopping
Running    succeeded         Succeeded  Succeeded  Succeeded  Succeeded  Succeeded  Finishing  Succeeded
Running    superseded        Suspended  Suspended  Suspended  Suspended  Suspended  Suspended  Suspended
Finishing  failed            Failed     Failed     Failed     Failed     Failed     Failed     Failed
Finishing  rescaled          Starting   Starting   Starting   Starting   Starting   Starting   Starting
Finishing  stages_after_done Succeeded  Succeeded  Succeeded  Succeeded  Succeeded  Succeeded  Succeeded
Finishing  superseded        Suspended  Suspended  Suspended  Suspended  Suspended  Suspended  Suspended
Succeeded  rescaled          Starting   Starting   Starting   Starting   Starting   Starting   Starting
Failed     rescaled          Starting   Starting   Starting   Starting   Starting   Starting   Starting
"""
BEGINNINGS = """
state      plain      gang       queue      elastic    watch      stages     suspend
-          Starting   Starting   Queued     Starting   Starting   Preparing  Suspended
Suspended  Starting   Starting   Queued     Starting   Starting   Preparing  Suspended
Stopping   Stopping   Stopping   Stopping   Stopping   Stopping   Stopping   Suspended
Preparing  Preparing  Preparing  Preparing  Preparing  Preparing  Preparing  Suspended
Queued     Queued     Queued     Queued     Queued     Queued     Queued     Suspended
Starting   Starting   Starting   Starting   Starting   Starting   Starting   Suspended
Running    Running    Running    Running    Running    Running    Running    Suspended
Finishing  Finishing  Finishing  Finishing  Finishing  Finishing  Finishing  Suspended
Succeeded  Succeeded  Succeeded  Succeeded  Succeeded  Succeeded  Succeeded  Succeeded
Failed     Failed     Failed     Failed     Failed     Failed     Failed     Failed
"""


@pytest.mark.parametrize("mode", MODES)
def test_each_event_leads_from_each_state_to_the_next_one_of_the_mode(mode: str) -> None:
    header, *rows = (line.split() for line in NEXT_STATES.strip().splitlines())
    column = header.index(mode)
    expected = {
        (state, row[1].replace("_", " ")): row[column]
        for row in rows
        for state in (lifecycle.ANY if row[0] == "any" else [row[0]])
    }
    the_run = a_run(**MODES[mode])
    for state in lifecycle.ANY:
        for event in lifecycle.TRANSITIONS:
            after = lifecycle.enter(the_run, Notes(state=state), event).state
            assert after == expected.get((state, event), state), (state, event)


@pytest.mark.parametrize("mode", MODES)
def test_a_supervisor_goes_on_in_each_state_or_begins_in_the_first_one_of_the_mode(mode: str) -> None:
    header, *rows = (line.split() for line in BEGINNINGS.strip().splitlines())
    the_run = a_run(**MODES[mode])
    for state, expected in ((row[0], row[header.index(mode)]) for row in rows):
        more: Any = {"state": state, "data_version": the_run.data_version, "after": the_run.after}
        found = dataclasses.replace(STARTED, **more)
        before = Notes() if state == "-" else found
        assert lifecycle.begin(the_run, before, [], NOW).state == expected, state
