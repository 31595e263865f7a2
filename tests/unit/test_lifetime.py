"""A release from start to end: losses, upgrades that fail, rollbacks, refused calls; with each pair of modes."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.unit.fake_cluster import FakeCluster, Supervisor, in_time_of
from tests.unit.test_supervision import EXIT_CODE, a_run
from trainer.supervisor import supervise
from trainer.supervisor.connection import STOPPED, StoppedError
from trainer.supervisor.kubernetes_api import ENDLESS_RETRIES
from trainer.supervisor.pods import Pod, Terminated
from trainer.supervisor.policy import Outcome
from trainer.supervisor.run import DataWatch, Elastic, Gang, Role, Run, Stage, Stages

pytestmark = pytest.mark.slow

ROLES = {"worker": Role(replicas=2, exits=EXIT_CODE, addresses=4), "ps": Role(replicas=1, exits=EXIT_CODE)}
MEMBERS: Any = {"worker": 2, "ps": 1}
PREPARE = Stage(name="prepare", digest="1", job="mnist-prepare")
MADE = dataclasses.replace(PREPARE, manifest={"metadata": {"name": "mnist-prepare"}}, template="t")
MODES: Mapping[str, dict[str, Any]] = {
    "gang": {"gang": Gang(kind="workload", members=MEMBERS)},
    "queue": {"gang": Gang(kind="kueue", members=MEMBERS, queue="research")},
    "elastic": {"elastic": Elastic(min=1, max=4)},
    "watch": {"data_watch": DataWatch(uri="/data", tag="", interval_seconds=60)},
    "stages": {"stages": Stages(before=[PREPARE])},
    "suspend": {},
}
PAIRS = [pair for pair in itertools.combinations(MODES, 2) if pair != ("gang", "queue")]


def a_release(*modes: str, **more: Any) -> Run:
    settings: dict[str, Any] = {
        "roles": ROLES,
        "tensorboard": None,
        "start_timeout_seconds": 600,
        "job": "mnist-run-old",
    }
    for mode in modes:
        settings |= MODES[mode]
    if {"watch", "stages"} <= {*modes}:
        settings["stages"] = Stages(before=[MADE])
    return a_run(**settings | more)


def changed(run: Run, **more: Any) -> Run:
    """The run after an upgrade that changes it."""
    stages = Stages(before=[dataclasses.replace(stage, digest="2") for stage in run.stages.before])
    return dataclasses.replace(run, job="mnist-run-new", hash="new", definition="new", stages=stages, **more)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """The cluster with a release in the modes of the parameter, whose tasks run."""
    run = a_release(*getattr(request, "param", ()))
    with in_time_of(FakeCluster(run), monkeypatch) as found:
        found.until("Running")
        found.step(times=3)
        yield found


def writers(cluster: FakeCluster) -> set[str]:
    """The supervisors that have changed something since the calls were cleared."""
    return {supervisor.split()[2] for supervisor, verb, _ in cluster.calls if verb not in ("get", "list")}


def settle(cluster: FakeCluster, run: Run) -> None:
    """Step until the run's tasks run, and then for ten minutes: nothing else happens."""
    cluster.until("Stopping")
    cluster.until("Running")
    cluster.step(times=10)
    assert {pod.run_hash for pod in cluster.pods.values()} == {run.hash}
    count = len(cluster.created)
    cluster.calls.clear()
    cluster.step(5, times=120)
    assert (len(cluster.created), cluster.notes.state, cluster.notes.hash) == (count, "Running", run.hash)
    assert writers(cluster) <= {run.job}


@pytest.mark.parametrize("cluster", PAIRS, indirect=True, ids="-".join)
def test_a_release_in_two_modes_outlives_a_loss_and_upgrades_that_fail(cluster: FakeCluster) -> None:
    old = cluster.run
    assert len(cluster.created) == 3
    cluster.lose("mnist-worker-1")
    cluster.nodes += 1
    cluster.step(times=10)
    assert len(cluster.created) == 4

    new = changed(old)
    cluster.install(new, old_jobs_stay=True)  # the API server refuses a later object
    settle(cluster, new)
    assert len(cluster.created) == 7, "no pod is created twice"

    cluster.install(old)  # helm rollback
    settle(cluster, old)
    assert len(cluster.created) == 10

    cluster.install(new, old_jobs_stay=True)
    settle(cluster, new)
    cluster.install(new)  # the same upgrade, which succeeds now
    cluster.step(times=60)
    assert len(cluster.created) == 13

    cluster.install(suspended := dataclasses.replace(new, job="mnist-run-suspended", suspend=True))
    cluster.until("Suspended")
    cluster.step(times=10)
    assert (suspended.hash, cluster.pods) == (new.hash, {})
    cluster.install(new)
    cluster.until("Running")
    cluster.step(times=5)
    cluster.end("mnist-worker-0")
    cluster.until("Succeeded")
    cluster.step(times=10)
    assert cluster.pods == {}


def test_an_upgrade_that_fails_before_its_supervisor_exists_leaves_the_run_to_the_present_one(
    cluster: FakeCluster,
) -> None:
    cluster.install(changed(cluster.run), old_jobs_stay=True, job=False)
    (present,) = cluster.supervisors
    cluster.supervisors = [type(present)(cluster, present.run)]  # its pod is replaced meanwhile
    cluster.step(times=30)
    assert (cluster.notes.state, cluster.notes.job, len(cluster.created)) == ("Running", "mnist-run-old", 3)


def test_an_upgrade_back_to_earlier_values_leaves_the_run_to_the_supervisor_that_it_names(cluster: FakeCluster) -> None:
    old = cluster.run
    cluster.install(changed(old), old_jobs_stay=True)
    settle(cluster, cluster.run)
    cluster.install(old, old_jobs_stay=True)  # Helm forgets the objects of the release that failed
    settle(cluster, old)


@pytest.mark.parametrize("cluster", [("queue",)], indirect=True)
def test_one_answer_404_about_the_workload_evicts_no_run(cluster: FakeCluster) -> None:
    cluster.has_kueue = False
    cluster.step(times=5)
    cluster.has_kueue = True
    cluster.step(times=60)
    assert (cluster.notes.state, len(cluster.created)) == ("Running", 3)


@pytest.mark.parametrize("cluster", [("queue",)], indirect=True)
def test_a_queued_run_reports_its_outcome_although_a_pod_is_on_a_dead_node(cluster: FakeCluster) -> None:
    cluster.grace_seconds = 1e6
    cluster.end("mnist-worker-0")
    cluster.until("Succeeded")
    cluster.step(times=120)
    assert cluster.events[-1] == "RunSucceeded"
    assert cluster.supervisors[0].outcome is None, "it cleans up"


def test_a_scale_that_is_refused_is_set_later(cluster: FakeCluster) -> None:
    cluster.end("mnist-worker-0")
    cluster.refused = lambda verb, what: verb == "patch" and what == "mnist-worker"
    cluster.step(times=60)
    assert cluster.notes.state == "Succeeded"
    assert "mnist-worker-0" in cluster.pods
    cluster.refused = lambda verb, what: False
    cluster.step(times=10)
    assert cluster.pods == {}


def test_the_same_crash_five_times_ends_the_supervisors_job_with_its_reason(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise ValueError(f"invalid literal {len(limits)}")

    limits: list[int] = []
    monkeypatch.setattr(supervise, "_supervise", crash)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    connection = cluster.supervisors[0].connection
    for cluster.failed_pods in range(5):
        with pytest.raises(ValueError, match="invalid literal"):
            supervise.supervise(cluster.supervisors[0].run, connection)
        limits.append(cluster.job["spec"]["backoffLimit"])
    assert limits == [ENDLESS_RETRIES] * 4 + [4]
    assert cluster.events[-5:] == ["SupervisorCrashed"] * 5
    outcome = cluster.job["metadata"]["annotations"]["distributed-tensorflow/outcome"]
    assert outcome.startswith("the supervisor crashed: ValueError: invalid literal 4 (5 of at most 5 times)")
    assert "the tasks go on without a supervisor" in outcome


def test_a_supervisor_that_is_killed_again_and_again_ends_its_job_and_one_that_is_evicted_does_not(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise StoppedError(STOPPED)

    monkeypatch.setattr(supervise, "_supervise", stop)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    run, connection = cluster.supervisors[0].run, cluster.supervisors[0].connection
    for cluster.failed_pods in range(8):
        with pytest.raises(StoppedError):
            supervise.supervise(run, connection)
    assert "SupervisorCrashed" not in cluster.events
    for _ in range(4):
        cluster.failed_pods += 2  # the one that has stopped, and another one that was killed
        with pytest.raises(StoppedError):
            supervise.supervise(run, connection)
    cluster.failed_pods += 2
    outcome = supervise.supervise(run, connection)
    assert outcome
    assert not outcome.succeeded
    assert "for memory (supervisor.resources.limits.memory)" in outcome.reason
    assert cluster.job["spec"]["backoffLimit"] == cluster.failed_pods
    assert cluster.events.count("SupervisorCrashed") == 5


def test_a_pod_that_has_not_started_gets_the_settings_of_an_upgrade(cluster: FakeCluster) -> None:
    cluster.lose("mnist-worker-1")
    cluster.nodes = 2
    cluster.step(times=20)
    assert not cluster.pods["mnist-worker-1"].node
    before = {name: pod.uid for name, pod in cluster.pods.items()}
    cluster.install(dataclasses.replace(cluster.run, job="mnist-run-2"))
    cluster.step(times=20)
    replaced = [name for name, pod in cluster.pods.items() if pod.uid != before[name]]
    assert replaced == ["mnist-worker-1"]
    assert cluster.pods["mnist-worker-1"].revision == cluster.revision
    count = len(cluster.created)
    cluster.step(times=60)
    assert len(cluster.created) == count


def test_of_two_pods_of_one_job_the_older_one_ends(cluster: FakeCluster) -> None:
    (old,) = cluster.supervisors
    new = Supervisor(cluster, cluster.run)  # the node of the old pod was cut off, and is back
    cluster.supervisors.append(new)
    for seconds in range(40):
        if seconds % 4 == 0:
            cluster.scales["ps"] = 0  # both have something to write
        cluster.step()
    assert cluster.notes.supervisor == new.run.supervisor
    assert old.stopped == "the Job mnist-run-old has a newer pod, which supervises the run"
    assert not new.superseded


def test_a_supervisor_that_takes_over_goes_by_the_notes_that_it_replaces(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await_pods, (old,) = supervise._Loop._await_pods, cluster.supervisors

    def await_pods_while_the_run_ends(loop: supervise._Loop) -> list[Pod]:
        cluster.end("mnist-worker-0")
        for _ in range(20):
            cluster.now += 1
            cluster.control()
            old.step()
        return await_pods(loop)

    count = len(cluster.created)
    cluster.install(dataclasses.replace(cluster.run, job="mnist-run-2"), old_jobs_stay=True)
    with monkeypatch.context() as patch:
        patch.setattr(supervise._Loop, "_await_pods", await_pods_while_the_run_ends)
        cluster.supervisors[1].step()
    assert (cluster.notes.state, cluster.notes.job) == ("Succeeded", "mnist-run-2")
    cluster.step(times=30)
    assert (cluster.notes.state, len(cluster.created)) == ("Succeeded", count)


def test_a_pod_that_waits_for_a_node_is_not_replaced_by_one_of_another_run(cluster: FakeCluster) -> None:
    cluster.lose("mnist-worker-1")
    cluster.nodes = 2
    cluster.step(times=20)
    waiting, old = cluster.pods["mnist-worker-1"], cluster.run
    cluster.install(changed(old), old_jobs_stay=True, job=False)  # its StatefulSets are there, and its Job is not
    cluster.step(times=30)
    assert cluster.pods["mnist-worker-1"] == waiting
    cluster.nodes = 3
    cluster.step(times=5)
    assert cluster.pods["mnist-worker-1"].running
    assert {pod.run_hash for pod in cluster.pods.values()} == {old.hash}


@pytest.mark.parametrize("is_rollback", [True, False], ids=["rollback", "upgrade"])
def test_going_back_to_a_run_that_has_ended_suspends_the_run_that_it_replaces(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, is_rollback: bool
) -> None:
    old = cluster.run
    cluster.end("mnist-worker-0")
    cluster.until("Succeeded")
    cluster.step(times=20)
    assert cluster.supervisors[0].outcome
    cluster.install(changed(old), old_jobs_stay=True)
    cluster.until("Running")
    cluster.step(times=10)
    caplog.set_level("INFO")
    cluster.install(old, old_jobs_stay=not is_rollback)  # an upgrade has forgotten the Job of the one that failed
    cluster.step(times=120)
    assert (cluster.notes.state, cluster.pods, set(cluster.scales.values())) == ("Suspended", {}, {0})
    assert "mnist-run-old, has ended: raise run.attempt" in caplog.text


def test_a_wanted_supervisor_that_fails_at_once_does_not_end_the_run_of_the_present_one(cluster: FakeCluster) -> None:
    cluster.install(changed(cluster.run), old_jobs_stay=True)
    cluster.supervisors[1].outcome = Outcome(False, "its metrics.port is in use")
    cluster.step(times=200)
    assert (cluster.notes.state, cluster.notes.job, len(cluster.pods)) == ("Running", "mnist-run-old", 3)


def test_a_supervisor_that_may_not_change_its_job_ends_after_a_minute(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (supervisor,) = cluster.supervisors
    assert supervisor.loop
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) > 20

    monkeypatch.setattr(supervisor.connection.stopping, "wait", pause)
    cluster.refused_code, cluster.refused = 403, lambda verb, what: what == "mnist-run-old"
    supervisor.loop._api.fail_job()
    assert sum(pauses) <= 60
    assert "the Job mnist-run-old cannot be ended" in caplog.text


def test_a_pod_that_may_not_be_deleted_is_not_asked_for_in_each_pass(cluster: FakeCluster) -> None:
    cluster.lose("mnist-worker-1")
    cluster.nodes = 2
    cluster.step(times=20)
    cluster.refused = lambda verb, what: verb == "delete"
    cluster.install(dataclasses.replace(cluster.run, job="mnist-run-2"))
    cluster.calls.clear()
    cluster.step(times=65)
    asked = [call for call in cluster.calls if call[1:] == ("delete", "mnist-worker-1")]
    assert 1 <= len(asked) <= 13
    cluster.refused = lambda verb, what: False
    cluster.step(times=10)
    assert cluster.pods["mnist-worker-1"].revision == cluster.revision


def test_a_task_in_back_off_is_not_replaced_by_a_pod_of_another_run(cluster: FakeCluster) -> None:
    waiting = dataclasses.replace(
        cluster.pods["mnist-worker-1"],
        terminated=Terminated(137, "", cluster.now, 100.0),
        restart_count=3,
        running=False,
        awaits_restart=True,
    )
    cluster.pods["mnist-worker-1"] = waiting
    cluster.install(changed(cluster.run), old_jobs_stay=True, job=False)
    cluster.step(times=10)
    assert cluster.pods["mnist-worker-1"].uid == waiting.uid
