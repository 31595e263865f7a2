"""A run in a queue of Kueue: its Workload, what Kueue's answers mean, and what the supervisor does about them."""

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.fake_cluster import Dns
from tests.unit.test_reporter import Api as ReporterApi
from tests.unit.test_supervision import NOW, RUNNING, a_pod, a_run
from trainer.supervisor import admission, elastic, kueue, lifecycle, scales
from trainer.supervisor.actor import Actor
from trainer.supervisor.decision import Decision
from trainer.supervisor.kueue import Placement, Workload
from trainer.supervisor.kueue_api import KueueApi, UnreadableError
from trainer.supervisor.notes import ElasticNotes, Notes, State
from trainer.supervisor.observed import Observed
from trainer.supervisor.observer import Observer
from trainer.supervisor.reporter import Reporter
from trainer.supervisor.run import Elastic, Gang, Role, Run
from trainer.supervisor.view import View

ROLES = {"worker": Role(replicas=4, exits="0-255:End"), "ps": Role(replicas=1, exits="0-255:End")}


def queued(**more: Any) -> Run:
    members = {"worker": 2, "ps": 1}
    gang = Gang(kind="kueue", queue="research", members=members)  # type: ignore[arg-type]
    return a_run(**{"roles": ROLES, "gang": gang, "elastic": Elastic(min=2, max=4), **more})


RUN = queued()
WANTED = {"worker": 4, "ps": 1}
QUEUED = Notes(
    state="Queued",
    hash="abc",
    started=NOW - 10,
    begun=NOW - 10,
    replicas={"worker": 4, "ps": 1},
    scales={"worker": 4, "ps": 1},
)
STARTED = dataclasses.replace(QUEUED, state="Running")


def answer(counts: Mapping[str, int] | None = None, **conditions: tuple[bool, str, str]) -> dict[str, Any]:
    """A Workload as the API server returns it, with conditions: status, reason, message."""
    assigned = [{"name": role, "count": count, "flavors": {"cpu": "a100"}} for role, count in (counts or {}).items()]
    listed = [
        {"type": kind, "status": str(status), "reason": reason, "message": message}
        for kind, (status, reason, message) in conditions.items()
    ]
    return {
        "metadata": {"uid": "1", "resourceVersion": "7", "annotations": {kueue.RUN: "abc"}},
        "spec": {"podSets": [{"name": "worker", "count": 4}, {"name": "ps", "count": 1}]},
        "status": {"conditions": listed, **({"admission": {"podSetAssignments": assigned}} if assigned else {})},
    }


RESERVED = (True, "QuotaReserved", "")
ADMITTED = kueue.observe(answer({"worker": 4, "ps": 1}, QuotaReserved=RESERVED, Admitted=(True, "Admitted", "")))
PREEMPTED = (True, "Preempted", "Preempted to accommodate a workload")
EVICTED = kueue.observe(
    answer({"worker": 4, "ps": 1}, QuotaReserved=RESERVED, Admitted=(True, "Admitted", ""), Evicted=PREEMPTED)
)
PENDING = kueue.observe(answer(QuotaReserved=(False, "Pending", "insufficient unused quota for cpu")))


ENDS: tuple[State, State] = ("Succeeded", "Suspended")


class Api(KueueApi):
    """Keeps the calls."""

    def __init__(self, placement: Placement) -> None:
        self.calls: list[Any] = []
        self.placement = placement
        self.unreadable: dict[str, UnreadableError] = {}
        """By the name of the call that fails."""

    def create(self) -> bool:
        self.calls.append("create")
        self._fail("create")
        return True

    def delete(self) -> bool:
        self.calls.append("delete")
        return True

    def set_conditions(
        self, workload: Workload, conditions: Mapping[str, tuple[bool, str, str]], *, frees_quota: bool = False
    ) -> bool:
        self.calls.append(({kind: status for kind, (status, _, _) in conditions.items()}, frees_quota))
        return True

    def annotate(self, annotations: Mapping[str, str]) -> bool:
        self.calls.append(dict(annotations))
        return True

    def annotate_pod(self, name: str, annotations: Mapping[str, str]) -> bool:
        self.calls.append(name)
        return True

    def flavor(self, name: str) -> Placement:
        self._fail("flavor")
        return self.placement

    def _fail(self, call: str) -> None:
        if error := self.unreadable.get(call):
            raise error

    def open_gates(self, pods: Iterable[tuple[str, Placement]]) -> None:
        self.calls += [f"open {pod}" for pod, _ in pods]


class Control:
    """What the supervisor does for the place of a run, with an API that keeps its calls."""

    def __init__(self, run: Run = RUN, placement: Placement | None = None) -> None:
        none: Any = None
        self.run, self.api, self.saved = run, Api(placement or Placement()), 0
        self.reporter = Reporter(run, ReporterApi(), none)
        release = cast(Any, SimpleNamespace(ended_predecessor=lambda: ""))
        view = View(frozenset(), stages={})
        self.observer = Observer(run, release, self.api, none, cast(Any, Dns()), view)
        self.actor = Actor(run, none, self.api, none, none, none)

    def observe(self, notes: Notes, workload: Workload | None, now: float, *pods: Any) -> Observed:
        self.observer.view.workload, self.observer.view.pods = workload, {pod.name: pod for pod in pods}
        return self.observer.observe(notes, self.saved, now)

    def advance(self, notes: Notes, workload: Workload | None, now: float) -> Notes:
        """The notes after what is observed."""
        observed = self.observe(notes, workload, now)
        after, reports, waits_for = admission.advance(self.run, notes, observed, now)
        self.reporter.report(notes, Decision(after, after, reports, waits_for), observed, now)
        return after

    def calls(self, notes: Notes, workload: Workload | None, *pods: Any, now: float = NOW) -> list[Any]:
        """What follows from what is observed."""
        self.api.calls.clear()
        observed = self.observe(notes, workload, now, *pods)
        self.actor.act(admission.needed(self.run, notes, observed, now), notes, observed, now)
        return list(self.api.calls)

    def is_settled(self, notes: Notes, workload: Workload | None) -> bool:
        return admission.is_settled(self.run, notes, workload)


def test_a_run_begins_in_the_queue_and_asks_for_one_workload() -> None:
    notes = lifecycle.begin(RUN, Notes(), [], NOW)
    assert (notes.state, notes.begun) == ("Queued", NOW)
    assert scales.wanted(RUN, notes, {}, NOW) == {"worker": 0, "ps": 0}
    control = Control()
    assert control.calls(notes, None) == ["create"]
    assert control.calls(notes, None, now=NOW + 1) == [], "it is not observed yet"
    assert control.calls(notes, None, now=NOW + 6) == ["create"]
    assert control.calls(notes, PENDING) == []


def test_the_workload_has_a_pod_set_for_each_role_with_what_kueue_looks_at() -> None:
    container = {
        "name": "worker",
        "image": "trainer",
        "env": [{"name": "SECRET"}],
        "resources": {
            "requests": {"cpu": "1"},
            "limits": {"cpu": "2", "nvidia.com/gpu": 4},
            "claims": [{"name": "gpu"}],
        },
    }
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "containers": [container],
            "nodeSelector": {"zone": "1"},
            "schedulingGates": [{"name": "x"}],
            "resourceClaims": [{"name": "gpu"}],
        },
    }
    run = dataclasses.replace(RUN, labels={"team": "a"}, annotations={"owner": "b"})
    found = kueue.manifest(run, {"worker": template, "ps": template}, {"uid": "9"})
    assert found["metadata"]["name"] == "mnist"
    assert found["metadata"]["labels"] == {"team": "a"}
    assert found["metadata"]["annotations"] == {"owner": "b", kueue.RUN: "abc"}
    assert found["spec"]["queueName"] == "research"
    worker, ps = found["spec"]["podSets"]
    assert (worker["name"], worker["count"], worker["minCount"]) == ("worker", 4, 2)
    assert (ps["name"], ps["count"], "minCount" in ps) == ("ps", 1, False)
    resources = {
        "requests": {"cpu": "1", "nvidia.com/gpu": 4},
        "limits": {"cpu": "2", "nvidia.com/gpu": 4},
        "claims": [{"name": "gpu"}],
    }
    assert worker["template"] == {
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "containers": [{"name": "worker", "image": "trainer", "resources": resources}],
            "nodeSelector": {"zone": "1"},
            "resourceClaims": [{"name": "gpu"}],
        },
    }


def test_the_workload_has_the_priority_of_the_first_role_that_has_a_class() -> None:
    plain: dict[str, Any] = {"spec": {"containers": []}}
    important = {"spec": {"containers": [], "priorityClassName": "high"}}
    spec = kueue.manifest(RUN, {"worker": plain, "ps": important}, {}, 1000)["spec"]
    reference = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}
    assert (spec["priorityClassRef"], spec["priority"]) == (reference, 1000)
    assert "priority" not in kueue.manifest(RUN, {"worker": plain, "ps": plain}, {})["spec"]


def test_a_run_waits_while_the_supervisor_cannot_read_its_priority(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    control = Control()
    control.api.unreadable = {"create": UnreadableError("the PriorityClass high", "priorityclasses", "forbidden")}
    assert control.calls(QUEUED, None) == ["create"]
    assert control.advance(QUEUED, None, NOW) == QUEUED
    assert "waiting in the queue research: the supervisor cannot read the PriorityClass high" in caplog.text
    assert "(forbidden): create it, or bind a ClusterRole that gets priorityclasses" in caplog.text


def test_a_run_whose_flavor_cannot_be_read_gives_its_quota_back_until_it_can(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    control = Control()
    control.api.unreadable = {"flavor": UnreadableError("the flavor a100", "resourceflavors", "forbidden")}
    assert control.advance(QUEUED, ADMITTED, NOW) == QUEUED
    assert "the supervisor cannot read the flavor a100 (forbidden)" in caplog.text
    assert control.calls(QUEUED, ADMITTED) == ["delete"]
    assert control.calls(QUEUED, None) == [], "the flavor still cannot be read"
    control.api.unreadable.clear()
    assert control.calls(QUEUED, None, now=NOW + 6) == ["create"]
    assert control.calls(QUEUED, ADMITTED, now=NOW + 7) == []
    assert control.advance(QUEUED, ADMITTED, NOW).state == "Starting"


def test_a_reactivated_workload_can_be_queued_again() -> None:
    evicted = (True, "DeactivatedDueToAdmissionCheck", "no room")
    workload = kueue.observe(answer({"worker": 4, "ps": 1}, QuotaReserved=RESERVED, Evicted=evicted))
    assert kueue.released(workload)["Requeued"][:2] == (False, "Deactivated")
    off = dataclasses.replace(workload, active=False)
    assert "is deactivated (DeactivatedDueToAdmissionCheck: no room): set spec.active to true" in off.problem
    assert workload.problem == "Kueue has evicted it (DeactivatedDueToAdmissionCheck: no room)"


def test_the_tasks_start_with_the_admitted_number_and_keep_it() -> None:
    fewer = kueue.observe(answer({"worker": 3, "ps": 1}, Admitted=(True, "Admitted", "")))
    notes = Control().advance(QUEUED, fewer, NOW)
    assert (notes.state, notes.started, notes.scales) == ("Starting", NOW, {"worker": 3, "ps": 1})
    assert notes.begun == QUEUED.begun, "its goodput has the time in the queue"
    running = dataclasses.replace(notes, state="Running", running=NOW)
    assert elastic.adjust(RUN, running, [], NOW + 10_000) == (running, "")
    assert scales.adopt(RUN, running, {"worker": 3, "ps": 1}, {"worker": 4, "ps": 1}) == running
    assert running.elastic == ElasticNotes(wanted=3)


def test_pods_of_an_admitted_run_are_scheduled_where_their_quota_is() -> None:
    labels = {"gpu": "a100"}
    toleration = {"key": "gpu", "operator": "Exists"}
    assert kueue.of_flavor({"spec": {"nodeLabels": labels, "tolerations": [toleration]}}) == Placement(
        labels, [toleration]
    )
    check = {
        "name": "room",
        "podSetUpdates": [{"name": "worker", "nodeSelector": {"zone": "1"}, "annotations": {"request": "r1"}}],
    }
    updated = kueue.observe({"status": {"admissionChecks": [check]}}).updates["worker"]
    both = updated | Placement(labels, [toleration])
    assert both == Placement({"zone": "1", **labels}, [toleration], {}, {"request": "r1"})
    gated = a_pod("mnist-worker-0", gated=True, node="")
    other = a_pod("mnist-worker-1", gated=True, node="", run_hash="old")
    control = Control()
    assert control.calls(STARTED, ADMITTED, gated, other, a_pod("mnist-ps-0")) == ["open mnist-worker-0"]
    assert control.calls(STARTED, ADMITTED, gated, now=NOW + 1) == [], "it is not observed yet"
    assert control.calls(STARTED, EVICTED, dataclasses.replace(gated, uid="2")) == []
    surplus = a_pod("mnist-worker-4", gated=True, node="", uid="3")
    assert control.calls(STARTED, ADMITTED, surplus) == [], "it has no quota"
    assert control.calls(dataclasses.replace(STARTED, running=NOW), ADMITTED) == [({"PodsReady": True}, False)]


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        (EVICTED, "Kueue has evicted the run (Preempted: Preempted to accommodate a workload)"),
        (None, "the Workload mnist was deleted"),
    ],
)
def test_an_evicted_run_ends_its_tasks_and_waits_again(
    workload: Workload | None, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    control = Control()
    if workload is None:
        assert control.advance(STARTED, None, NOW - 30) == STARTED, "one answer may be wrong"
        assert control.advance(STARTED, None, NOW - 1) == STARTED
    notes = control.advance(STARTED, workload, NOW)
    assert notes.state == "Stopping"
    assert f"{why}: the tasks save a checkpoint and end, and the run waits in the queue again" in caplog.text
    ending = a_pod("mnist-worker-0", terminating=True)
    assert control.calls(notes, workload, ending) == [], "the tasks still use the quota"
    assert lifecycle.advance(RUN, notes, {"mnist-worker-0": ending}, {}, NOW).state == "Stopping"
    notes = lifecycle.advance(RUN, notes, {}, {"worker": 0, "ps": 0}, NOW)
    assert notes.state == "Queued"
    freed = {"QuotaReserved": False, "Admitted": False, "PodsReady": False, "Requeued": True}
    assert control.calls(notes, workload) == ([(freed, True)] if workload else ["create"])
    assert control.advance(notes, workload, NOW).state == "Queued"
    again = dataclasses.replace(ADMITTED, conditions={**ADMITTED.conditions, "Evicted": {"status": "False"}})
    assert control.advance(notes, again, NOW).state == "Starting"


def test_nodes_that_kueue_has_chosen_are_named_and_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    content = answer({"worker": 4, "ps": 1}, QuotaReserved=RESERVED, Admitted=(True, "Admitted", ""))
    content["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"] = {"levels": ["rack"]}
    assert Control().advance(QUEUED, kueue.observe(content), NOW).state == "Starting"
    assert "Kueue has chosen nodes for worker (topologyAssignment)" in caplog.text


def test_the_workload_of_another_run_is_deleted_first() -> None:
    other = dataclasses.replace(ADMITTED, run_hash="old")
    control = Control()
    assert control.advance(QUEUED, other, NOW).state == "Queued"
    assert control.calls(QUEUED, other) == ["delete"]
    assert control.calls(dataclasses.replace(QUEUED, state="Stopping"), other, a_pod("mnist-ps-0")) == []


def test_the_quota_of_a_run_that_ends_or_is_suspended_is_given_back_when_its_tasks_are_gone() -> None:
    ended, suspended = (dataclasses.replace(STARTED, state=state) for state in ENDS)
    for notes, call in ((ended, ({"Finished": True}, False)), (suspended, "delete")):
        control = Control()
        assert control.calls(notes, ADMITTED, a_pod("mnist-ps-0")) == []
        assert not control.is_settled(notes, ADMITTED)
        assert control.calls(notes, ADMITTED) == [call]
        assert control.is_settled(notes, None)
    finished = kueue.observe(answer(Finished=(True, "Succeeded", "")))
    assert Control().is_settled(dataclasses.replace(STARTED, state="Failed"), finished)
    kept = Control(queued(clean_pod_policy="None"))
    failed = dataclasses.replace(STARTED, state="Failed")
    assert kept.calls(failed, ADMITTED, a_pod("mnist-ps-0")) == [({"Finished": True}, False)]


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("LocalQueue research doesn't exist", "LocalQueue research does not exist: create it, or set scheduling.queue"),
        ("LocalQueue research is inactive", "LocalQueue research is stopped or misses something"),
        ("ClusterQueue gpus is inactive", "ClusterQueue gpus is stopped or misses something"),
        ("ClusterQueue gpus doesn't exist", "ClusterQueue gpus, to which the LocalQueue belongs, does not exist"),
        ("insufficient quota for cpu\nin flavor a", "insufficient quota for cpu in flavor a"),
        ("", "Kueue has not answered yet: check that Kueue runs"),
    ],
)
def test_the_supervisor_says_what_a_queued_run_waits_for(
    message: str, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    control = Control()
    waiting = kueue.observe(answer(QuotaReserved=(False, "Pending", message)))
    assert control.advance(QUEUED, waiting, NOW) == QUEUED
    assert control.advance(QUEUED, waiting, NOW + 1) == QUEUED
    assert caplog.text.count(f"waiting in the queue research: {sentence}") == 1


def test_a_workload_that_is_deactivated_or_checked_says_so() -> None:
    off = kueue.observe(answer() | {"spec": {"active": False}})
    assert "set spec.active to true" in off.problem
    content = answer({"worker": 4}, QuotaReserved=RESERVED)
    update = {"name": "worker", "nodeSelector": {"pool": "x"}}
    content["status"]["admissionChecks"] = [
        {"name": "provision", "state": "Pending", "message": "no nodes", "podSetUpdates": [update]}
    ]
    checked = kueue.observe(content)
    assert "admission checks are not ready: provision (Pending: no nodes)" in checked.problem
    assert checked.updates == {"worker": Placement({"pool": "x"}, [])}
    assert not checked.admits(RUN)


def test_the_time_of_the_last_checkpoint_is_published_once_a_minute() -> None:
    control = Control()
    leader = a_pod("mnist-worker-0")
    assert control.calls(STARTED, ADMITTED, leader) == []
    control.saved = 1_800_000_000
    when = {"distributed-tensorflow/checkpoint": "2027-01-15T08:00:00+00:00"}
    assert control.calls(STARTED, ADMITTED, leader) == [when, "mnist-worker-0"]
    control.saved += 3
    assert control.calls(STARTED, ADMITTED, leader, now=NOW + 59) == []
    assert len(control.calls(STARTED, ADMITTED, leader, now=NOW + 60)) == 2


def test_without_kueue_nothing_happens() -> None:
    control = Control(a_run())
    assert control.advance(RUNNING, None, NOW) == RUNNING
    assert control.calls(RUNNING, None) == []
    assert control.is_settled(RUNNING, None)
