"""What the supervisor reports: why tasks wait, warnings about their pods, and the progress in the leader's log."""

import dataclasses
import http.server
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

import httpx2
import pytest
from lightkube import Client, KubeConfig
from lightkube.config import client_adapter, models
from lightkube.models.core_v1 import ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event

from tests.unit.fake_cluster import Dns
from tests.unit.test_supervision import NOW, RUNNING, STARTED, a_pod, a_run
from trainer.supervisor import policy, task_logs
from trainer.supervisor.changes import WarningReported
from trainer.supervisor.connection import Connection, StoppedError
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.notes import Notes
from trainer.supervisor.notes_writer import NotesWriter
from trainer.supervisor.observed import Observed
from trainer.supervisor.observer import Observer
from trainer.supervisor.pods import Pod
from trainer.supervisor.policy import Outcome, PendingTask
from trainer.supervisor.reporter import Reporter
from trainer.supervisor.run import Gang
from trainer.supervisor.task_logs import TaskLogs
from trainer.supervisor.view import View
from trainer.telemetry.progress import Progress


class Api(KubernetesApi):
    """Keeps what the supervisor writes."""

    def __init__(self) -> None:
        self.run = a_run()
        self.written: list[Mapping[str, str | None]] = []
        self.annotations: dict[str, str | None] = {}

    def annotate_job(self, annotations: Mapping[str, str | None]) -> bool:
        self.annotations |= annotations
        return True

    def record_event(self, kind: str, reason: str, message: str) -> None:
        pass

    def update_notes(self, update) -> None:  # type: ignore[no-untyped-def]
        self.written.append(update({"notes.json": '{"supervisor": "me"}'}))

    def update_ended(self, update) -> None:  # type: ignore[no-untyped-def]
        pass


@pytest.fixture
def reporter(caplog: pytest.LogCaptureFixture) -> Reporter:
    caplog.set_level(logging.INFO)
    found = Reporter(a_run(), Api(), TaskLogs(None))  # type: ignore[arg-type]
    found.report_beginning(RUNNING, RUNNING)
    caplog.clear()
    return found


def waiting(number: int, since: float, reason: str = "Unschedulable: 0/3 nodes are available") -> PendingTask:
    return PendingTask(f"mnist-worker-{number}", "worker", since, False, reason, unscheduled=True)


@pytest.mark.slow
@pytest.mark.parametrize("reason", ["Unschedulable: 0/3 nodes are available", "does not resolve: NAME.mnist-worker"])
def test_tasks_that_wait_for_one_reason_are_one_line_a_minute(
    reporter: Reporter, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    """However many they are, and whenever each of them began to wait."""

    def task(number: int) -> PendingTask:
        return waiting(number, NOW + number, reason.replace("NAME", f"mnist-worker-{number}"))

    for second in range(600):
        tasks = [task(number) for number in range(min(second, 900))]
        reporter.report_pending(STARTED, tasks, NOW + second)
    assert len(caplog.messages) == 10
    assert caplog.messages[-1].endswith("(and 558 more)")


def test_a_leader_that_logs_nothing_is_named_ever_more_rarely(
    reporter: Reporter, caplog: pytest.LogCaptureFixture
) -> None:
    """As a program that overwrites TF_CONFIG, whose workers wait for each other."""
    reporter._followed, reporter._heard = "uid/0", NOW
    for second in range(3600):
        reporter.report_pending(dataclasses.replace(RUNNING, running=NOW), [], NOW + second)
    minutes = [line.split(" for ")[1].split(" min")[0] for line in caplog.messages]
    assert minutes == ["3", "6", "12", "24", "48"]
    assert all("mnist-worker-0 has logged nothing" in line and "TF_CONFIG" in line for line in caplog.messages)


def test_a_leader_whose_log_is_not_followed_is_not_silent(reporter: Reporter, caplog: pytest.LogCaptureFixture) -> None:
    """It has ended, waits for a node, or was not looked at yet by a supervisor that has just started."""
    reporter.report_pending(dataclasses.replace(RUNNING, running=NOW - 9999), [], NOW)
    assert caplog.messages == []


def test_each_reason_has_its_own_line(reporter: Reporter, caplog: pytest.LogCaptureFixture) -> None:
    tasks = [waiting(0, NOW), waiting(1, NOW, "FailedMount: no claim")]
    reporter.report_pending(STARTED, tasks, NOW + 20)
    assert [line.split(":")[0] for line in caplog.messages] == [
        "waiting for mnist-worker-0",
        "waiting for mnist-worker-1",
    ]


def test_the_job_keeps_the_last_progress_and_no_estimated_end(
    reporter: Reporter, caplog: pytest.LogCaptureFixture
) -> None:
    """A run may end within the 15 seconds between two annotations, and before its last step."""
    api = reporter._api
    assert isinstance(api, Api)
    for step, second in ((100, 0), (250, 5)):
        reporter._followed = "uid/0" if step == 100 else ""
        reporter._progress = Progress(step, 300, 0.5, {}, 50.0)
        reporter.report_pending(RUNNING, [], NOW + second)
    assert "distributed-tensorflow/estimated-end" in api.annotations
    reporter.close()
    reporter.publish_outcome(outcome := Outcome(True, "mnist-worker-0 ended with code 0"))
    reporter.report_outcome(outcome)
    assert api.annotations["distributed-tensorflow/progress"] == "step 250/300: loss 0.5000, 50.0 steps/s"
    assert api.annotations["distributed-tensorflow/estimated-end"] is None
    assert [" left" in line for line in caplog.messages] == [True, False, False]


def a_warning(seconds: float) -> Event:
    """A warning about the StatefulSet of the workers, at this time."""
    return Event(
        metadata=ObjectMeta(name="a"),
        involvedObject=ObjectReference(name="mnist-worker", kind="StatefulSet"),
        reason="FailedCreate",
        message="exceeded quota",
        lastTimestamp=datetime.fromtimestamp(seconds, timezone.utc),
    )


@pytest.mark.parametrize(("seconds", "is_named"), [(-840, False), (1, True)])
def test_a_warning_about_an_earlier_run_of_the_same_name_is_none(seconds: float, is_named: bool) -> None:
    none: Any = None
    observer = Observer(a_run(), none, none, none, Dns(), View(frozenset()))  # type: ignore[arg-type]
    observer.begin(RUNNING)
    observer.apply([WarningReported(a_warning(RUNNING.started + seconds))], {})
    warnings = observer.observe(dataclasses.replace(RUNNING, state="Suspended"), 0, NOW).warnings
    task = policy.with_warning(a_run(), waiting(0, NOW, ""), warnings)
    assert ("exceeded quota" in policy.explain(task)) == is_named


def test_a_scale_is_in_the_notes_before_the_supervisor_sets_it() -> None:
    api = Api()
    writer = NotesWriter(api, "me")
    notes = writer.begin(lambda _: RUNNING, take_over=True)
    writer.write_later(dataclasses.replace(notes, reason="other"))
    assert len(api.written) == 1, "other changes may wait two seconds"
    writer.write_later(dataclasses.replace(notes, scales={**notes.scales, "worker": 1}))
    assert len(api.written) == 2


class SilentLog(http.server.BaseHTTPRequestHandler):
    """An API server whose answer has two lines of a log, and then nothing, as if the node had lost its power."""

    over = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"one\ntwo\n")
        self.wfile.flush()
        self.over.wait(60)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def silent_log() -> Iterator[Connection]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SilentLog)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    config = KubeConfig.from_one(
        cluster=models.Cluster(server=address), user=models.User(username="me", password="")
    ).get()
    assert config
    parameters = client_adapter.ConnectionParams(timeout=httpx2.Timeout(30))
    yield Connection(Client(config), client_adapter.Client(config, parameters))
    SilentLog.over.set()
    server.shutdown()
    server.server_close()


def test_a_log_that_says_nothing_more_is_not_followed_for_ever(
    silent_log: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_logs, "SILENT_SECONDS", 0.5)
    assert [*TaskLogs(silent_log).follow("mnist-worker-0", "worker")] == ["one", "two"]


def test_notes_of_a_later_version_belong_to_another_supervisor() -> None:
    class Later(Api):
        def update_notes(self, update) -> None:  # type: ignore[no-untyped-def]
            update({"notes.json": '{"scales": 3}'})

    with pytest.raises(StoppedError, match="another supervisor"):
        NotesWriter(Later(), "me").write(Notes())


def test_tasks_that_have_not_ended_share_a_short_line(reporter: Reporter, caplog: pytest.LogCaptureFixture) -> None:
    pods = {pod.name: pod for pod in (a_pod(f"mnist-worker-{index}") for index in range(1000))}
    reporter.report_stopping(pods, time.time() + 61)
    assert caplog.messages == ["waiting for mnist-worker-0 (and 999 more) to end"]


def test_a_gang_that_waits_is_one_line_with_what_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    the_run = a_run(gang=Gang(kind="workload", members={"worker": 2, "ps": 1}))
    reporter = Reporter(the_run, Api(), TaskLogs(None))  # type: ignore[arg-type]
    part = "pod group is unschedulable, minCount (3) cannot be satisfied: 2 scheduled, 1 remaining"
    problems = {"mnist-worker-0": part, "mnist-worker-1": "1 Insufficient nvidia.com/gpu.", "mnist-ps-0": part}
    pending = [
        PendingTask(name, name.split("-")[1], NOW, False, problem, in_gang=True) for name, problem in problems.items()
    ]
    reporter.report_pending(STARTED, pending, NOW + 9)
    assert not caplog.messages
    reporter.report_pending(STARTED, pending, NOW + 10)
    reporter.report_pending(STARTED, pending[:1], NOW + 11)
    start = "waiting for room for 3 tasks at once (scheduling.gang): "
    assert caplog.messages == [
        f"{start}no node has enough nvidia.com/gpu left: ask for less in worker.gpus, or add a node",
        f"{start}the free nodes hold only a part of them: wait, ask for less, or add nodes",
    ]


def test_only_a_pod_whose_task_has_not_been_scaled_away_is_replaced(
    reporter: Reporter, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is the pod looked at again that stays while its task is scaled away and back."""
    pods = {pod.name: pod for pod in (a_pod("mnist-ps-0"), a_pod("mnist-ps-1"))}
    others = pods | {"mnist-ps-1": a_pod("mnist-ps-1", uid="other")}

    def report(count: int, there: dict[str, Pod], *steady: str) -> None:
        notes = dataclasses.replace(RUNNING, scales={"ps": count})
        reporter.report_changes(notes, notes, Observed(pods=there, tasks=there, steady=frozenset(steady)))

    report(2, pods)
    report(1, {"mnist-ps-0": pods["mnist-ps-0"]}, "mnist-ps-0")
    report(2, others, "mnist-ps-0")
    assert caplog.messages == []
    report(1, others, *others)
    report(2, others, *others)
    report(2, pods, "mnist-ps-0")
    assert [line.split(":")[0] for line in caplog.messages] == ["mnist-ps-1 was replaced"]
