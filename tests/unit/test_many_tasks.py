"""What the supervisor does for a run with a thousand tasks, counted: calls, copies, requests, passes."""

import dataclasses
import http.server
import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from tests.unit.fake_cluster import Dns
from tests.unit.test_supervision import EXIT_CODE, NOW, RUNNING, STARTED, a_pod, a_run
from tests.unit.test_watches import client_of
from trainer.supervisor import diagnosis, policy, supervise, watches
from trainer.supervisor.changes import Change, PodChanged, PodsListed, ScalesObserved
from trainer.supervisor.connection import Connection
from trainer.supervisor.dns import DnsProbe
from trainer.supervisor.metrics import RunMetrics
from trainer.supervisor.notes import Notes
from trainer.supervisor.observed import Observed
from trainer.supervisor.run import Role, Run
from trainer.supervisor.view import View

WORKERS = 1000
RUN = a_run(roles={"worker": Role(replicas=WORKERS, exits=EXIT_CODE)}, tensorboard=None)
PODS = [a_pod(f"mnist-worker-{index}") for index in range(WORKERS)]
SECONDS = 30.0


@pytest.fixture
def loop() -> supervise._Loop:
    """A loop that has seen all pods, and makes no request."""
    view = View(frozenset(RUN.roles))
    connection = Connection(None, None)  # type: ignore[arg-type]
    found = supervise._Loop(RUN, connection, RunMetrics(RUN, Notes()), queue.SimpleQueue(), view, DnsProbe(RUN))
    found._observe([PodsListed(PODS)])
    return found


def test_a_change_looks_at_one_pod_and_copies_none(loop: supervise._Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: Counter[str] = Counter()
    lists = Run.lists

    def counted(self: Run, task: str) -> bool:
        looked[task] += 1
        return lists(self, task)

    monkeypatch.setattr(Run, "lists", counted)
    pods, tasks = loop.view.pods, loop.observer.tasks
    loop._observe([PodChanged("MODIFIED", a_pod("mnist-worker-7", ready=False))])
    assert looked == {"mnist-worker-7": 1}
    assert loop.view.pods is pods
    assert loop.observer.tasks is tasks
    assert not tasks["mnist-worker-7"].ready
    loop._observe([PodChanged("DELETED", PODS[7])])
    assert len(tasks) == WORKERS - 1


def test_a_pass_looks_at_what_has_changed(loop: supervise._Loop) -> None:
    observer, notes = loop.observer, dataclasses.replace(RUNNING, scales={"worker": WORKERS})
    observer._dns, observer._looked_for_predecessor = cast(Any, Dns()), NOW

    def looked_at(notes: Notes = notes) -> set[str]:
        return {*observer.observe(notes, 0, NOW).unsteady}

    assert looked_at() == {pod.name for pod in PODS}
    assert looked_at() == set()
    ended, waiting = a_pod("mnist-worker-7", 137, 1), a_pod("mnist-worker-8", running=False, problem="ErrImagePull")
    loop._observe([PodChanged("MODIFIED", ended), PodChanged("MODIFIED", waiting), PodChanged("DELETED", PODS[9])])
    assert looked_at() == {ended.name, waiting.name}
    assert looked_at() == {waiting.name}, "it fails the run after a while"
    assert len(looked_at(dataclasses.replace(notes, state="Stopping"))) == WORKERS - 1
    assert len(looked_at()) == WORKERS - 1, "all that was seen before belongs to an earlier start"


def test_tasks_that_have_no_pod_wait_as_one() -> None:
    """At the start each pass would make thousands of values for them."""
    notes = dataclasses.replace(STARTED, scales={"worker": WORKERS})
    pods = {pod.name: pod for pod in (PODS[0], a_pod("mnist-worker-5", running=False))}
    absent = {pod.name: NOW for pod in PODS} | {"mnist-worker-8": NOW + 5}
    warnings = {"mnist-worker-7": "FailedMount: no claim"}
    observed = Observed(pods=pods, tasks=pods, scales={"worker": WORKERS}, absent=absent, warnings=warnings)
    found = policy.pending_tasks(RUN, notes, observed, NOW + 9)
    assert [(task.name.rpartition("-")[2], task.alike, task.since - NOW) for task in found] == [
        ("1", WORKERS - 4, 0.0),
        ("5", 1, 0.0),
        ("7", 1, 0.0),
        ("8", 1, 5.0),
    ]


def test_changes_in_quick_succession_share_a_pass(loop: supervise._Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "GATHER_SECONDS", 600.0)
    loop._passed = time.monotonic()
    changes: list[Change] = [PodChanged("MODIFIED", pod) for pod in PODS[:20]]

    def put() -> None:
        for change in changes:
            loop._changes.put(change)
            while not loop._changes.empty():  # until the loop has taken it
                time.sleep(0.001)
        monkeypatch.setattr(supervise, "GATHER_SECONDS", 0.0)
        loop._changes.put(changes[0])  # so that the loop looks at the time again

    threading.Thread(target=put, daemon=True).start()
    assert loop._next_changes() == [*changes, changes[0]]


def test_tasks_that_wait_for_the_same_reason_are_diagnosed_once() -> None:
    problem = "0/1100 nodes are available: 1100 Insufficient example.com/gpu."
    before = diagnosis.diagnose.cache_info().misses
    sentences = {diagnosis.diagnose("worker", problem) for _ in PODS}
    assert sentences == {"no node has enough example.com/gpu left: ask for less in worker.gpus, or add a node"}
    assert diagnosis.diagnose.cache_info().misses - before == 1


class Pages(http.server.BaseHTTPRequestHandler):
    """Lists the pods in pages, and ends each watch at once."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        query = {key: value[0] for key, value in parse_qs(urlsplit(self.path).query).items()}
        self.server.queries.append(query)  # type: ignore[attr-defined]
        first, size = int(query.get("continue", 0)), int(query.get("limit", WORKERS))
        items = [
            {
                "metadata": {"name": pod.name, "uid": pod.uid, "labels": {"app.kubernetes.io/component": pod.role}},
                "spec": {"containers": []},
            }
            for pod in PODS[first : first + size]
        ]
        rest = {"continue": str(first + size)} if first + size < WORKERS else {}
        content: dict[str, Any] = {"metadata": {"resourceVersion": "5", **rest}, "items": items}
        body = b"" if "watch" in query else json.dumps(content).encode()
        self.send_response(410 if "watch" in query else 200)
        self.send_header("Content-Type", "text/plain" if "watch" in query else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name in http.server
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as found:
        found.queries = []  # type: ignore[attr-defined]
        found.daemon_threads = True
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


def test_pods_are_listed_once_and_in_pages(server: http.server.ThreadingHTTPServer) -> None:
    changes: queue.SimpleQueue[Change] = queue.SimpleQueue()
    with client_of(server) as client, pytest.raises(httpx2.HTTPStatusError):
        watches._pods(RUN, Connection(client, None), changes)  # type: ignore[arg-type]
    listed = changes.get(timeout=SECONDS)
    assert isinstance(listed, PodsListed)
    assert [pod.name for pod in listed.pods] == [pod.name for pod in PODS]
    *pages, watch = server.queries  # type: ignore[attr-defined]
    assert [page["limit"] for page in pages] == [str(watches.PAGE)] * (WORKERS // watches.PAGE)
    assert watch["resourceVersion"] == "5"


def test_the_run_begins_with_the_pods_that_the_watch_has_listed(loop: supervise._Loop) -> None:
    loop.view.pods = None
    found: list[Change] = [ScalesObserved(frozenset(), {}), PodsListed(PODS)]
    for change in found:
        loop._changes.put(change)
    assert loop._await_pods() == PODS
    assert loop._next_changes() == found, "they are not lost"
    loop._observe(found)
    assert loop._await_pods() == PODS, "without another list"
