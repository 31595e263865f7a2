"""A pass looks at few pods, and decides and reports what it would if it looked at all: after random events."""

import copy
import dataclasses
import logging
import random
from collections import Counter
from typing import Any

import pytest
from lightkube.models.core_v1 import ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event

from tests.unit.fake_cluster import FakeCluster, in_time_of
from tests.unit.test_lifetime import MODES, a_release, changed
from trainer.supervisor.changes import WarningReported
from trainer.supervisor.dns import Unresolved
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.notes import Notes
from trainer.supervisor.observed import Observed
from trainer.supervisor.pods import Terminated
from trainer.supervisor.reporter import Reporter
from trainer.supervisor.run import FailurePolicy, PodCondition, Role, Rule

pytestmark = pytest.mark.slow

EXITS = "1-1:Fail 3-3:RestartAll 0-127:End 128-255:Restart"
ROLES = {"worker": Role(replicas=4, exits=EXITS, addresses=6), "ps": Role(replicas=2, exits=EXITS)}
DISRUPTED = Rule(action="RestartAll", roles=["ps"], on_pod_conditions=[PodCondition(type="DisruptionTarget")])
STEPS = 150


class Cluster(FakeCluster):
    """A cluster to which random things happen. A node that is dead keeps its pods."""

    def __init__(self, random: random.Random, **settings: Any) -> None:
        super().__init__(a_release(roles=ROLES, **settings))
        self.scales = {"worker": 1, "ps": 1}
        self.nodes = 7
        self.random = random
        for name in random.sample(["mnist-worker-0", "mnist-worker-3", "mnist-ps-1"], random.randrange(3)):
            self.supervisors[0].dns.unknown[name] = Unresolved(name, self.now)

    def control(self) -> None:
        dead = {name: pod for name, pod in self.pods.items() if pod.node == "dead"}
        super().control()
        self.pods |= dead

    def happen(self) -> None:
        """One event."""
        event = self.random.choice([self._of_pod, self._of_pod, self._of_pod, self._of_cluster])
        event()

    def _of_pod(self) -> None:
        if not self.pods:
            return
        name = self.random.choice(sorted(self.pods))
        pod, count = self.pods[name], self.pods[name].restart_count
        ended = Terminated(self.random.choice([0, 137, 137, 137, 143, 1, 3]), "", self.now, 40.0)
        changes: list[dict[str, Any]] = [
            {"terminated": ended, "restart_count": count + 1},
            {"terminated": ended, "restart_count": count + 1},
            {"terminated": ended, "running": False, "awaits_restart": True, "restart_count": max(count, 2)},
            {"running": bool(pod.node), "awaits_restart": False},
            {"problem": self.random.choice(["", "CrashLoopBackOff"])},
            {"conditions": {"DisruptionTarget": "True"}},
            {"image": f"sha256:{self.now}"},
            {"node": self.random.choice(["", "node-1"])},
            {"node": "dead", "deadline": self.now, "terminating": True, "disrupted_at": self.now},
            {"node": "dead", "deadline": self.random.choice([None, self.now])},
            {"run_hash": "other"},
            # Each alone, also where Kubernetes would change another field with it.
            *({field: self.random.random() < 0.5} for field in ("gated", "awaits_restart", "terminating", "succeeded")),
        ]
        self.pods[name] = dataclasses.replace(pod, **self.random.choice(changes))

    def _of_cluster(self) -> None:
        name = self.random.choice(["mnist-worker", *sorted(self.pods)])
        match self.random.randrange(9):
            case 0 | 1:
                self.lose(name)
                self.nodes += 1
            case 2:
                self.nodes = self.random.randrange(3, 8)
            case 3 if "worker" in self.scales:
                self.scales["worker"] = self.random.randrange(1, 7)
            case 4:
                for supervisor in self.supervisors:
                    supervisor.dns.unknown.pop(name, None)
            case 5:
                about = ObjectReference(name=name)
                event = Event(metadata=ObjectMeta(), involvedObject=about, reason="FailedMount", message=name)
                for supervisor in self.supervisors:
                    if supervisor.loop:
                        supervisor.loop._observe([WarningReported(event)])
            case 6 if self.random.random() < 0.2:
                self.install(changed(self.run))
            case 7 if self.scales.pop("ps", None) is None:
                self.scales["ps"] = 2
            case _ if name in self.pods:
                self.end_pod(name)


class Events(KubernetesApi):
    """Keeps events."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def record_event(self, kind: str, reason: str, message: str) -> None:
        self.found.append(message)

    def annotate_job(self, annotations: object) -> bool:
        return True


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Counter[str]:
    """Lets each reporter be compared with one that looks at all pods; how many pods passes have looked at or not."""
    caplog.set_level(logging.INFO, "trainer.supervisor.reporter")
    report, found = Reporter.report, Counter[str]()

    def compared(self: Reporter, before: Notes, decision: Any, observed: Observed, now: float) -> None:
        found.update(steady=len(observed.steady), unsteady=len(observed.unsteady))
        messages, states = [], []
        for reporter in (copy.deepcopy(self, {id(self._run): self._run, **_kept(self)}), self):
            api, events = reporter._api, Events()
            reporter._api = events
            caplog.clear()
            if reporter is not self:
                reporter._scales = {"all": 1}
            report(reporter, before, decision, observed, now)
            messages.append(sorted([*caplog.messages, *events.found]))  # their order is that in which pods have changed
            states.append((reporter._uids, reporter._replaced, reporter._lost, reporter._reported))
            reporter._api = api
        assert messages[0] == messages[1]
        assert states[0] == states[1]

    monkeypatch.setattr(Reporter, "report", compared)
    return found


def _kept(reporter: Reporter) -> dict[int, object]:
    return {id(each): each for each in (reporter._api, reporter._logs)}


@pytest.mark.parametrize("mode", ["", "gang", "queue", "elastic", "stages"])
def test_what_a_pass_does_not_look_at_has_no_effect(
    mode: str, monkeypatch: pytest.MonkeyPatch, counts: Counter[str]
) -> None:
    """`in_time_of` compares each decision and what it needs with those that follow from all pods."""
    settings: dict[str, Any] = dict(MODES[mode]) if mode else {}
    rules = FailurePolicy(rules=[DISRUPTED])
    states: set[str] = set()
    for seed in range(12):
        chance = random.Random(seed)
        policies: dict[str, Any] = {"failure_policy": rules, "success_policy": chance.choice(["Chief", "AllWorkers"])}
        limits = {"node_loss_seconds": 20, "node_wait_seconds": 10, "replacement_timeout_seconds": 300}
        cluster = Cluster(chance, **settings, **policies, **limits, backoff_limit=20)
        with in_time_of(cluster, monkeypatch):
            for _ in range(STEPS):
                if cluster.run.is_queued and chance.random() < 0.1:
                    cluster.admit()
                for _ in range(chance.choice([0, 0, 0, 1, 1, 2])):
                    cluster.happen()
                cluster.step(chance.choice([0.2, 1.0, 1.0, 11.0]))
                states.add(cluster.notes.state)
    assert {"Starting", "Running"} <= states
    assert counts["steady"] > counts["unsteady"] / 4
