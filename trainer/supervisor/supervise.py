"""The control loop of a run inside Kubernetes: start its tasks, watch them, and end with the run's own result.

`trainer supervise` runs as one small Job for each run. The loop is level-triggered: after each change it compares what
the cluster has with what the run needs, and reconciles what differs. All state is in the cluster, in the pods and in
the notes in the ConfigMap FULLNAME-run, so a restarted supervisor continues from there. The other modules of this
package interpret the Kubernetes objects.
"""

import dataclasses
import logging
import queue
import signal
import time
from collections.abc import Mapping, Sequence

from lightkube import ApiError

from trainer.errors import ConfigurationError
from trainer.supervisor import elastic, lifecycle, policy, scales, watches
from trainer.supervisor.changes import (
    Change,
    Changes,
    PodChanged,
    PodsListed,
    ScalesObserved,
    StagesObserved,
    StopRequested,
    WarningReported,
    WatchFailed,
)
from trainer.supervisor.connection import STOPPED, Connection, StoppedError
from trainer.supervisor.dns import DnsProbe
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.metrics import RunMetrics
from trainer.supervisor.notes import Notes, State, parse
from trainer.supervisor.notes_writer import NotesWriter
from trainer.supervisor.pods import Pod, lacks_termination, observe, with_logged_termination
from trainer.supervisor.policy import Outcome, RestartAll
from trainer.supervisor.reporter import Reporter
from trainer.supervisor.run import Run
from trainer.supervisor.stage_control import StageControl
from trainer.supervisor.task_logs import TaskLogs
from trainer.supervisor.view import View
from trainer.telemetry import report, result
from trainer.telemetry.metrics import serve

logger = logging.getLogger(__name__)

REPLACED_LINES = 20
"""The lines of a task's log that the supervisor copies before it replaces the pod, which has the log."""
LOG_LINES = 200
"""The lines of a failed task's log that the supervisor copies into its own."""
PASS_SECONDS = 2.0
"""The longest time between two passes of the loop."""
PATIENCE_SECONDS = 5.0
"""A scale that was set is set again if it is not observed within this time."""


def supervise(run: Run, connection: Connection) -> Outcome | None:
    """Bring the run to its end, clean up, and return the outcome; None if the run is suspended.

    Raises:
        StoppedError: SIGTERM or SIGINT arrived, or a later supervisor has taken over the run.
        ConfigurationError: the port of the metrics is not available.
        lightkube.ApiError: an object that the supervisor cannot do without is deleted.
    """
    changes: Changes = queue.SimpleQueue()

    def stop(*_: object) -> None:
        connection.stopping.set()
        changes.put(StopRequested())

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    api = KubernetesApi(run, connection)
    api.retry_job()
    try:
        outcome = _supervise(run, api, connection, changes)
    except (ApiError, ConfigurationError):
        api.fail_job()
        raise
    if outcome and not outcome.succeeded:
        api.fail_job()
    return outcome


def _supervise(run: Run, api: KubernetesApi, connection: Connection, changes: Changes) -> Outcome | None:
    logs = TaskLogs(connection)
    reporter = Reporter(run, api, logs)
    before = parse(api.read_notes())
    metrics = RunMetrics(run, before if before.hash == run.hash else Notes())
    if run.metrics_port is not None:
        serve(metrics, run.metrics_port)
    pods = [observe(pod) for pod in api.pods()]
    writer = NotesWriter(api, run.supervisor)
    notes = metrics.notes = writer.take_over(lifecycle.begin(run, before, pods, time.time()))
    reporter.report_beginning(before, notes)
    if notes.has_ended:
        outcome = Outcome(notes.state == "Succeeded", notes.reason)
        _clean_up(run, api, notes, {pod.name: pod for pod in pods})
    else:
        if notes.state == "Finishing":  # an earlier supervisor may have stopped before it freed the tasks
            _clean_up(run, api, notes, {pod.name: pod for pod in pods})
        watches.start(run, connection, changes)
        loop = _Loop(run, api, logs, reporter, writer, metrics, changes)
        ended = loop.run_to_end(notes)
        if ended and loop.notes.state != "Finishing":
            ended = _with_result(run, logs, ended, loop.tasks.get(run.leader))
            _copy_logs(run, logs, ended, loop.tasks)
            if ended.succeeded:
                ended = loop.finish(ended.reason)
        if ended is None:
            reporter.report_suspension()
            return None
        outcome = ended
        state: State = "Succeeded" if outcome.succeeded else "Failed"
        notes = dataclasses.replace(loop.notes, state=state, reason=outcome.reason, ended=time.time())
        metrics.notes = writer.write(notes)
        _clean_up(run, api, notes, loop.tasks)
        if run.tensorboard and run.tensorboard.leaves_node and notes.leader:
            api.stop_tensorboard()
    api.suspend_stages()
    if (scale := scales.tensorboard_after(run, notes, time.time())) is not None:
        while not _provide_account(run, api):
            if connection.stopping.wait(PASS_SECONDS):
                raise StoppedError(STOPPED)
        api.set_scale(scales.TENSORBOARD, scale)
    reporter.report_outcome(outcome)
    return outcome


class _Loop:
    """The passes of one supervisor, and what it has seen."""

    def __init__(
        self,
        run: Run,
        api: KubernetesApi,
        logs: TaskLogs,
        reporter: Reporter,
        writer: NotesWriter,
        metrics: RunMetrics,
        changes: Changes,
    ) -> None:
        self._run, self._api, self._logs = run, api, logs
        self._reporter, self._writer, self._metrics, self._changes = reporter, writer, metrics, changes
        self._dns = DnsProbe(run)
        components = frozenset(run.roles) | ({scales.TENSORBOARD} if run.tensorboard else set())
        self._view = View(components, stages=None if run.stages.all else {})
        self._stages = StageControl(run, api, logs, reporter)
        self._absent: dict[str, float] = {}
        self._confirmed: Mapping[str, int] = {}
        self._sent: dict[str, tuple[int, float]] = {}
        self._terminations: dict[str, Pod] = {}
        self._has_account = False
        self._replaced: set[str] = set()
        self.notes = Notes()
        self.tasks: Mapping[str, Pod] = {}
        """The pods of this run, by task."""

    def run_to_end(self, notes: Notes) -> Outcome | None:
        """Repeat passes until the run has an outcome; None if it is suspended and all of its tasks are gone."""
        self.notes = notes
        self._confirmed = notes.scales if notes.state == "Running" else {}
        try:
            while True:
                self._observe(_next_changes(self._changes))
                if not self._view.complete:
                    continue
                outcome = self._take_pass(time.time())
                if outcome:
                    return outcome
                if self.notes.state == "Suspended" and lifecycle.are_gone((self._view.pods or {}).values()):
                    return None
        finally:
            self._reporter.close()

    def finish(self, sentence: str) -> Outcome | None:
        """Free the tasks after their success, and run the stages after the training to their end."""
        notes = lifecycle.finish(self._run, self.notes, sentence)
        if not self._run.stages.after:
            self.notes = notes
            return Outcome(True, sentence)
        logger.info(f"the training succeeded: {sentence}")
        notes = self._metrics.notes = self._writer.write(notes)
        _clean_up(self._run, self._api, notes, self.tasks)
        return self.run_to_end(notes)

    def _observe(self, batch: Sequence[Change]) -> None:
        """Apply changes to the view, and look into the logs of changed pods that lack their termination."""
        changed: set[str] = set()
        for change in batch:
            match change:
                case WarningReported(event):
                    self._reporter.record_warning(event)
                case PodsListed() | PodChanged() | ScalesObserved() | StagesObserved():
                    before = self._view.pods or {}
                    self._view = self._view.after(change)
                    pods = self._view.pods or {}
                    changed |= {name for name, pod in pods.items() if pod is not before.get(name)}
        pods = self._view.pods or {}
        for name in changed & pods.keys():
            self._terminations.pop(name, None)
            pod = pods[name]
            if pod.role in self._run.roles and lacks_termination(pod) and name not in self.notes.finished:
                line = self._logs.last_line(pod.pod_name, pod.role)
                self._terminations[name] = with_logged_termination(pod, line, time.time())
        self.tasks = {
            name: self._terminations.get(name, pod)
            for name, pod in pods.items()
            if self._run.lists(name) and pod.run_hash == self._run.hash
        }

    def _take_pass(self, now: float) -> Outcome | None:
        """Compare what the cluster has with what the run needs, and reconcile what differs."""
        run, before = self._run, self.notes
        notes = scales.adopt(run, before, self._confirmed, self._view.scales)
        first: State = "Preparing" if run.stages.before else "Starting"
        notes = lifecycle.advance(notes, self._view.pods or {}, self._view.scales, now, first)
        if before.state == "Stopping" and notes.state == "Starting":
            self._reporter.report_start(notes)
        if notes.workers_wanted != before.workers_wanted and notes.workers_wanted:
            sentence = f"the workers have been scaled to {notes.workers_wanted}"
            self._reporter.report_scale(before.scales[scales.ELASTIC], notes.workers_wanted, sentence)
        self._confirmed = self._view.scales
        outcome: Outcome | None = None
        if notes.state in ("Starting", "Running"):
            notes, outcome = self._judge(notes, now)
        elif notes.state in ("Preparing", "Finishing"):
            self._metrics.queued = False
            notes, outcome = self._stages.advance(notes, self._view.stages or {}, now)
            if notes.state == "Starting":
                self._reporter.report_start(notes)
        else:
            self._metrics.queued = False
            self._reporter.report_stopping(notes, self._view.pods or {}, now)
        self.notes = self._metrics.notes = self._writer.write_later(notes)
        if outcome is None:
            self._reconcile(now)
        return outcome

    def _judge(self, notes: Notes, now: float) -> tuple[Notes, Outcome | None]:
        """The notes on what the pods show, and the outcome that follows from them."""
        run, tasks = self._run, self.tasks
        before = notes
        expected = policy.expected_tasks(run, notes)
        self._absent = {name: self._absent.get(name, now) for name, _ in expected if name not in tasks}
        self._dns.look_up(tasks.values())
        notes = policy.observe_pods(run, notes, tasks.values(), now)
        there = {**(self._view.pods or {}), **tasks}
        pending = policy.pending_tasks(run, notes, there, self._absent, self._view.scales, self._dns.unresolved(), now)
        if notes.state == "Running" and not notes.running and all(task.started for task in pending):
            notes = dataclasses.replace(notes, running=now)
        if not notes.resolved and self._dns.have_resolved(expected):
            notes = dataclasses.replace(notes, resolved=True)
        self._reporter.report_changes(before, notes, tasks)
        self._reporter.report_pending(notes, pending, now)
        self._metrics.queued = any(task.gated for task in pending)
        decision = policy.outcome(run, notes, tasks, now)
        decision = decision or policy.start_outcome(run, notes, pending, now, self._reporter.explain)
        scale = notes.scales.get(scales.ELASTIC, 0)
        notes, sentence = elastic.adjust(run, notes, pending, now, self._reporter.explain)
        if sentence:
            self._reporter.report_scale(scale, notes.scales[scales.ELASTIC], sentence)
        if isinstance(decision, RestartAll):
            logger.info(decision.reason)
            return policy.restart_all(notes), None
        return notes, decision

    def _reconcile(self, now: float) -> None:
        """Set the scales that differ from the wanted ones, and remove the pods of lost nodes."""
        self._stages.reconcile(self.notes, self._view.stages or {}, now)
        leader = self.tasks.get(self._run.leader)
        for component, scale in scales.wanted(self._run, self.notes, leader).items():
            observed = self._view.scales.get(component)
            sent, at = self._sent.get(component, (observed, 0.0))
            if observed in (None, scale) or (sent == scale and now - at < PATIENCE_SECONDS):
                continue
            if component == scales.TENSORBOARD and scale:
                self._provide_account()
            self._sent[component] = (scale, now)
            is_set = self._api.try_scale(component, scale)
            if is_set and self.notes.state == "Running" and component != scales.TENSORBOARD:
                logger.info(
                    f"{component} had the scale {observed} instead of {scale}: set it again{self._hint(component)}"
                )
        if leader and leader.node:
            self._provide_account()
        limit = self._run.node_loss_seconds
        for pod in (self._view.pods or {}).values():
            lost = limit is not None and pod.deadline is not None and now - pod.deadline > limit
            if lost and self._api.delete_pod(pod.pod_name):
                logger.info(f"{pod.name} did not end on {pod.node} within run.nodeLossSeconds ({limit} s): removed it")
        if self.notes.state in ("Starting", "Running"):
            self._replace_pods(now)

    def _replace_pods(self, now: float) -> None:
        """Delete the pods of tasks that ran well and wait for the kubelet's back-off. Their restarts are counted."""
        for pod in self.tasks.values():
            if pod.uid in self._replaced or not policy.is_replaceable(self._run, self.notes, pod, now):
                continue
            lines = self._logs.tail(pod.pod_name, pod.role, REPLACED_LINES)
            self._writer.write(self.notes)  # first: the new pod does not show the restart
            if self._api.replace_pod(pod.pod_name, pod.uid):
                self._replaced.add(pod.uid)
                self._reporter.report_replacement(pod)
                _print_log(pod.name, lines)

    def _hint(self, component: str) -> str:
        """Why a number of workers is not kept."""
        addresses, limits = self._run.roles[component].addresses, self._run.elastic
        if component == scales.ELASTIC and limits:
            return f"; run.elastic is {limits.min} to {limits.max}"
        if addresses is None or self._view.scales.get(component, 0) <= addresses:
            return ""
        return f"; the cluster has addresses for {addresses}, which worker.maxReplicas sets"

    def _provide_account(self) -> None:
        self._has_account = self._has_account or _provide_account(self._run, self._api)


def _next_changes(changes: Changes) -> list[Change]:
    """All changes in the queue; waits for the first one."""
    batch: list[Change] = []
    try:
        batch.append(changes.get(timeout=PASS_SECONDS))
        while True:
            batch.append(changes.get_nowait())
    except queue.Empty:
        pass
    for change in batch:
        match change:
            case StopRequested():
                raise StoppedError(STOPPED)
            case WatchFailed(error):
                raise RuntimeError("the watch of the cluster failed") from error
    return batch


def _with_result(run: Run, logs: TaskLogs, outcome: Outcome, leader: Pod | None) -> Outcome:
    """The outcome with the result at the end of the leader's log, if any, and the command that prints it."""
    if not outcome.succeeded or leader is None:
        return outcome
    # Not `tail`: if the leader restarted during the run, that may return the log before the last one.
    lines = logs.tail_both(leader.pod_name, leader.role, LOG_LINES)
    found = next(filter(None, map(result.parse, reversed(lines))), None)
    if found is None:
        return outcome
    command = f": {run.result_command}" if run.result_command else ""
    return dataclasses.replace(outcome, reason=f"{outcome.reason}; {result.describe(found)}{command}")


def _copy_logs(run: Run, logs: TaskLogs, outcome: Outcome, tasks: Mapping[str, Pod]) -> None:
    """Copy the last lines of failed tasks, and `run.lastLines` of all others, into the supervisor's log."""
    for name, pod in sorted(tasks.items()):
        count = LOG_LINES if name in outcome.failed else run.last_lines
        _print_log(name, logs.tail(pod.pod_name, pod.role, count) if count else [])


def _print_log(name: str, lines: Sequence[str]) -> None:
    for line in lines:
        logger.info(f"| {name}: {report.split(line)[0]}")


def _clean_up(run: Run, api: KubernetesApi, notes: Notes, tasks: Mapping[str, Pod]) -> None:
    """Free the resources of the tasks according to run.cleanPodPolicy."""
    freed = []
    for role, values in run.roles.items():
        names = run.tasks(role, notes.scales.get(role, 0))
        is_done = set(names) <= set(notes.finished)
        completes = values.job and is_done and not any(notes.finished[name] for name in names)
        there = [tasks[name] for name in names if name in tasks]
        if completes and there and not any(pod.running or pod.has_sidecar or not pod.terminated for pod in there):
            continue  # a Job that completes holds no resources, and keeps its log
        if names and (run.clean_pod_policy == "All" or (run.clean_pod_policy == "Running" and not is_done)):
            api.set_scale(role, 0)
            freed += [role] if there else []
    if freed:
        logger.info(f"freed {', '.join(freed)} (run.cleanPodPolicy is {run.clean_pod_policy})")


def _provide_account(run: Run, api: KubernetesApi) -> bool:
    """Whether TensorBoard has the service account that the supervisor creates for it, if any."""
    if not run.tensorboard or not run.tensorboard.service_account:
        return True
    return api.provide_tensorboard_account(run.tensorboard.service_account, run.tensorboard.annotations)
