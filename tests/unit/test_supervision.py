"""The supervisor's pure parts: the status of pods, the outcome of a run, and its notes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lightkube.resources.core_v1 import Pod as KubernetesPod

from trainer.errors import ConfigurationError
from trainer.supervisor import diagnosis, gang, lifecycle, notes, pods, policy, run, scales
from trainer.supervisor.changes import PodChanged, PodsListed
from trainer.supervisor.dns import Unresolved
from trainer.supervisor.metrics import RunMetrics
from trainer.supervisor.notes import CountedRestarts, Notes
from trainer.supervisor.observed import Observed
from trainer.supervisor.pods import Pod, Terminated
from trainer.supervisor.run import Elastic, Gang, Role, Run, TensorBoard
from trainer.supervisor.view import View

NOW = 1_800_000_000.0
EXIT_CODE, ON_FAILURE = "0-127:End 128-255:Restart", "0-0:End 1-255:Restart"
NEVER, ALWAYS = "0-255:End", "0-255:Restart"
"""What the chart renders for each restart policy."""


TENSORBOARD = TensorBoard(
    gated=True, service_account="mnist-tensorboard", annotations={}, leaves_node=False, ttl_seconds_after_finished=None
)


def a_run(**settings: Any) -> Run:
    given: dict[str, Any] = {
        "fullname": "mnist",
        "chart": "distributed-tensorflow",
        "release": "mnist",
        "job": "mnist-run-1",
        "hash": "abc",
        "attempt": 1,
        "leader": "mnist-worker-0",
        "roles": {
            "worker": Role(replicas=2, exits=EXIT_CODE),
            "ps": Role(replicas=1, exits=EXIT_CODE),
        },
        "success_policy": "Chief",
        "clean_pod_policy": "All",
        "definition": "def",
        "suspend": False,
        "backoff_limit": 3,
        "active_deadline_seconds": None,
        "start_timeout_seconds": None,
        "tensorboard": TENSORBOARD,
        "result_command": "kubectl exec …",
        "metrics_port": None,
    }
    return Run(**given | settings)


def a_pod(name: str, code: int | None = None, restart_count: int = 0, **more: Any) -> Pod:
    given: dict[str, Any] = {
        "name": name,
        "pod_name": name,
        "run_hash": "abc",
        "uid": f"uid of {name}",
        "role": name.split("-")[1],
        "created": NOW,
        "gated": False,
        "node": "node-1",
        "scheduled": NOW,
        "running": True,
        "ready": True,
        "restart_count": restart_count,
        "terminated": None if code is None else Terminated(code, "Error" if code else "Completed", NOW),
        "succeeded": False,
        "terminating": False,
        "disrupted_at": None,
        "deadline": None,
        "conditions": {},
        "has_sidecar": False,
        "awaits_restart": False,
        "problem": "",
    }
    return Pod(**given | more)


SCALE = {"worker": 2, "ps": 1}
STARTED = Notes(hash="abc", definition="def", attempt=1, state="Running", started=NOW, replicas=SCALE, scales=SCALE)
RUNNING = dataclasses.replace(STARTED, running=NOW + 10)


def outcome(the_run: Run, known: Notes, there: dict[str, Pod], now: float) -> policy.Outcome | policy.RestartAll | None:
    return policy.outcome(the_run, known, Observed(pods=there, tasks=there), now)


def outcome_of(
    the_run: Run, *there: Pod, before: Notes = STARTED, now: float = NOW + 60
) -> policy.Outcome | policy.RestartAll | None:
    known = policy.observe_pods(the_run, before, there, now)
    return outcome(the_run, known, {pod.name: pod for pod in there}, now)


def pending_tasks(
    the_run: Run,
    there: dict[str, Pod],
    absent: dict[str, float],
    unresolved: dict[str, Unresolved] | None = None,
    known: Notes = STARTED,
) -> list[policy.PendingTask]:
    observed = Observed(pods=there, absent=absent, scales=SCALE, unresolved=unresolved or {})
    return policy.pending_tasks(the_run, known, observed, NOW)


def start(
    the_run: Run,
    there: dict[str, Pod],
    absent: dict[str, float],
    now: float,
    heard: str = "",
    unresolved: dict[str, Unresolved] | None = None,
    known: Notes = STARTED,
) -> policy.Outcome | None:
    waiting = pending_tasks(the_run, there, absent, unresolved, known)
    told = [policy.with_warning(the_run, task, {task.name: heard}) for task in waiting]
    return policy.start_outcome(the_run, known, told, now)


LATER = NOW + policy.PROMPT_SECONDS


def a_crashed_pod(code: int = 137, ran: float = 60, **more: Any) -> Pod:
    """A pod whose container has restarted before, has ended again at NOW, and waits for the kubelet's back-off."""
    ended = Terminated(code, "Error", NOW, ran)
    given: dict[str, Any] = {"running": False, "terminated": ended, "awaits_restart": True, "restart_count": 1}
    return a_pod("mnist-worker-1", **given | more)


def test_a_task_that_ran_well_is_replaced_and_its_restart_counts_once() -> None:
    pod = a_crashed_pod()
    before = dataclasses.replace(STARTED, counted=CountedRestarts(seen={pod.uid: 1}))
    assert policy.is_replaceable(a_run(), before, pod, LATER)
    after = policy.observe_pods(a_run(), before, [pod], LATER)
    assert (after.counted.restarts, after.counted.incidents, after.counted.by_role) == (1, 1, {"worker": 1})
    again = policy.observe_pods(a_run(), after, [pod], LATER + 1)
    assert again.counted.restarts == 1
    by_kubelet = dataclasses.replace(pod, running=True, awaits_restart=False, restart_count=2)  # the deletion failed
    assert policy.observe_pods(a_run(), again, [by_kubelet], NOW + 30).counted.restarts == 1
    replacement = a_pod("mnist-worker-1", uid="another")
    assert policy.observe_pods(a_run(), again, [replacement], NOW + 30).counted.restarts == 1
    assert not policy.is_replaceable(a_run(), again, replacement, LATER)


def test_a_task_that_is_replaced_again_and_again_fails_the_run() -> None:
    known = STARTED
    for number in range(4):
        pod = a_crashed_pod(uid=f"uid {number}", terminated=Terminated(137, "Error", NOW + 100 * number, 60))
        known = dataclasses.replace(known, counted=dataclasses.replace(known.counted, seen={pod.uid: 1}))
        known = policy.observe_pods(a_run(backoff_limit=3), known, [pod], LATER + 100 * number)
    assert isinstance(outcome(a_run(backoff_limit=3), known, {pod.name: pod}, NOW + 400), policy.Outcome)


def test_the_kubelet_delays_the_restart_of_a_task_that_ended_soon_or_for_good() -> None:
    queued = a_crashed_pod()
    known = dataclasses.replace(STARTED, ungated={queued.uid: NOW}, counted=CountedRestarts(seen={queued.uid: 1}))
    assert not policy.is_replaceable(a_run(), known, queued, LATER)
    fatal = {"worker": Role(replicas=2, exits=f"!0:Fail {EXIT_CODE}")}
    for pod, the_run in (
        (a_crashed_pod(ran=5), a_run()),
        (a_crashed_pod(code=1), a_run()),
        (a_crashed_pod(terminating=True), a_run()),
        (a_crashed_pod(terminated=None), a_run()),
        (a_crashed_pod(), a_run(roles=fatal)),
        (a_crashed_pod(), a_run(roles={"worker": Role(replicas=2, exits=EXIT_CODE, job="mnist-client")})),
    ):
        assert not policy.is_replaceable(the_run, known, pod, LATER)
        assert policy.observe_pods(the_run, known, [pod], LATER).counted.restarts == 0
    ended = dataclasses.replace(STARTED, finished={"mnist-worker-1": 137})
    assert not policy.is_replaceable(a_run(), ended, queued, LATER)


@pytest.mark.parametrize(
    ("restarts", "seconds", "is_replaceable"),
    [
        (0, 2, False),
        (1, 0, False),
        (1, 2, True),
        (1, 7, True),
        (1, 8, False),
        (2, 8, True),
        (2, 18, False),
        (99, 290, True),
    ],
)
def test_a_new_pod_must_be_sooner_than_the_kubelet(restarts: int, seconds: float, is_replaceable: bool) -> None:
    pod = a_crashed_pod(restart_count=restarts)
    assert policy.is_replaceable(a_run(), STARTED, pod, NOW + seconds) == is_replaceable


def test_a_run_goes_on_while_its_tasks_run() -> None:
    assert outcome_of(a_run(), a_pod("mnist-worker-0"), a_pod("mnist-worker-1"), a_pod("mnist-ps-0")) is None


def test_the_chief_ends_the_run_and_others_need_not_have_ended() -> None:
    found = outcome_of(a_run(), a_pod("mnist-worker-0", 0, 1), a_pod("mnist-worker-1"), a_pod("mnist-ps-0"))
    assert found == policy.Outcome(True, "mnist-worker-0 ended with code 0")


def test_the_outcome_of_a_run_says_how_often_its_tasks_restarted() -> None:
    before = dataclasses.replace(STARTED, counted=CountedRestarts(by_role={"ps": 1, "worker": 2}))
    found = outcome_of(a_run(), a_pod("mnist-worker-0", 0, 1), before=before)
    assert found == policy.Outcome(True, "mnist-worker-0 ended with code 0, after 3 restarts of tasks")


def test_all_workers_end_the_run_where_that_is_the_policy() -> None:
    the_run = a_run(success_policy="AllWorkers")
    assert outcome_of(the_run, a_pod("mnist-worker-0", 0, 1), a_pod("mnist-worker-1")) is None
    found = outcome_of(the_run, a_pod("mnist-worker-0", 0, 1), a_pod("mnist-worker-1", 0, 1), a_pod("mnist-ps-0"))
    assert isinstance(found, policy.Outcome)
    assert found.succeeded


def test_a_code_that_is_not_retried_fails_the_run_and_names_the_task() -> None:
    oom = a_pod("mnist-worker-1", terminated=Terminated(1, "OOMKilled", NOW), restart_count=1)
    found = outcome_of(a_run(), a_pod("mnist-worker-0"), oom)
    assert found == policy.Outcome(
        False,
        "mnist-worker-1 failed with code 1 (OOMKilled: raise worker.resources.limits.memory), which is not retried",
        ("mnist-worker-1",),
    )


def test_a_parked_task_logs_the_exit_code_that_kubernetes_no_longer_reports() -> None:
    forgotten = a_pod("mnist-worker-0", restart_count=1)
    assert pods.lacks_termination(forgotten)
    parked = (
        "task: ended with code 7 and is parked; its log: kubectl logs --previous mnist-worker-0"
        ' #trainer {"parked": {"exit_code": 7}}\n'
    )
    assert pods.with_logged_termination(forgotten, parked, NOW).terminated == Terminated(7, "", NOW)
    for other in ("", "12:00:00 worker 0: at step 5 of 500\n"):
        assert pods.with_logged_termination(forgotten, other, NOW) == forgotten


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("mnist-worker-0"),
        a_pod("mnist-worker-0", 1, restart_count=1),
        a_pod("mnist-worker-0", restart_count=1, running=False),
    ],
)
def test_a_task_that_never_ended_or_has_its_termination_does_not_lack_it(pod: Pod) -> None:
    assert not pods.lacks_termination(pod)


@pytest.mark.parametrize(
    ("exits", "code", "over"),
    [
        (EXIT_CODE, 0, True),
        (EXIT_CODE, 127, True),
        (EXIT_CODE, 128, False),
        (ON_FAILURE, 0, True),
        (ON_FAILURE, 1, False),
        (NEVER, 137, True),
        (ALWAYS, 0, False),
    ],
)
def test_the_restart_policy_decides_whether_an_exit_code_is_final(exits: str, code: int, over: bool) -> None:
    the_run = a_run(roles={"worker": Role(replicas=1, exits=exits)})
    known = policy.observe_pods(the_run, STARTED, [a_pod("mnist-worker-0", code, 1)], NOW)
    assert known.finished == ({"mnist-worker-0": code} if over else {})


def restart_each_minute(the_run: Run, count: int, *others: Pod) -> tuple[Notes, Pod]:
    """The notes on a worker that restarts every 61 seconds, and its pod."""
    known = STARTED
    worker = a_pod("mnist-worker-0")
    for restart in range(1, count + 1):
        worker = a_pod("mnist-worker-0", 137, restart)
        known = policy.observe_pods(the_run, known, [worker, *others], NOW + 61 * restart)
    return known, worker


def test_incidents_over_the_limit_fail_the_run_but_parking_does_not_count() -> None:
    parked = a_pod("mnist-ps-0", 0, 1)
    for count, limit in ((3, 3), (4, 3), (400, None)):
        the_run = a_run(backoff_limit=limit)
        known, worker = restart_each_minute(the_run, count, parked)
        found = outcome(the_run, known, {pod.name: pod for pod in (worker, parked)}, NOW)
        assert (found is None) == (limit is None or count <= limit)
        if found:
            assert "4 incidents with 4 restarts exceed run.backoffLimit (3)" in found.reason
            assert "mnist-worker-0 with code 137" in found.reason


def test_the_notes_have_only_pods_that_exist() -> None:
    """Their size is that of the run, however often its pods are replaced."""
    known = STARTED
    for number in range(50):
        pod = dataclasses.replace(a_pod("mnist-worker-0", 137, 1), uid=f"uid-{number}")
        queued = dataclasses.replace(a_pod("mnist-worker-1"), uid=f"queued-{number}", gated=True)
        known = policy.observe_pods(a_run(), known, [pod, queued], NOW + 61 * number)
        known = policy.forget_gone(known, [pod, queued])
    assert (known.counted.seen, known.ungated) == ({"uid-49": 1}, {"queued-49": 0.0})
    assert known.counted.by_role == {"worker": 50}


def test_restarts_within_a_minute_are_one_incident() -> None:
    the_run = a_run(backoff_limit=1)
    lost = [a_pod(f"mnist-worker-{index}", 138, 1) for index in range(7)]
    known = policy.observe_pods(the_run, STARTED, lost[:1], NOW)
    known = policy.observe_pods(the_run, known, lost[:4], NOW + 5)
    known = policy.observe_pods(the_run, known, lost, NOW + 60)
    assert (known.counted.incidents, known.counted.restarts) == (1, 7)
    assert outcome(the_run, known, {}, NOW + 60) is None
    again = [dataclasses.replace(pod, restart_count=2) for pod in lost]
    known = policy.observe_pods(the_run, known, again, NOW + 61)
    assert (known.counted.incidents, known.counted.restarts) == (2, 14)
    assert outcome(the_run, known, {}, NOW + 61)


def test_ten_minutes_without_a_restart_reset_the_count() -> None:
    known, worker = restart_each_minute(a_run(), 3)
    assert (known.counted.incidents, known.counted.restarts) == (3, 3)
    one_more = dataclasses.replace(worker, restart_count=4)
    last = NOW + 3 * 61
    assert policy.observe_pods(a_run(), known, [one_more], last + 599).counted.incidents == 4
    after = policy.observe_pods(a_run(), known, [one_more], last + 601)
    assert (after.counted.incidents, after.counted.restarts) == (1, 1)


@pytest.mark.parametrize(
    ("disrupted_at", "finished"),
    [(NOW - 5, False), (NOW, False), (NOW + 5, True), (None, False)],
)
def test_code_0_counts_only_if_the_task_ended_before_its_pod_was_told_to(
    disrupted_at: float | None, finished: bool
) -> None:
    drained = a_pod("mnist-worker-0", 0, terminating=True, running=False, disrupted_at=disrupted_at)
    known = policy.observe_pods(a_run(), STARTED, [drained], NOW + 6)
    assert known.finished == ({"mnist-worker-0": 0} if finished else {})


def test_a_pod_that_is_evicted_or_replaced_is_not_counted() -> None:
    evicted = a_pod("mnist-worker-0", 137, 0, terminating=True, running=False)
    known = policy.observe_pods(a_run(), STARTED, [evicted], NOW)
    assert (known.counted.restarts, known.finished) == (0, {})
    replaced = a_pod("mnist-worker-0", uid="another")
    assert policy.observe_pods(a_run(), known, [replaced], NOW).counted.restarts == 0


def test_a_finished_task_stays_finished_when_its_pod_changes() -> None:
    known = policy.observe_pods(a_run(), STARTED, [a_pod("mnist-ps-0", 0, 1)], NOW)
    after_a_reboot = a_pod("mnist-ps-0", 255, 2)
    assert policy.observe_pods(a_run(), known, [after_a_reboot], NOW).finished == {"mnist-ps-0": 0}


def test_a_deadline_fails_the_run_and_counts_from_when_a_queue_has_admitted_it() -> None:
    the_run = a_run(active_deadline_seconds=100)
    queued = policy.observe_pods(the_run, STARTED, [a_pod("mnist-worker-0", gated=True)], NOW)
    assert not queued.admitted
    admitted = policy.observe_pods(the_run, queued, [a_pod("mnist-worker-0")], NOW + 500)
    there = {"mnist-worker-0": a_pod("mnist-worker-0")}
    assert outcome(the_run, admitted, there, NOW + 599) is None
    found = outcome(the_run, admitted, there, NOW + 601)
    assert found == policy.Outcome(False, "it took longer than run.activeDeadlineSeconds (100 s)")
    again = lifecycle.restart_all(a_run(), admitted)
    assert (again.admitted, again.running) == (NOW + 500, 0.0), "a restart of all tasks does not extend it"


@pytest.mark.parametrize(("code", "exits"), [(0, EXIT_CODE), (1, EXIT_CODE), (143, NEVER)])
def test_an_end_that_the_kubelet_caused_and_has_not_yet_explained_does_not_count(code: int, exits: str) -> None:
    """As when its node shuts down: the condition and the phase follow the end of the containers."""
    the_run = a_run(roles={"worker": Role(replicas=2, exits=exits)})
    unexplained = a_pod("mnist-worker-0", code, running=False)
    explained = dataclasses.replace(unexplained, terminating=True)
    assert outcome_of(the_run, unexplained, now=NOW + 5) is None
    assert outcome_of(the_run, explained, now=NOW + 60) is None
    assert outcome_of(the_run, unexplained, now=NOW + 11), "nobody has explained it, so it is the task's own end"
    assert outcome_of(the_run, a_pod("mnist-worker-0", code, restart_count=1), now=NOW + 1), "it is parked"
    assert outcome_of(the_run, dataclasses.replace(unexplained, succeeded=True), now=NOW + 1)


def test_a_task_that_never_starts_fails_the_run_with_the_reason() -> None:
    the_run = a_run(start_timeout_seconds=30)
    waiting = a_pod("mnist-worker-1", running=False, problem="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
    there = {pod.name: pod for pod in (a_pod("mnist-worker-0"), waiting, a_pod("mnist-ps-0"))}
    assert start(the_run, there, {}, NOW + 29) is None
    found = start(the_run, there, {}, NOW + 31)
    assert found
    assert found.failed == ("mnist-worker-1",)
    assert "no node has enough nvidia.com/gpu left" in found.reason


@pytest.mark.parametrize(
    ("pod", "started", "problem"),
    [
        (None, False, ""),
        (a_pod("mnist-worker-1", running=False, problem="Pending"), False, "Pending"),
        (a_pod("mnist-worker-1", 137, 4, running=False, problem="CrashLoopBackOff"), True, "CrashLoopBackOff"),
    ],
)
def test_pending_tasks(pod: Pod | None, started: bool, problem: str) -> None:
    there = {found.name: found for found in (a_pod("mnist-worker-0"), a_pod("mnist-ps-0"), pod) if found}
    found = pending_tasks(a_run(), there, {"mnist-worker-1": NOW})
    (task,) = found
    assert (task.name, task.role, task.since, task.started, task.problem) == (
        "mnist-worker-1",
        "worker",
        NOW,
        started,
        problem,
    )
    assert task.unscheduled == (pod is None)


def test_a_task_whose_name_does_not_resolve_is_reported() -> None:
    there = {name: a_pod(name) for name in ("mnist-worker-0", "mnist-worker-1", "mnist-ps-0")}
    (found,) = pending_tasks(a_run(), there, {}, {"mnist-ps-0": Unresolved("mnist-ps-0.mnist-ps", NOW + 1)})
    assert (found.name, found.started, found.unresolved) == ("mnist-ps-0", True, True)
    assert "the supervisor's pod cannot resolve mnist-ps-0.mnist-ps" in diagnosis.diagnose("ps", found.problem)


@pytest.mark.parametrize(
    ("leader", "scale"),
    [
        (None, None),
        (a_pod("mnist-worker-0"), 1),
        (a_pod("mnist-worker-0", node=""), None),
        (a_pod("mnist-worker-0", node="", problem="Insufficient nvidia.com/gpu"), 0),
    ],
)
def test_tensorboard_runs_only_while_the_leader_is_schedulable(leader: Pod | None, scale: int | None) -> None:
    tasks = {leader.name: leader} if leader else {}
    assert scales.wanted(a_run(), STARTED, tasks, NOW).get(scales.TENSORBOARD) == scale
    assert scales.TENSORBOARD not in scales.wanted(a_run(tensorboard=None), STARTED, tasks, NOW)


def test_the_notes_keep_that_the_leader_had_a_node() -> None:
    waiting = a_pod("mnist-worker-0", node="")
    assert not policy.observe_pods(a_run(), STARTED, [waiting, a_pod("mnist-ps-0")], NOW).leader
    known = policy.observe_pods(a_run(), STARTED, [a_pod("mnist-worker-0")], NOW)
    assert policy.observe_pods(a_run(), known, [waiting], NOW).leader


def test_the_metrics_show_the_state_its_seconds_and_the_restarts_by_role() -> None:
    def shown(known: Notes, queued: bool = False) -> dict[tuple[str, str], float]:
        metrics = RunMetrics(a_run(), known)
        metrics.queued = queued
        samples = [sample for family in metrics.collect() for sample in family.samples]
        return {(sample.name, "".join(sample.labels.values())): sample.value for sample in samples}

    begun = dataclasses.replace(STARTED, counted=CountedRestarts(by_role={"worker": 2}))
    found = shown(begun)
    assert found["trainer_run_state", "Starting"] == 1
    assert found["trainer_run_restarts_total", "worker"] == 2
    assert found["trainer_run_restarts_total", "ps"] == 0
    found = shown(begun, queued=True)
    assert (found["trainer_run_state", "Starting"], found["trainer_run_state", "Queued"]) == (0, 1)
    found = shown(dataclasses.replace(begun, running=NOW + 12))
    assert (found["trainer_run_state", "Starting"], found["trainer_run_state", "Running"]) == (0, 1)
    assert found["trainer_run_state_seconds_total", "Starting"] == 12
    assert shown(dataclasses.replace(begun, state="Failed"))["trainer_run_state", "Failed"] == 1
    over = shown(dataclasses.replace(begun, state="Failed", running=NOW + 12, ended=NOW + 20))
    assert over["trainer_run_state_seconds_total", "Running"] == 8, "with watched data the supervisor goes on"


REST = {"image": "i", "imageID": "", "ready": True, "restartCount": 0}


def test_a_replacement_has_a_limit_of_its_own() -> None:
    there = {pod.name: pod for pod in (a_pod("mnist-worker-0"), a_pod("mnist-ps-0"))}
    late = NOW + 5000
    absent = {"mnist-worker-1": late - 31}
    event = 'FailedCreate: pods "mnist-worker-1" is forbidden: violates PodSecurity "restricted:latest": so'
    assert start(a_run(start_timeout_seconds=30), there, absent, late, known=RUNNING) is None
    the_run = a_run(start_timeout_seconds=10, replacement_timeout_seconds=30)
    assert start(the_run, there, absent, late - 1, known=RUNNING) is None
    refused = start(the_run, there, absent, late, event, known=RUNNING)
    assert refused
    assert "mnist-worker-1 did not start within run.replacementTimeoutSeconds (30 s)" in refused.reason
    assert "Pod Security (restricted:latest) refuses its pods" in refused.reason


def test_scheduling_gates_stop_the_clock() -> None:
    the_run = a_run(start_timeout_seconds=30)
    gated = a_pod("mnist-worker-1", running=False, node="", gated=True, problem="SchedulingGated")
    there = {pod.name: pod for pod in (a_pod("mnist-worker-0"), gated, a_pod("mnist-ps-0"))}
    known = policy.observe_pods(the_run, STARTED, there.values(), NOW + 500)
    assert start(the_run, there, {}, NOW + 500, known=known) is None
    there["mnist-worker-1"] = dataclasses.replace(gated, gated=False, problem="Pending")
    known = policy.observe_pods(the_run, known, there.values(), NOW + 600)
    assert start(the_run, there, {}, NOW + 630, known=known) is None
    assert start(the_run, there, {}, NOW + 631, known=known)


def test_a_name_that_the_supervisor_cannot_resolve_fails_no_run() -> None:
    the_run = a_run(start_timeout_seconds=30, replacement_timeout_seconds=30)
    there = {name: a_pod(name) for name in ("mnist-worker-0", "mnist-worker-1", "mnist-ps-0")}
    unresolved = {"mnist-ps-0": Unresolved("mnist-ps-0.mnist-ps", NOW + 900)}
    for known in (STARTED, RUNNING):
        assert start(the_run, there, {}, NOW + 9000, unresolved=unresolved, known=known) is None
    there["mnist-ps-0"] = a_pod("mnist-ps-0", 137)
    assert pending_tasks(the_run, there, {}, unresolved) == [], "it keeps ending, and that is what is reported"


@pytest.mark.parametrize(
    ("problem", "limit"),
    [
        ("0/3 nodes are available: 3 Insufficient cpu.", "scheduling"),
        ("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.", "scheduling"),
        ('persistentvolumeclaim "data" not found', "start"),
        ("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.", "start"),
        ("ErrImagePull: no", "start"),
    ],
)
def test_what_waits_for_a_node_has_its_own_limit_and_starts_its_clock_with_the_node(problem: str, limit: str) -> None:
    pending = a_pod("mnist-worker-1", running=False, node="", scheduled=0.0, problem=problem)
    there = {pod.name: pod for pod in (a_pod("mnist-worker-0"), pending, a_pod("mnist-ps-0"))}
    found = start(a_run(start_timeout_seconds=30, scheduling_timeout_seconds=30), there, {}, NOW + 31)
    assert found
    assert f"run.{limit}TimeoutSeconds (30 s)" in found.reason
    found = start(a_run(start_timeout_seconds=30), there, {}, NOW + 9000)
    assert (found is None) == (limit == "scheduling")
    there["mnist-worker-1"] = dataclasses.replace(pending, node="node-1", scheduled=NOW + 9000, problem="")
    assert start(a_run(start_timeout_seconds=30), there, {}, NOW + 9030) is None
    assert start(a_run(start_timeout_seconds=30), there, {}, NOW + 9031)


def test_a_pod_that_the_quota_forbids_waits_like_one_without_a_node() -> None:
    task = dataclasses.replace(pending_tasks(a_run(), {}, {})[0], problem="FailedCreate: exceeded quota: gpus, used: 8")
    assert task.lacks_capacity
    assert not dataclasses.replace(task, problem='violates PodSecurity "restricted"').lacks_capacity
    conflict = "0/3 nodes are available: 3 node(s) had volume node affinity conflict."
    assert not dataclasses.replace(task, problem=conflict).lacks_capacity
    in_zone = "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had volume node affinity conflict."
    assert dataclasses.replace(task, problem=in_zone).lacks_capacity


OBJECT: dict[str, Any] = {
    "metadata": {
        "name": "mnist-worker-0",
        "uid": "u",
        "labels": {"app.kubernetes.io/component": "worker"},
        "creationTimestamp": "2026-11-21T10:00:00Z",
    },
    "spec": {
        "containers": [
            {"name": "sidecar", "env": [{"name": "TASK_RUN", "value": "its own"}]},
            {"name": "worker", "env": [{"name": "OTHER", "value": "1"}, {"name": "TASK_RUN", "value": "abc"}]},
        ]
    },
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            REST | {"name": "sidecar", "restartCount": 7, "state": {"running": {}}},
            REST
            | {
                "name": "worker",
                "restartCount": 1,
                "state": {"running": {}},
                "lastState": {
                    "terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-11-21T10:05:00Z"}
                },
            },
        ],
    },
}


def observe(pod: dict[str, Any]) -> Pod:
    return pods.observe(msgspec.convert(pod, KubernetesPod))


def test_a_pods_status_is_that_of_its_tasks_container() -> None:
    found = observe(OBJECT)
    assert (found.role, found.running, found.ready, found.restart_count, found.terminating) == (
        "worker",
        True,
        True,
        1,
        False,
    )
    assert found.terminated == Terminated(0, "Completed", found.created + 300)
    assert found.run_hash == "abc"


@pytest.mark.parametrize(
    ("image", "digest"),
    [
        (f"registry.example.com:5000/mine@sha256:{'a' * 64}", f"sha256:{'a' * 64}"),
        (f"docker-pullable://mine@sha256:{'b' * 64}", f"sha256:{'b' * 64}"),
        (f"sha256:{'c' * 64}", f"sha256:{'c' * 64}"),
        ("", ""),
        ("sha256:abc", ""),
    ],
)
def test_a_pod_shows_the_digest_of_its_image(image: str, digest: str) -> None:
    worker = REST | {"name": "worker", "imageID": image, "state": {"running": {}}}
    assert observe(OBJECT | {"status": {"phase": "Running", "containerStatuses": [worker]}}).image == digest


def test_the_notes_keep_the_image_of_the_first_task_of_each_role() -> None:
    found = [a_pod("mnist-worker-0", image="sha256:1"), a_pod("mnist-worker-1", image="sha256:2"), a_pod("mnist-ps-0")]
    known = policy.observe_pods(a_run(), STARTED, found, NOW)
    assert known.images == {"worker": "sha256:1"}
    assert policy.observe_pods(a_run(), known, [a_pod("mnist-worker-0")], NOW).images == known.images
    data = notes.to_data(known, {"image.chief": "sha256:3"})
    assert {key: data[key] for key in data if key != "notes.json"} == {"image.worker": "sha256:1", "image.chief": None}


def test_a_pod_that_waits_for_the_kubelets_back_off_shows_how_long_it_ran() -> None:
    ended = {"exitCode": 137, "startedAt": "2026-11-21T10:01:00Z", "finishedAt": "2026-11-21T10:05:00Z"}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}
    worker = REST | {"name": "worker", "restartCount": 1, "state": waiting, "lastState": {"terminated": ended}}
    found = observe(OBJECT | {"status": {"phase": "Running", "containerStatuses": [worker]}})
    assert found.awaits_restart
    assert found.terminated == Terminated(137, "", found.created + 300, 240)
    assert not observe(OBJECT).awaits_restart


def test_a_deleted_pod_was_told_to_end_before_its_grace_period() -> None:
    metadata = OBJECT["metadata"] | {"deletionTimestamp": "2026-11-21T10:06:30Z", "deletionGracePeriodSeconds": 30}
    found = observe(OBJECT | {"metadata": metadata})
    assert (found.terminating, found.disrupted_at) == (True, found.created + 360)
    assert pods.ended_by_itself(found, found.created + 360)


def test_the_kubelets_last_deletion_does_not_move_the_time_at_which_a_pod_was_told_to_end() -> None:
    deleted = {"deletionTimestamp": "2026-11-21T10:06:30Z", "deletionGracePeriodSeconds": 30}
    removed = {"deletionTimestamp": "2026-11-21T10:06:07Z", "deletionGracePeriodSeconds": 0}
    first, last = (
        msgspec.convert(OBJECT | {"metadata": OBJECT["metadata"] | more}, KubernetesPod) for more in (deleted, removed)
    )
    assert pods.observe(last).disrupted_at is None
    view = View(frozenset())
    for pod in (first, last):
        view.apply(PodChanged("MODIFIED", pods.observe(pod)))
    assert [pod.disrupted_at for pod in (view.pods or {}).values()] == [pods.observe(first).disrupted_at]


def test_an_evicted_pod_was_told_to_end_when_it_became_a_disruption_target() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2026-11-21T10:04:59Z"}
    found = observe(OBJECT | {"status": OBJECT["status"] | {"phase": "Failed", "conditions": [condition]}})
    assert (found.terminating, found.disrupted_at) == (True, found.created + 299)
    assert not pods.ended_by_itself(found, found.created + 360)


def test_a_pod_that_the_kubelet_ended_does_not_show_when_it_was_told_to() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2026-11-21T10:05:01Z"}
    condition["reason"] = "TerminationByKubelet"
    found = observe(OBJECT | {"status": OBJECT["status"] | {"phase": "Failed", "conditions": [condition]}})
    assert (found.terminating, found.disrupted_at) == (True, None)
    assert not pods.ended_by_itself(found, found.created + 999)


def a_clients_pod(minute: int) -> KubernetesPod:
    """A pod that a Job created in this minute."""
    metadata = {
        "name": f"mnist-client-12345678-a{minute}",
        "uid": str(minute),
        "labels": {"app.kubernetes.io/component": "client"},
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "mnist-client-12345678", "uid": "j"}],
        "creationTimestamp": f"2026-11-21T10:0{minute}:00Z",
    }
    return msgspec.convert(
        {"metadata": metadata, "spec": {"containers": [], "hostname": "mnist-client-0"}}, KubernetesPod
    )


def test_a_clients_pod_has_the_name_of_its_task_and_a_pod_name_for_its_log() -> None:
    found = pods.observe(a_clients_pod(1))
    assert (found.name, found.pod_name, found.role) == ("mnist-client-0", "mnist-client-12345678-a1", "client")


def test_a_copy_of_a_pod_that_a_person_debugs_is_no_task() -> None:
    metadata = {"name": "mnist-worker-0-debug", "labels": {"app.kubernetes.io/component": "worker"}}
    spec = {"containers": [], "hostname": "mnist-worker-0"}
    found = pods.observe(msgspec.convert({"metadata": metadata, "spec": spec}, KubernetesPod))
    assert found.name == "mnist-worker-0-debug"
    assert not a_run().is_task(found.name)
    assert not a_run().lists(found.name)
    assert a_run().is_task("mnist-evaluator-0"), "of a role that the run no longer has"


def test_changes_of_a_replaced_pod_are_ignored() -> None:
    old, new = pods.observe(a_clients_pod(1)), pods.observe(a_clients_pod(2))
    view = View(frozenset())
    for change in (PodChanged("ADDED", old), PodChanged("ADDED", new), PodsListed([new, old])):
        assert view.apply(change) == {new.name} if isinstance(change, PodsListed) else (new.name,)
    for kind in ("MODIFIED", "DELETED"):
        assert view.apply(PodChanged(kind, old)) == ()
        assert view.pods == {new.name: new}
    assert view.apply(PodChanged("DELETED", new)) == (new.name,)
    assert view.pods == {}


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ({}, ""),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}]},
            "0/1 nodes are available",
        ),
        (
            {
                "containerStatuses": [
                    REST | {"name": "worker", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "m"}}}
                ]
            },
            "ImagePullBackOff: m",
        ),
        ({"containerStatuses": [REST | {"name": "worker", "state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        (
            {"initContainerStatuses": [REST | {"name": "i", "state": {"waiting": {"reason": "ErrImagePull"}}}]},
            "ErrImagePull",
        ),
    ],
)
def test_why_a_pod_does_not_run(status: dict[str, Any], problem: str) -> None:
    assert observe(OBJECT | {"status": status}).problem == problem


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "0/1 nodes are available: 1 Insufficient cpu.",
            "no node has enough cpu left: ask for less in worker.resources",
        ),
        (
            "0/9 nodes are available: 4 Insufficient cpu, 5 Insufficient cpu, 5 Insufficient memory.",
            "no node has enough cpu and memory left: ask for less in worker.resources, or add",
        ),
        ("1 Insufficient nvidia.com/gpu.", "no node has enough nvidia.com/gpu left: ask for less in worker.gpus, or"),
        ("1 Insufficient nvidia.com/gpu, 1 Insufficient cpu.", "ask for less in worker.resources and worker.gpus, or"),
        ('ErrImageNeverPull: Container image "a:1" is not present', "the image a:1 is not on the node, and its pull"),
        ('persistentvolumeclaim "x" not found', "the claim x does not exist: `helm upgrade` creates it if it is"),
        ('persistentvolumeclaim "x" is being deleted', "the claim x is being deleted: when it is gone, `helm upgrade`"),
        ("pod has unbound immediate PersistentVolumeClaims", "its claim is not bound"),
        ("ImagePullBackOff: Back-off", "its image cannot be pulled"),
        ("1 node(s) had untolerated taint {gpu: present}", "have the taint gpu"),
        (
            "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.",
            "it may share no node or domain with what is there (worker.affinity, or scheduling.placement: exclusive)",
        ),
        (
            "0/3 nodes are available: 3 node(s) didn't match pod topology spread constraints (missing required label).",
            "no node with room has the label of worker.topologySpreadConstraints",
        ),
        (
            "0/3 nodes are available: 3 node(s) didn't match pod topology spread constraints.",
            "its role cannot be spread evenly (worker.topologySpreadConstraints)",
        ),
        ("waiting for minCount pods from a gang to appear in scheduling queue", "not all of their pods exist yet"),
        (
            'waiting for pods\'s pod group "mnist" to appear in scheduling queue',
            "its PodGroup does not exist: complete the installation",
        ),
        (
            "1 node(s) had untolerated taint {control-plane: }, 2 node(s) didn't match pod affinity rules.",
            "it must share the node of the training directory",
        ),
        (
            "1 node(s) had untolerated taint {control-plane: }, 2 node(s) had volume node affinity conflict.",
            "its claim's volume is on a node or in a zone",
        ),
        (
            "1 node(s) had untolerated taint {control-plane: }, 1 node(s) didn't have free ports for the requested pod "
            "ports.",
            "choose another port and metrics.port",
        ),
        ('CreateContainerConfigError: secret "s" not found', 'is absent (secret "s" not found)'),
        ("FailedMount: timed out", "a volume cannot be mounted"),
        (
            'FailedMount: MountVolume.SetUp failed for volume "x" : configmap "mine" not found',
            "the ConfigMap mine does not exist",
        ),
        ("words of a later Kubernetes", "words of a later Kubernetes"),
        ("", "Kubernetes has not reported a reason yet"),
    ],
)
def test_a_pending_pod_is_diagnosed_in_one_sentence(said: str, sentence: str) -> None:
    assert sentence in diagnosis.diagnose("worker", said)


def test_a_parameter_server_is_not_told_to_ask_for_less_in_a_key_that_it_lacks() -> None:
    assert "in ps.resources, or" in diagnosis.diagnose("ps", "1 Insufficient nvidia.com/gpu.")


def test_notes_come_back_as_they_were_written() -> None:
    known = dataclasses.replace(
        STARTED, counted=CountedRestarts(2, seen={"u": 1}), finished={"mnist-ps-0": 0}, reason="so"
    )
    data = notes.to_data(known, {"notes.json": "{}", "stale": ""})
    assert notes.parse({key: value for key, value in data.items() if value is not None}) == known
    ended = notes.to_ended(known, False, {"mnist-worker-9": "old 1", "run": "old"})
    assert ended == {"run": "abc", "mnist-ps-0": "abc 0", "mnist-worker-9": None}, "another run's tasks are removed"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"scales": 3}',
        '{"counted": {"restarts": "x"}}',
        '{"state": "Gone"}',
        "[" * 100_000,
    ],
)
def test_notes_that_cannot_be_read_are_refused_and_not_overwritten(text: str) -> None:
    """A later version of the supervisor may have written them, before the chart was rolled back."""
    with pytest.raises(ConfigurationError, match=r"notes\.json cannot be read \(.*use the version of the chart"):
        notes.parse({"notes.json": text})


@pytest.mark.parametrize("data", [{}, {"notes.json": ""}, {"notes.json": '{"state": "Running", "later": 1}'}])
def test_absent_notes_and_unknown_fields_are_no_error(data: dict[str, str]) -> None:
    assert notes.parse(data).hash == ""


def run_file(**settings: Any) -> str:
    """The text of a run file with the required settings and these."""
    required = {
        "fullname": "mnist",
        "chart": "distributed-tensorflow",
        "release": "mnist",
        "job": "mnist-run-1",
        "hash": "abc",
        "attempt": 1,
        "leader": "mnist-worker-0",
        "roles": {"worker": {"replicas": 1, "exits": NEVER}},
        "successPolicy": "Chief",
        "cleanPodPolicy": "All",
        "definition": "def",
        "suspend": False,
        "tensorboard": None,
        "resultCommand": None,
        "metricsPort": None,
    }
    return json.dumps(required | settings)


def test_an_absent_limit_is_none(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(run_file())
    found = run.read(file, "uid", "pod")
    assert (found.backoff_limit, found.active_deadline_seconds, found.start_timeout_seconds) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "cannot be read: No such file"),
        ("{", "run.json: Invalid JSON: "),
        ("\udcff", "run.json: Invalid JSON: "),
        ("[]", "run.json: Input should be an object"),
        ('{"fullname": "a"}', "run.json: successPolicy: Field required"),
        (run_file(backoff_limit=1), "run.json: backoff_limit: Unexpected"),
        (run_file(laterSetting=1), "run.json: laterSetting: Unexpected"),
        (run_file(backoffLimit=-1), "run.json: backoffLimit: Input should be greater than or equal to 0"),
        (run_file(roles={"worker": {"replicas": 1}}), "run.json: roles.worker.exits: Field required"),
        (
            run_file(roles={"worker": {"replicas": 1, "exits": "1:Later"}}),
            "run.json: roles.worker.exits: String should match",
        ),
    ],
)
def test_an_invalid_run_file_is_refused(tmp_path: Path, text: str | None, named: str) -> None:
    file = tmp_path / "run.json"
    if text is not None:
        file.write_text(text, errors="surrogateescape")
    with pytest.raises(ConfigurationError, match=f"--run: .*{named}"):
        run.read(file, "uid", "pod")


def a_gang(kind: Any = "workload", **more: Any) -> Gang:
    return Gang(kind=kind, members={"worker": 2, "ps": 1}, **more)


def test_a_gang_that_waits_for_nodes_has_no_limit_and_the_clock_begins_when_it_has_them() -> None:
    the_run = a_run(gang=a_gang(), start_timeout_seconds=60, active_deadline_seconds=60)
    names = ["mnist-worker-0", "mnist-worker-1", "mnist-ps-0"]
    waiting = {name: a_pod(name, node="", running=False, problem="0/3 nodes are available") for name in names}
    known = policy.observe_pods(the_run, STARTED, waiting.values(), NOW + 900)
    assert not known.admitted
    tasks = pending_tasks(the_run, waiting, {}, known=known)
    assert [(task.waits, task.unscheduled) for task in tasks] == [(True, False)] * 3
    assert start(the_run, waiting, {}, NOW + 900, known=known) is None
    placed = {
        name: dataclasses.replace(pod, node="node-1", scheduled=NOW + 900, problem="") for name, pod in waiting.items()
    }
    known = policy.observe_pods(the_run, known, placed.values(), NOW + 900)
    assert not any(task.waits for task in pending_tasks(the_run, placed, {}, known=known))
    assert start(the_run, placed, {}, NOW + 950, known=known) is None
    assert outcome(the_run, known, placed, NOW + 950) is None
    failed = start(the_run, placed, {}, NOW + 961, known=known)
    assert failed
    assert "run.startTimeoutSeconds (60 s)" in failed.reason


def test_the_limits_of_a_gang_that_has_given_its_nodes_back_begin_again() -> None:
    the_run = a_run(gang=a_gang(), start_timeout_seconds=60, active_deadline_seconds=60)
    names = ["mnist-worker-0", "mnist-worker-1", "mnist-ps-0"]
    there = {name: a_pod(name) for name in names[:2]}
    there[names[2]] = a_pod(names[2], node="", running=False, problem="0/3 nodes are available")
    known = policy.observe_pods(the_run, RUNNING, there.values(), NOW)
    lost = pending_tasks(the_run, there, {}, known=known)
    known, sentence = gang.give_back(the_run, known, lost, NOW + 301)
    assert "ending all tasks" in sentence
    known = policy.observe_pods(the_run, known, there.values(), NOW + 62)
    assert (known.state, known.admitted) == ("Stopping", 0.0), "those that end count nothing"
    known = dataclasses.replace(known, state="Starting", started=NOW + 70)
    later: dict[str, Any] = {
        "created": NOW + 70,
        "scheduled": NOW + 900,
        "running": False,
        "problem": "ContainerCreating",
    }
    placed = {name: a_pod(name, **later) for name in names}
    known = policy.observe_pods(the_run, known, placed.values(), NOW + 900)
    assert start(the_run, placed, {}, NOW + 950, known=known) is None
    assert outcome(the_run, known, placed, NOW + 950) is None
    assert start(the_run, placed, {}, NOW + 961, known=known)


def test_a_single_task_of_a_gang_that_has_lost_its_node_waits_alone() -> None:
    there = {name: a_pod(name) for name in ("mnist-worker-0", "mnist-ps-0")}
    there["mnist-worker-1"] = a_pod("mnist-worker-1", node="", running=False, problem="0/3 nodes are available")
    (task,) = pending_tasks(a_run(gang=a_gang()), there, {}, known=RUNNING)
    assert (task.name, task.waits, task.unscheduled) == ("mnist-worker-1", False, True)


def test_admitted_tasks_of_a_queue_have_the_limits_of_each_task() -> None:
    the_run = a_run(gang=a_gang("kueue", queue="research"), scheduling_timeout_seconds=60)
    there = {name: a_pod(name) for name in ("mnist-worker-1", "mnist-ps-0")}
    waiting = a_pod("mnist-worker-0", node="", running=False, problem="0/3 nodes are available", gated=True)
    known = policy.observe_pods(the_run, STARTED, [waiting], NOW)
    assert (known.admitted, known.ungated) == (0.0, {}), "a thousand pods would be a thousand notes"
    there[waiting.name] = dataclasses.replace(waiting, gated=False)
    known = policy.observe_pods(the_run, known, there.values(), NOW + 5)
    assert start(the_run, there, {}, NOW + 65, known=known) is None
    failed = start(the_run, there, {}, NOW + 66, known=known)
    assert failed
    assert failed.failed == ("mnist-worker-0",)


def test_a_gang_that_has_lost_a_part_of_its_nodes_gives_back_the_others() -> None:
    the_run = a_run(gang=a_gang())
    there = {name: a_pod(name) for name in ("mnist-worker-0", "mnist-ps-0")}
    there["mnist-worker-1"] = a_pod("mnist-worker-1", node="", running=False, problem="1 Insufficient cpu")
    tasks = pending_tasks(the_run, there, {}, known=RUNNING)
    assert gang.give_back(the_run, RUNNING, tasks, NOW + 299) == (RUNNING, "")
    after, sentence = gang.give_back(the_run, RUNNING, tasks, NOW + 300)
    assert (after.state, after.running, after.counted.of_all) == ("Stopping", 0.0, 0)
    assert sentence.startswith("mnist-worker-1 has no node, and only 2 of the 3 tasks of the gang have one: ending all")
    assert lifecycle.advance(the_run, after, {}, {"worker": 0, "ps": 0}, NOW).state == "Starting"

    fewer = a_run(gang=Gang(kind="workload", members={"worker": 1, "ps": 1}), elastic=Elastic(min=1, max=2))
    assert gang.give_back(fewer, RUNNING, tasks, NOW + 300) == (RUNNING, ""), "it goes on with fewer workers"
    assert gang.give_back(a_run(), RUNNING, tasks, NOW + 300) == (RUNNING, ""), "it is no gang"
    none = {name: dataclasses.replace(there["mnist-worker-1"], name=name) for name in ("mnist-worker-0", "mnist-ps-0")}
    waiting = pending_tasks(the_run, none, {}, known=RUNNING)  # worker 1 has no pod, as with an exhausted quota
    assert gang.give_back(the_run, RUNNING, waiting, NOW + 600) == (RUNNING, ""), "it holds nothing"
