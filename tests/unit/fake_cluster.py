"""A cluster in memory for the supervisor's loop, whose time the test controls.

It has what the API server, the StatefulSet controller, a scheduler with a number of nodes, and Kueue do with the
objects of one run. The supervisors use their real API classes on a client of this cluster; `step` gives each one pass.
"""

import contextlib
import dataclasses
import json
import queue
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, cast

import httpx2
from lightkube import ApiError
from lightkube.models.batch_v1 import JobCondition, JobStatus
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import StatefulSet
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Event

from tests.unit.test_supervision import NOW, a_pod
from trainer.supervisor import stages, supervise
from trainer.supervisor.actions import Action
from trainer.supervisor.changes import (
    Change,
    DataVersionFound,
    PodChanged,
    PodsListed,
    ScalesObserved,
    StagesObserved,
    WorkloadObserved,
)
from trainer.supervisor.connection import Connection, StoppedError
from trainer.supervisor.decide import decide
from trainer.supervisor.decision import Decision
from trainer.supervisor.kueue import Workload
from trainer.supervisor.kueue_api import WORKLOAD as WORKLOADS
from trainer.supervisor.metrics import RunMetrics
from trainer.supervisor.notes import Notes, parse
from trainer.supervisor.observed import Observed
from trainer.supervisor.ownership import WANTED, SupersededError
from trainer.supervisor.pods import Pod, Template, Terminated
from trainer.supervisor.policy import Outcome
from trainer.supervisor.reconcile import needed
from trainer.supervisor.run import Run
from trainer.supervisor.scales import TENSORBOARD
from trainer.supervisor.stages import StageJob
from trainer.supervisor.view import WORKLOAD, View


class Dns:
    """Resolves the names of all tasks, or of none."""

    def __init__(self) -> None:
        self.unknown: dict[str, Any] = {}

    def look_up(self, pods: object) -> None: ...

    def forget(self) -> None: ...

    def has_resolved(self, pod: Pod) -> bool:
        return pod.name not in self.unknown

    def unresolved(self) -> dict[str, Any]:
        return self.unknown


class FakeCluster:
    """The objects of one release."""

    def __init__(self, run: Run) -> None:
        self.now = NOW
        self.run = run
        """What the release's objects are for: the last upgrade."""
        self.maps: dict[str, ConfigMap] = {}
        for word in ("run", "ended"):
            self.maps[f"mnist-{word}"] = ConfigMap(data={}, metadata=ObjectMeta(resourceVersion="0", annotations={}))
        self.scales: dict[str, int] = dict.fromkeys(run.roles, 0)
        self.revision = "1"
        self.pods: dict[str, Pod] = {}
        self.created: list[str] = []
        """The names of all pods, in the order of their creation."""
        self.grace_seconds = 3.0
        """How long a pod takes to end."""
        self.job: dict[str, Any] = {"metadata": {"annotations": {}}, "spec": {}}
        """That of the supervisor that the release wants."""
        self.failed_pods = 0
        """Of that Job."""
        self.events: list[str] = []
        """The reasons of all events."""
        self.nodes = 100
        """Each has room for one task."""
        self.stages: dict[str, StageJob] = {}
        self.workload: Workload | None = None
        self.has_kueue = True
        """Whether Kueue answers, or the API server says 404."""
        self.version = "1"
        """Of the data."""
        self.refused: Callable[[str, str], bool] = lambda verb, what: False
        self.refused_code = 503
        self.calls: list[tuple[str, str, str]] = []
        """The uid of the supervisor's pod, the verb, and the object."""
        self.supervisors: list[Supervisor] = []
        self.install(run)

    def install(self, run: Run, *, old_jobs_stay: bool = False, job: bool = True, at: int = 1) -> None:
        """What Helm does at an installation, an upgrade or a rollback; half of it, if that fails."""
        self.run, self.revision = run, str(int(self.revision) + at)
        notes = self.maps["mnist-run"]
        self._touch("mnist-run", annotations={WANTED: run.job}, data=notes.data)
        for stage in run.stages.all:
            self.stages.setdefault(stage.name, StageJob(stage.job, False, False, False, ""))
        if not old_jobs_stay:
            for gone in self.supervisors:
                if gone.run.job != run.job:
                    gone.stop()
            self.supervisors = [each for each in self.supervisors if each.run.job == run.job]
        if job and not any(each.run.job == run.job for each in self.supervisors):
            self.supervisors.append(Supervisor(self, run))

    def _touch(self, name: str, **changes: Any) -> ConfigMap:
        found = self.maps[name]
        metadata = found.metadata or ObjectMeta()
        annotations = changes.get("annotations", metadata.annotations)
        version = str(int(metadata.resourceVersion or 0) + 1)
        owned = ObjectMeta(name=name, uid=name, resourceVersion=version, annotations=annotations)
        self.maps[name] = ConfigMap(data=changes.get("data", found.data), metadata=owned)
        return self.maps[name]

    @property
    def notes(self) -> Notes:
        return parse(self.maps["mnist-run"].data or {})

    def client(self, supervisor: str) -> "Client":
        return Client(self, supervisor)

    def end(self, *names: str, code: int = 0) -> None:
        """Let tasks end with a code."""
        for name in names:
            ended = Terminated(code, "", self.now, 10.0)
            self.pods[name] = dataclasses.replace(self.pods[name], terminated=ended, restart_count=1)

    def admit(self) -> None:
        """Let Kueue admit the run as a whole."""
        conditions = {kind: {"type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted")}
        counts = {role: values.replicas for role, values in self.run.roles.items()}
        self.workload = Workload("w", "1", self.run.hash, conditions=conditions, counts=counts)

    def lose(self, name: str) -> None:
        """Lose the node of a task: its pod is deleted."""
        self.pods.pop(name, None)
        self.nodes -= 1

    def step(self, seconds: float = 1.0, times: int = 1) -> None:
        """Let time pass, and give each supervisor a pass."""
        for _ in range(times):
            self.now += seconds
            self.control()
            for supervisor in self.supervisors:
                supervisor.step()

    def until(self, state: str, seconds: int = 120) -> None:
        """Step until the notes have this state."""
        for _ in range(seconds):
            if self.notes.state == state:
                return
            self.step()
        raise AssertionError(f"{self.notes.state} instead of {state} after {seconds} s: {self.calls[-5:]}")

    def control(self) -> None:
        """What the controllers of Kubernetes do in a second."""
        for name, pod in list(self.pods.items()):
            if pod.deadline is not None and self.now >= pod.deadline:
                del self.pods[name]
        for role, scale in self.scales.items():
            for index in range(8):
                name = f"mnist-{role}-{index}"
                there = self.pods.get(name)
                if index < scale and there is None:
                    self._create(name, role)
                elif index >= scale and there and there.deadline is None:
                    self.end_pod(name)
        placed = sum(bool(pod.node) for pod in self.pods.values())
        for name, pod in self.pods.items():
            if not pod.node and not pod.gated and placed < self.nodes:
                placed += 1
                fields: dict[str, Any] = {"node": f"node-{placed}", "running": True, "ready": True, "problem": ""}
                self.pods[name] = dataclasses.replace(pod, scheduled=self.now, **fields)
        for name, job in self.stages.items():
            if job.has_pods:
                self.stages[name] = dataclasses.replace(job, complete=True, has_pods=False)

    def _create(self, name: str, role: str) -> None:
        self.created.append(name)
        problem = "0/3 nodes are available: 3 Insufficient cpu."
        fields: dict[str, Any] = {"node": "", "scheduled": 0.0, "running": False, "ready": False, "problem": problem}
        fields |= {"uid": f"u{len(self.created)}", "created": self.now, "gated": self.run.is_queued}
        self.pods[name] = a_pod(name, run_hash=self.run.hash, revision=self.revision, role=role, **fields)

    def end_pod(self, name: str) -> None:
        pod, deadline = self.pods[name], self.now + self.grace_seconds
        self.pods[name] = dataclasses.replace(pod, terminating=True, disrupted_at=self.now, deadline=deadline)

    def changes(self, seen: Mapping[str, Pod] | None = None) -> list[Change]:
        """What the watches show to one that has seen these pods; None before the first list."""
        roles = frozenset(self.run.roles)
        templates = dict.fromkeys(roles, Template(self.revision, self.run.hash))
        scales = ScalesObserved(roles | {TENSORBOARD}, {**self.scales, TENSORBOARD: 1}, templates)
        changes: list[Change] = [PodsListed(list(self.pods.values()))] if seen is None else [*self._since(seen)]
        changes += [scales, StagesObserved(dict(self.stages))]
        if self.run.data_watch:
            changes.append(DataVersionFound(self.version))
        return [*changes, WorkloadObserved(self.workload if self.has_kueue else None)]

    def _since(self, seen: Mapping[str, Pod]) -> Iterator[PodChanged]:
        """How the pods differ from those that were seen."""
        for name in seen.keys() | self.pods.keys():
            before, pod = seen.get(name), self.pods.get(name)
            if before and (pod is None or pod.uid != before.uid):
                yield PodChanged("DELETED", before)
            if pod and pod != before:
                yield PodChanged("MODIFIED" if before else "ADDED", pod)


class Supervisor:
    """One pod that supervises: it waits for its turn, takes passes, and ends."""

    def __init__(self, cluster: FakeCluster, run: Run) -> None:
        self.cluster = cluster
        self.created = cluster.now
        self.run = dataclasses.replace(run, supervisor=f"pod of {run.job} {cluster.now}")
        self.connection = Connection(cast(Any, cluster.client(self.run.supervisor)), cast(Any, None))
        object.__setattr__(self.connection, "raw", self.connection.client)
        self.dns = Dns()
        self.loop: supervise._Loop | None = None
        self.seen: Mapping[str, Pod] = {}
        """The pods that its watch has shown."""
        self.superseded = False
        self.stopped = ""
        """Why it has stopped before the end of the run."""
        self.outcome: Outcome | None = None
        self.metrics = RunMetrics(self.run, Notes())

    def step(self) -> None:
        if self.outcome or self.stopped:
            return
        try:
            if self.loop is None:
                self._begin()
            else:
                self._watch(self.loop, self.seen)
                self.loop._take_pass(self.cluster.now)
                if self.loop._is_settled() and self.loop._notes.has_ended:
                    self.outcome = Outcome(self.loop._notes.state == "Succeeded", self.loop._notes.reason)
        except SupersededError:
            self.loop, self.superseded = None, True
        except StoppedError as error:
            self.stopped = str(error)

    def stop(self) -> None:
        """Stop as at SIGTERM."""
        if self.loop:
            self.loop.leave()

    def job(self) -> Job:
        """Its Job, which is complete after the end of the run."""
        created = datetime.fromtimestamp(self.created, timezone.utc)
        conditions = [JobCondition(type="Complete", status="True")] if self.outcome else []
        return Job(metadata=ObjectMeta(creationTimestamp=created), status=JobStatus(conditions=conditions))

    def _begin(self) -> None:
        loop = self._new_loop()
        if loop._api.may_own(self.superseded):
            self._watch(loop, None)
            self.loop = loop
            loop.begin(takes_over=True)

    def _watch(self, loop: supervise._Loop, seen: Mapping[str, Pod] | None) -> None:
        loop._observe(self.cluster.changes(seen))
        self.seen = dict(self.cluster.pods)

    def _new_loop(self) -> supervise._Loop:
        run = self.run.on_version(self.cluster.version) if self.run.data_watch else self.run
        components = frozenset(run.roles) | ({WORKLOAD} if run.is_queued else set())
        view, changes = View(components, stages={}), cast(Any, queue.SimpleQueue())
        return supervise._Loop(run, self.connection, self.metrics, changes, view, cast(Any, self.dns))


class Client:
    """The calls of one supervisor."""

    namespace = "default"

    def __init__(self, cluster: FakeCluster, supervisor: str) -> None:
        self.cluster, self.supervisor = cluster, supervisor

    def _call(self, verb: str, what: str) -> None:
        self.cluster.calls.append((self.supervisor, verb, what))
        if self.cluster.refused(verb, what):
            fail(self.cluster.refused_code)

    def get(self, kind: Any, name: str) -> Any:
        self._call("get", name)
        if kind is ConfigMap:
            return self.cluster.maps[name]
        annotations = self.cluster.job["metadata"]["annotations"]
        return SimpleNamespace(
            status=SimpleNamespace(failed=self.cluster.failed_pods), metadata=ObjectMeta(annotations=annotations)
        )

    def list(self, kind: Any, fields: Mapping[str, Any] | None = None, **_: Any) -> Iterator[Any]:
        self._call("list", kind.__name__)
        if kind is Job and fields:
            return iter([each.job() for each in self.cluster.supervisors if each.run.job == fields["metadata.name"]])
        if kind is not StatefulSet:
            return iter(())
        spec = SimpleNamespace(template=SimpleNamespace(to_dict=lambda: {"spec": {"containers": []}}))
        names = [ObjectMeta(name=f"mnist-{role}") for role in self.cluster.scales]
        return iter([SimpleNamespace(metadata=name, spec=spec) for name in names])

    def patch(self, kind: Any, name: str, change: Mapping[str, Any], **_: Any) -> Any:
        self._call("patch", name)
        cluster = self.cluster
        if name in cluster.maps:
            notes = cluster.maps[name]
            if change["metadata"]["resourceVersion"] != (notes.metadata and notes.metadata.resourceVersion):
                fail(409)
            data = {key: value for key, value in {**(notes.data or {}), **change["data"]}.items() if value is not None}
            return cluster._touch(name, data=data)
        if kind is Job and name == cluster.run.job:
            cluster.job["metadata"]["annotations"].update(change.get("metadata", {}).get("annotations", {}))
            cluster.job["spec"].update(change.get("spec", {}))
            return None
        if name == "mnist":
            return self._patch_workload(change.get("status"))
        role, spec = name.removeprefix("mnist-"), change.get("spec", {})
        if role in cluster.scales:
            cluster.scales[role] = spec["replicas"]
        elif "schedulingGates" in spec:
            cluster.pods[name] = dataclasses.replace(cluster.pods[name], gated=False)
        elif found := next((stage for stage, job in cluster.stages.items() if job.uid == name), None):
            if spec.get("completions") == 0:
                change = {"complete": True}
            else:
                change = {"suspended": spec["suspend"], "has_pods": not spec["suspend"]}
            cluster.stages[found] = dataclasses.replace(cluster.stages[found], **change)
        return None

    def _patch_workload(self, status: Any) -> None:
        if status and (workload := self.cluster.workload):
            conditions = {each["type"]: each for each in status["conditions"]}
            counts = {} if "admission" in status else workload.counts
            self.cluster.workload = dataclasses.replace(workload, conditions=conditions, counts=counts)

    def create(self, item: Any) -> None:
        name = (item.metadata and (item.metadata.name or item.metadata.generateName)) or ""
        self._call("create", f"{type(item).__name__} {name}")
        if isinstance(item, Event):
            self.cluster.events.append(item.reason or "")
        if isinstance(item, WORKLOADS):
            self.cluster.admit()
        if isinstance(item, Job):
            made_for = ((item.metadata and item.metadata.annotations) or {})[stages.MADE_FOR]
            self.cluster.stages[name.removeprefix("mnist-")] = StageJob(name, False, True, False, "", made_for)
        if type(item).__name__ == "ServiceAccount":
            for stage, job in self.cluster.stages.items():
                if job.uid == name:
                    self.cluster.stages[stage] = dataclasses.replace(job, has_pods=True)

    def delete(self, kind: Any, name: str, **_: Any) -> None:
        self._call("delete", name)
        if name == "mnist":
            self.cluster.workload = None
        self.cluster.stages = {stage: job for stage, job in self.cluster.stages.items() if job.uid != name}
        if name in self.cluster.pods:
            del self.cluster.pods[name]

    def request(self, verb: str, address: str, json: Mapping[str, Any]) -> Any:
        name = address.rpartition("/")[2]
        self._call("delete", name)
        pod = self.cluster.pods.get(name)
        if pod and pod.uid == json["preconditions"]["uid"]:
            del self.cluster.pods[name]
        return SimpleNamespace(raise_for_status=lambda: None)


def fail(code: int) -> None:
    status = {"code": code, "message": f"refused with {code}", "status": "Failure"}
    response = httpx2.Response(code, content=json.dumps(status), request=httpx2.Request("GET", "http://cluster"))
    raise ApiError(response=response)


def decide_as_of_all(run: Run, notes: Notes, observed: Observed, now: float) -> Decision:
    """The decision of a pass, which is the same if the pass looks at all pods."""
    found = decide(run, notes, observed, now)
    assert found == decide(run, notes, dataclasses.replace(observed, steady=frozenset()), now)
    return found


def needed_as_of_all(run: Run, notes: Notes, observed: Observed, now: float) -> list[Action]:
    """The needed actions, which are the same if the pass looks at all pods."""
    found = [*needed(run, notes, observed, now)]
    assert found == [*needed(run, notes, dataclasses.replace(observed, steady=frozenset()), now)]
    return found


@contextlib.contextmanager
def in_time_of(cluster: FakeCluster, monkeypatch: Any) -> Iterator[FakeCluster]:
    """The supervisor's clocks show the cluster's time, and no thread reads the leader's log."""
    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: cluster.now)
        patch.setattr("time.monotonic", lambda: cluster.now)
        patch.setattr("trainer.supervisor.reporter.Reporter._follow", lambda *_: None)
        patch.setattr("trainer.supervisor.task_logs.TaskLogs._read", lambda *_: None)
        patch.setattr("trainer.supervisor.supervise.decide", decide_as_of_all)
        patch.setattr("trainer.supervisor.reconcile.needed", needed_as_of_all)
        yield cluster
