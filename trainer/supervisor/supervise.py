"""The control loop of a run inside Kubernetes: start its tasks, watch them, and end with the run's own result.

`trainer supervise` runs as one small Job for each run. The loop is level-triggered: after each change it compares what
the cluster has with what the run needs, and reconciles what differs. All state is in the cluster, in the pods and in
the notes in the ConfigMap FULLNAME-run, so a restarted supervisor continues from there. The other modules of this
package interpret the Kubernetes objects.
"""

import contextlib
import dataclasses
import logging
import queue
import signal
import time
from collections.abc import Mapping, Sequence

from lightkube import ApiError

from trainer.errors import ConfigurationError
from trainer.supervisor import crashes, data_watch, elastic, gang, lifecycle, policy, scales, watches
from trainer.supervisor.changes import (
    Change,
    Changes,
    DataVersionFound,
    Observation,
    PodChanged,
    PodsListed,
    ScalesObserved,
    StagesObserved,
    StopRequested,
    WarningReported,
    WatchFailed,
    WorkloadObserved,
)
from trainer.supervisor.connection import STOPPED, Connection, StoppedError
from trainer.supervisor.crashes import Crashes
from trainer.supervisor.dns import DnsProbe
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.kueue_api import KueueApi
from trainer.supervisor.metrics import RunMetrics
from trainer.supervisor.notes import Notes, parse
from trainer.supervisor.notes_writer import NotesWriter
from trainer.supervisor.ownership import SupersededError
from trainer.supervisor.pods import Pod, lacks_termination, with_logged_termination
from trainer.supervisor.policy import Outcome, RestartAll
from trainer.supervisor.queue_control import QueueControl
from trainer.supervisor.reporter import ANNOTATIONS, Reporter
from trainer.supervisor.run import Run
from trainer.supervisor.sent import Sent
from trainer.supervisor.stage_control import StageControl
from trainer.supervisor.task_logs import TaskLogs, cause_in
from trainer.supervisor.view import WORKLOAD, View
from trainer.telemetry import report, result
from trainer.telemetry.metrics import serve

logger = logging.getLogger(__name__)

REPLACED_LINES = 20
"""The lines of a task's log that the supervisor copies before it replaces the pod, which has the log."""
LOG_LINES = 200
"""The lines of a failed task's log that the supervisor copies into its own."""
PASS_SECONDS = 2.0
"""The longest time between two passes of the loop."""
GATHER_SECONDS = 0.2
"""The shortest time between two passes. A pass looks at every task, so changes in quick succession share one."""
LEAVE_SECONDS = 60.0
"""How long the end of TensorBoard on the leader's node is waited for."""
TURN_SECONDS = 10.0
"""A supervisor that waits for its turn looks this often whether it is."""
PREDECESSOR_SECONDS = 60.0
"""An owner looks this often whether the release wants an earlier supervisor again, which has ended."""


def supervise(run: Run, connection: Connection) -> Outcome | None:
    """Bring the run to its end, clean up, and return the outcome; None if the run is suspended.

    If its data is watched, another run for the next version follows, without end.

    Raises:
        StoppedError: SIGTERM or SIGINT arrived.
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
    before, failed = api.crashes()
    found = crashes.begin(before, failed, time.time())
    api.note_crashes(found)
    try:
        if found.total > before.total:
            _report_crash(api, found)
            if found.too_many:
                return Outcome(False, str(found))
        outcome = _supervise(run, api, connection, changes, found.total)
    except (ApiError, ConfigurationError):
        api.fail_job()
        raise
    except StoppedError:
        raise
    except Exception as error:
        found = crashes.after(found, error, time.time())
        _report_crash(api, found)
        raise
    finally:  # whatever follows, this pod was not killed
        api.note_crashes(dataclasses.replace(found, failed=found.failed + 1))
    if outcome and not outcome.succeeded:
        api.fail_job()
    return outcome


def _report_crash(api: KubernetesApi, found: Crashes) -> None:
    """Report a crash, and end the Job if it is one too many."""
    logger.error(str(found))
    api.record_crash(str(found))
    if found.too_many:
        api.annotate_job({f"{ANNOTATIONS}/outcome": str(found)})
        api.fail_job()


def _supervise(run: Run, api: KubernetesApi, connection: Connection, changes: Changes, crashed: int) -> Outcome | None:
    """Supervise the run whenever it is this supervisor's turn, until it has ended."""
    metrics = RunMetrics(run, Notes(), crashed)
    if run.metrics_port is not None:
        serve(metrics, run.metrics_port)
    watches.start(run, connection, changes)
    components = frozenset(run.roles) | ({scales.TENSORBOARD} if run.tensorboard else set())
    components |= {WORKLOAD} if run.is_queued else set()
    view = View(components, stages=None if run.stages.all else {})
    dns = DnsProbe(run)
    if run.data_watch and not run.suspend:
        data_watch.start(run.data_watch, connection.stopping, changes)
    is_superseded = False
    while True:
        _await_turn(api, view, changes, is_superseded)
        try:
            return _run_to_end(run, parse(api.read_notes()), connection, metrics, changes, view, dns)
        except SupersededError as error:
            logger.info(f"{error}: this one changes nothing any more")
            metrics.notes, is_superseded = Notes(), True
            dns.forget()


def _await_turn(api: KubernetesApi, view: View, changes: Changes, is_superseded: bool) -> None:
    """Wait until this supervisor may take the run over, and keep the view up to date meanwhile."""
    if not api.may_own(is_superseded):
        logger.info(
            "the release has another supervisor, because an upgrade has failed or is in progress: this one waits until "
            "`helm rollback` asks for it again, or its Job is deleted, by the next upgrade or by "
            f"`kubectl delete job {api.run.job}`"
        )
        api.end_with_release()
        while not api.may_own(is_superseded):
            until = time.monotonic() + TURN_SECONDS
            while change := _next_change(changes, until - time.monotonic()):
                if isinstance(change, Observation):
                    view.apply(change)


def _run_to_end(
    run: Run,
    notes: Notes,
    connection: Connection,
    metrics: RunMetrics,
    changes: Changes,
    view: View,
    dns: DnsProbe,
) -> Outcome | None:
    """Bring the run to its end, and with watched data the runs for later versions, without end."""
    version = lifecycle.version_to_go_on(run, notes)
    loop = _Loop(run.on_version(version) if version else run, connection, metrics, changes, view, dns)
    if run.data_watch is None or run.suspend:
        return loop.run_to_end(takes_over=True)
    loop.run_to_end(takes_over=True)
    while not loop.is_replaced:
        version = loop.await_data()
        dns.forget()
        loop = _Loop(run.on_version(version), connection, metrics, changes, loop.view, dns)
        loop.run_to_end(takes_over=False)
    return None


class _Loop:
    """The passes of one supervisor over one run, and what it has seen."""

    def __init__(
        self, run: Run, connection: Connection, metrics: RunMetrics, changes: Changes, view: View, dns: DnsProbe
    ) -> None:
        self._run, self._metrics, self._changes, self.view, self._dns = run, metrics, changes, view, dns
        self._api = api = KubernetesApi(run, connection)
        self._logs = TaskLogs(connection)
        self._reporter = Reporter(run, api, self._logs)
        self._writer = NotesWriter(api, run.supervisor)
        self._stages = StageControl(run, api, self._logs, self._reporter)
        self._queue = QueueControl(run, KueueApi(run, connection, api.ownership), self._reporter)
        self._absent: dict[str, float] = {}
        self._confirmed: Mapping[str, int] = {}
        self._sent = Sent()
        self._has_account = not (run.tensorboard and run.tensorboard.service_account)
        self._replaced: set[str] = set()
        self._tensorboard_leaves = False
        """Whether TensorBoard is ending on the leader's node, to start on another one."""
        self._notes = Notes()
        self._tasks = {name: pod for name, pod in (view.pods or {}).items() if self._is_own(pod)}
        """The pods of this run, by task."""
        self.is_replaced = False
        """Whether the release has gone back to a supervisor that has ended, so that this run is suspended."""
        self._looked = time.time()
        """When that was last asked, in seconds since 1970."""
        self._early: list[Change] = []
        """Changes that were observed before the run began."""
        self._passed = 0.0
        """When the last pass began, on the monotonic clock."""

    def run_to_end(self, takes_over: bool) -> Outcome | None:
        """Repeat passes until the run has ended and is cleaned up; return None if it is suspended instead.

        Args:
            takes_over: Whether to take the run over from an earlier supervisor; otherwise it must still be this one's.
        """
        self.begin(takes_over)
        try:
            while not self._is_settled():
                self._observe(self._next_changes())
                if self.view.complete:
                    self._take_pass(time.time())
        except SupersededError:
            raise
        except StoppedError:
            self.leave()
            raise
        finally:
            self._reporter.close()
        if self._notes.state == "Suspended":
            if not self.is_replaced:
                self._reporter.report_suspension()
            return None
        self._reporter.report_outcome(self._outcome)
        return self._outcome

    def leave(self) -> None:
        """Suspend the run at SIGTERM, if the release has gone back to a supervisor that has ended."""
        with contextlib.suppress(StoppedError):  # the API server is unavailable, or another supervisor owns the run
            self._suspend_if_replaced()
            if self.is_replaced:
                self._api.ownership.begin_pass()
                self._reconcile(time.time())

    def _suspend_if_replaced(self) -> None:
        """Suspend the run if the release has gone back to a supervisor that has ended: nothing would end or free it."""
        self._looked = time.time()
        if self._notes.state in ("Suspended", "Succeeded", "Failed") or not (job := self._api.ended_predecessor()):
            return
        logger.warning(
            f"the run is suspended, because the supervisor that the release wants again, the Job {job}, has ended: "
            "raise run.attempt in an upgrade to run with the present values"
        )
        self.is_replaced = True
        self._notes = self._writer.write(lifecycle.enter(self._run, self._notes, "superseded", reason=""))

    @property
    def _outcome(self) -> Outcome:
        """How the run has ended."""
        return Outcome(self._notes.state == "Succeeded", self._notes.reason)

    def begin(self, takes_over: bool) -> None:
        """Note what this supervisor does with the run that it finds, which it takes over or owns already."""
        before, pods = Notes(), self._await_pods()

        def notes_after(data: Mapping[str, str]) -> Notes:
            nonlocal before
            before = parse(data)
            return lifecycle.begin(self._run, before, pods, time.time())

        self._notes = self._metrics.notes = self._writer.begin(notes_after, takes_over)
        left_seconds = time.time() - self._notes.ended  # an earlier supervisor may have stopped meanwhile
        self._tensorboard_leaves = self._notes.has_ended and left_seconds < LEAVE_SECONDS and self._shares_node()
        self._confirmed = self._notes.scales if self._notes.state == "Running" else {}
        self._reporter.report_beginning(before, self._notes)
        if self._notes.has_ended:
            self._reporter.publish_outcome(self._outcome)

    def await_data(self) -> str:
        """Wait for another version of the data than that of this run, and return it."""
        while self.view.data_version in ("", self._run.data_version):
            self._observe(self._next_changes())
            self._api.ownership.begin_pass()
            if not self._is_settled():
                self._reconcile(time.time())
        return self.view.data_version

    def _await_pods(self) -> list[Pod]:
        """The pods of tasks, as they are listed first. What is observed with that list waits for the first pass."""
        pods = [*(self.view.pods or {}).values()]
        while self.view.pods is None and not any(isinstance(change, PodsListed) for change in self._early):
            self._early += self._gather()
        return pods + [pod for change in self._early if isinstance(change, PodsListed) for pod in change.pods]

    def _next_changes(self) -> list[Change]:
        """The changes for the next pass."""
        early, self._early = self._early, []
        return early or self._gather()

    def _gather(self) -> list[Change]:
        """All changes in the queue; waits for the first one, and for others until a pass is due again."""
        batch: list[Change] = []
        seconds = PASS_SECONDS
        while change := _next_change(self._changes, seconds):
            batch.append(change)
            seconds = self._passed + GATHER_SECONDS - time.monotonic()
        self._passed = time.monotonic()
        return batch

    def _is_settled(self) -> bool:
        """Whether the run has ended and is cleaned up, or is suspended and all of its tasks are gone."""
        if not self.view.complete:
            return False
        if self._notes.state == "Suspended":
            is_free = self._queue.is_settled(self._notes, self.view.workload)
            return is_free and lifecycle.are_gone((self.view.pods or {}).values())
        if not self._notes.has_ended:
            return False
        wanted = self._wanted(time.time())
        return not (
            any(self.view.scales.get(component) not in (None, scale) for component, scale in wanted.items())
            or self._tensorboard_leaves
            or (wanted.get(scales.TENSORBOARD) and not self._has_account)
            or any(job.may_start for job in (self.view.stages or {}).values())
            or not self._queue.is_settled(self._notes, self.view.workload)
        )

    def _observe(self, batch: Sequence[Change]) -> None:
        """Apply changes to the view, and look into the logs of changed pods that lack their termination."""
        changed: set[str] = set()
        for change in batch:
            match change:
                case WarningReported(event):
                    self._reporter.record_warning(event)
                case (
                    PodsListed()
                    | PodChanged()
                    | ScalesObserved()
                    | StagesObserved()
                    | DataVersionFound()
                    | WorkloadObserved()
                ):
                    changed.update(self.view.apply(change))
        for name in changed:
            self._tasks.pop(name, None)
            pod = (self.view.pods or {}).get(name)
            if pod is None or not self._is_own(pod):
                continue
            if lacks_termination(pod) and name not in self._notes.finished:
                pod = with_logged_termination(pod, self._logs.last_line(pod.pod_name, pod.role), time.time())
            self._tasks[name] = pod

    def _is_own(self, pod: Pod) -> bool:
        """Whether a pod is that of a task of this run."""
        return pod.run_hash == self._run.hash and self._run.lists(pod.name)

    def _take_pass(self, now: float) -> None:
        """Compare what the cluster has with what the run needs, and reconcile what differs."""
        self._api.ownership.begin_pass()
        if now - self._looked >= PREDECESSOR_SECONDS:
            self._suspend_if_replaced()
        run, before = self._run, self._notes
        notes = scales.adopt(run, before, self._confirmed, self.view.scales)
        notes = lifecycle.advance(run, notes, self.view.pods or {}, self.view.scales, now)
        if notes.elastic.wanted != before.elastic.wanted and notes.elastic.wanted:
            sentence = f"the workers have been scaled to {notes.elastic.wanted}"
            self._reporter.report_scale(before.scales[scales.ELASTIC], notes.elastic.wanted, sentence)
        self._confirmed = self.view.scales
        notes = self._queue.advance(notes, self.view.workload, now)
        if before.state in ("Stopping", "Queued") and notes.state == "Starting":
            self._reporter.report_start(notes)
        outcome: Outcome | None = None
        if notes.state in ("Starting", "Running"):
            notes, outcome = self._judge(notes, now)
        elif notes.state in ("Preparing", "Finishing"):
            self._metrics.queued = False
            notes, outcome = self._stages.advance(notes, self.view.stages or {}, now)
            if notes.state == "Starting":
                self._reporter.report_start(notes)
        else:
            self._metrics.queued = False
            if not notes.has_ended:
                self._reporter.report_stopping(notes, self.view.pods or {}, now)
        if outcome:
            notes = self._end(notes, outcome, now)
        self._notes = self._metrics.notes = self._writer.write_later(notes)
        if notes.has_ended and not before.has_ended:  # first: what follows may wait for a node that does not answer
            self._reporter.publish_outcome(self._outcome)
        elif notes.has_ended:
            self._reporter.report_cleaning(self._outcome, self.view.pods or {}, now)
        self._reconcile(now)

    def _end(self, notes: Notes, outcome: Outcome, now: float) -> Notes:
        """The notes after the training, or after the last stage; the result and the logs are copied."""
        run, cause = self._run, ""
        if notes.state != "Finishing":
            self._reporter.close()
            outcome = _with_result(run, self._logs, outcome, self._tasks.get(run.leader), notes.started)
            cause = _copy_logs(run, self._logs, outcome, self._tasks)
        if not outcome.succeeded:
            outcome = dataclasses.replace(outcome, reason=policy.with_cause(outcome.reason, cause))
        notes = lifecycle.end(run, notes, outcome, now)
        if notes.has_ended:
            self._tensorboard_leaves = self._shares_node()
        else:
            logger.info(f"the training succeeded: {outcome.reason}")
        return notes

    def _shares_node(self) -> bool:
        """Whether TensorBoard is on the leader's node, and starts again on another one after the run."""
        board = self._run.tensorboard
        return bool(board and board.leaves_node and self._notes.leader)

    def _judge(self, notes: Notes, now: float) -> tuple[Notes, Outcome | None]:
        """The notes on what the pods show, and the outcome that follows from them."""
        run, tasks = self._run, self._tasks
        before = notes
        expected = policy.expected_tasks(run, notes)
        self._absent = {name: self._absent.get(name, now) for name, _ in expected if name not in tasks}
        self._dns.look_up(tasks.values())
        notes = policy.observe_pods(run, notes, tasks.values(), now)
        there = {**(self.view.pods or {}), **tasks}
        pending = policy.pending_tasks(run, notes, there, self._absent, self.view.scales, self._dns.unresolved(), now)
        pending = [self._reporter.with_problem(task) for task in pending]
        if notes.state == "Running" and not notes.running and all(task.started for task in pending):
            notes = dataclasses.replace(notes, running=now)
        self._reporter.report_changes(before, notes, tasks)
        self._reporter.report_pending(notes, pending, now)
        self._metrics.queued = any(task.waits for task in pending)
        decision = policy.outcome(run, notes, tasks, now)
        decision = decision or policy.start_outcome(run, notes, pending, now, self._reporter.explain)
        scale = notes.scales.get(scales.ELASTIC, 0)
        notes, sentence = elastic.adjust(run, notes, pending, now, self._reporter.explain)
        if sentence:
            self._reporter.report_scale(scale, notes.scales[scales.ELASTIC], sentence)
        if not decision:
            notes, sentence = gang.give_back(run, notes, pending, now)
            if sentence:
                self._reporter.report_eviction(sentence)
        if isinstance(decision, RestartAll):
            logger.info(decision.reason)
            return lifecycle.restart_all(run, notes), None
        return notes, decision

    def _reconcile(self, now: float) -> None:
        """Set the scales that differ from the wanted ones, and remove the pods of lost nodes."""
        self._queue.reconcile(self._notes, self.view.workload, self.view.pods or {}, now)
        self._stages.reconcile(self._notes, self.view.stages or {}, now)
        if self._tensorboard_leaves:
            is_gone = self.view.scales.get(scales.TENSORBOARD) == 0 and not self._api.has_tensorboard()
            self._tensorboard_leaves = not (is_gone or now - self._notes.ended > LEAVE_SECONDS)
        wanted = self._wanted(now)
        if wanted.get(scales.TENSORBOARD):
            self._provide_account()
        freed = []
        for component, scale in wanted.items():
            observed = self.view.scales.get(component)
            if observed in (None, scale) or not self._sent.is_due(component, now, scale):
                continue
            is_set = self._api.try_scale(component, scale)
            if not is_set or component == scales.TENSORBOARD:
                continue
            if self._notes.state == "Running":
                was = f"had the scale {observed} instead of {scale}"
                logger.info(f"{component} {was}: set it again{self._hint(component)}")
            elif self._notes.state in ("Finishing", "Succeeded", "Failed"):
                freed.append(component)
        if freed:
            logger.info(f"freed {', '.join(freed)} (run.cleanPodPolicy is {self._run.clean_pod_policy})")
        limit = self._run.node_loss_seconds
        for pod in (self.view.pods or {}).values():
            lost = limit is not None and pod.deadline is not None and now - pod.deadline > limit
            if lost and self._sent.is_due(pod.uid, now) and self._api.delete_pod(pod.pod_name):
                logger.info(f"{pod.name} did not end on {pod.node} within run.nodeLossSeconds ({limit} s): removed it")
        if self._notes.state in ("Starting", "Running"):
            self._replace_outdated(now)
            self._replace_pods(now)

    def _wanted(self, now: float) -> dict[str, int]:
        """The scale that each object should have now, by component."""
        wanted = scales.wanted(self._run, self._notes, {**(self.view.pods or {}), **self._tasks}, now)
        return wanted | {scales.TENSORBOARD: 0} if self._tensorboard_leaves else wanted

    def _replace_pods(self, now: float) -> None:
        """Delete the pods of tasks that ran well and wait for the kubelet's back-off. Their restarts are counted."""
        for pod in self._tasks.values():
            if pod.uid in self._replaced or not policy.is_replaceable(self._run, self._notes, pod, now):
                continue
            template = self.view.templates.get(pod.role)
            if (template and template.run_hash != self._run.hash) or not self._sent.is_due(pod.uid, now):
                continue  # an upgrade has failed half-way: the new pod would belong to its run
            lines = self._logs.tail(pod.pod_name, pod.role, REPLACED_LINES)
            self._writer.write(self._notes)  # first: the new pod does not show the restart
            if self._api.replace_pod(pod.pod_name, pod.uid):
                self._replaced.add(pod.uid)
                self._reporter.report_replacement(pod)
                _print_log(pod.name, lines)

    def _replace_outdated(self, now: float) -> None:
        """Delete the pods that have never started and have the settings from before an upgrade."""
        if self._run.is_queued:  # Kueue has admitted what these pods ask for
            return
        replaced = [
            pod.name
            for pod in (self.view.pods or {}).values()
            if not pod.terminating
            and policy.is_outdated(self._run, pod, self.view.templates.get(pod.role), now)
            and self._sent.is_due(pod.uid, now)
            and self._api.replace_pod(pod.pod_name, pod.uid)
        ]
        if replaced:
            self._reporter.report_outdated(replaced)

    def _hint(self, component: str) -> str:
        """Why a number of workers is not kept."""
        addresses, limits = self._run.roles[component].addresses, self._run.elastic
        if component == scales.ELASTIC and self._run.is_queued:
            return "; Kueue has admitted that many"
        if component == scales.ELASTIC and limits:
            return f"; run.elastic is {limits.min} to {limits.max}"
        if addresses is None or self.view.scales.get(component, 0) <= addresses:
            return ""
        return f"; the cluster has addresses for {addresses}, which worker.maxReplicas sets"

    def _provide_account(self) -> None:
        """Create the service account of TensorBoard, if that is the supervisor's."""
        spec = self._run.tensorboard
        if not self._has_account and spec and spec.service_account:
            self._has_account = self._api.provide_tensorboard_account(spec.service_account, spec.annotations)


def _next_change(changes: Changes, seconds: float) -> Change | None:
    """The next change in the queue, which is waited for; None if there is none within this time.

    Raises:
        StoppedError: SIGTERM or SIGINT arrived.
    """
    try:
        change = changes.get(timeout=max(seconds, 0.0))
    except queue.Empty:
        return None
    match change:
        case StopRequested():
            raise StoppedError(STOPPED)
        case WatchFailed(error):
            raise RuntimeError("the watch of the cluster failed") from error
    return change


def _with_result(run: Run, logs: TaskLogs, outcome: Outcome, leader: Pod | None, started: float) -> Outcome:
    """The outcome with the result at the end of the leader's log, if any, and the command that prints it.

    If the result was written before the run started, in seconds since 1970, nothing was trained.
    """
    if not outcome.succeeded or leader is None:
        return outcome
    # Not `tail`: if the leader restarted during the run, that may return the log before the last one.
    lines = logs.tail_both(leader.pod_name, leader.role, LOG_LINES)
    found = next(filter(None, map(result.parse, reversed(lines))), None)
    if found is None:
        return outcome
    command = f": {run.result_command}" if run.result_command else ""
    early_end = result.early_end(found)
    reason = "; ".join(filter(None, (outcome.reason, early_end, f"{result.describe(found)}{command}")))
    if (result.written(found) or started) < started:
        why = "the run had ended" if early_end else "all steps were done"
        remedy = "raise train.train_steps, or use another trainingDirectory.subPath and raise run.attempt"
        reason = f"nothing was trained, because {why} before; {remedy}; {reason}"
    return dataclasses.replace(outcome, reason=reason)


def _copy_logs(run: Run, logs: TaskLogs, outcome: Outcome, tasks: Mapping[str, Pod]) -> str:
    """Copy the last lines of failed tasks, and `run.lastLines` of all others, into the supervisor's log.

    Returns:
        Why the first failed task ended, as its log says; empty if it does not.
    """
    cause = ""
    for name, pod in sorted(tasks.items()):
        count = LOG_LINES if name in outcome.failed else run.last_lines
        lines = logs.tail(pod.pod_name, pod.role, count) if count else []
        _print_log(name, lines)
        if name in outcome.failed:
            cause = cause or cause_in(lines)
    return cause


def _print_log(name: str, lines: Sequence[str]) -> None:
    for line in lines:
        logger.info(f"| {name}: {report.split(line)[0]}")
