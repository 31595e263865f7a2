"""The control loop of a run inside Kubernetes: start its tasks, watch them, and end with the run's own result.

`trainer supervise` runs as one small Job for each run. The loop is level-triggered: after each change it compares what
the cluster has with what the run needs, and reconciles what differs. All state is in the cluster, in the pods and in
the notes in the ConfigMap FULLNAME-run, so a restarted supervisor continues from there. The other modules of this
package interpret the Kubernetes objects.
"""

import contextlib
import dataclasses
import logging
import os
import queue
import signal
import time
from collections.abc import Mapping, Sequence

from lightkube import ApiError

from trainer.errors import ConfigurationError
from trainer.supervisor import crashes, data_watch, ending, lifecycle, notify, reconcile, scales, watches
from trainer.supervisor.actor import Actor
from trainer.supervisor.changes import Change, Changes, Observation, PodsListed, StopRequested, WatchFailed
from trainer.supervisor.connection import STOPPED, Connection, StoppedError
from trainer.supervisor.crashes import Crashes
from trainer.supervisor.decide import decide
from trainer.supervisor.decision import Decision
from trainer.supervisor.dns import DnsProbe
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.kueue_api import KueueApi
from trainer.supervisor.metrics import RunMetrics
from trainer.supervisor.notes import Notes, parse
from trainer.supervisor.notes_writer import NotesWriter
from trainer.supervisor.observed import Observed
from trainer.supervisor.observer import Observer
from trainer.supervisor.ownership import SupersededError
from trainer.supervisor.pods import Pod
from trainer.supervisor.policy import Outcome
from trainer.supervisor.reporter import ANNOTATIONS, Reporter
from trainer.supervisor.run import Run
from trainer.supervisor.task_logs import TaskLogs
from trainer.supervisor.view import WORKLOAD, View
from trainer.telemetry.metrics import serve

logger = logging.getLogger(__name__)

PASS_SECONDS = 2.0
"""The longest time between two passes of the loop."""
GATHER_SECONDS = 0.2
"""The shortest time between two passes: changes in quick succession share one."""
TURN_SECONDS = 10.0
"""A supervisor that waits for its turn looks this often whether it is."""


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
    """The passes of one supervisor over one run."""

    def __init__(
        self, run: Run, connection: Connection, metrics: RunMetrics, changes: Changes, view: View, dns: DnsProbe
    ) -> None:
        self._run, self._metrics, self._changes = run, metrics, changes
        self._api = api = KubernetesApi(run, connection)
        self._logs = logs = TaskLogs(connection)
        self._reporter = Reporter(run, api, logs)
        self._writer = NotesWriter(api, run.supervisor)
        kueue = KueueApi(run, connection, api.ownership)
        self.observer = Observer(run, api, kueue, logs, dns, view)
        self._actor = Actor(run, api, kueue, logs, self._reporter, self._writer)
        self._notes = Notes()
        self._observed: Observed | None = None
        """What the last pass has decided by."""
        self._early: list[Change] = []
        """Changes that were observed before the run began."""
        self._passed = 0.0
        """When the last pass began, on the monotonic clock."""
        self._has_seen_end = False
        """Whether the run has ended under this supervisor, and not under an earlier one."""

    @property
    def view(self) -> View:
        """What the watches have shown."""
        return self.observer.view

    @property
    def is_replaced(self) -> bool:
        """Whether the release has gone back to a supervisor that has ended, so that this run is suspended."""
        return self._notes.state == "Suspended" and not lifecycle.asks_to_suspend(self._run)

    @property
    def _outcome(self) -> Outcome:
        """How the run has ended."""
        return Outcome(self._notes.state == "Succeeded", self._notes.reason)

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
        if self._has_seen_end and self._run.notify_secret:
            if url := os.environ.get(notify.VARIABLE):
                notify.notify(url, self._facts_of_end())
            else:
                logger.warning(
                    f"run.notifySecret: the Secret {self._run.notify_secret} has no key url, so nothing is posted"
                )
        return self._outcome

    def _facts_of_end(self) -> dict[str, object]:
        """What is posted when the run has ended."""
        outcome, notes = self._outcome, self._notes
        return {
            "text": f"{self._run.release}: {self._reporter.ending(outcome)}",  # what chats show
            "run": self._run.release,
            "state": notes.state,
            "reason": outcome.reason,
            "attempt": notes.attempt,
            "data_version": notes.data_version,
            "started": notes.started,
            "ended": notes.ended,
        }

    def begin(self, takes_over: bool) -> None:
        """Note what this supervisor does with the run that it finds, which it takes over or owns already."""
        before, pods = Notes(), self._await_pods()

        def notes_after(data: Mapping[str, str]) -> Notes:
            nonlocal before
            before = parse(data)
            return lifecycle.begin(self._run, before, pods, time.time())

        self._notes = self._metrics.notes = self._writer.begin(notes_after, takes_over)
        self.observer.begin(self._notes)
        self._reporter.report_beginning(before, self._notes)
        if self._notes.has_ended:
            self._reporter.publish_outcome(self._outcome)

    def leave(self) -> None:
        """Suspend the run at SIGTERM, if the release has gone back to a supervisor that has ended."""
        with contextlib.suppress(StoppedError):  # the API server is unavailable, or another supervisor owns the run
            now = time.time()
            self._api.ownership.begin_pass()
            observed = self.observer.observe(self._notes, self._reporter.saved, now, leaves=True)
            if observed.predecessor:
                self._act(observed, now)

    def await_data(self) -> str:
        """Wait for another version of the data than that of this run, and return it."""
        while self.view.data_version in ("", self._run.data_version):
            self._observe(self._next_changes())
            self._take_pass(time.time())
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

    def _observe(self, batch: Sequence[Change]) -> None:
        self.observer.apply(batch, self._notes.finished)

    def _is_settled(self) -> bool:
        """Whether the run has ended and is cleaned up, or is suspended and all of its tasks are gone."""
        observed = self._observed
        return observed is not None and reconcile.is_settled(self._run, self._notes, observed, time.time())

    def _take_pass(self, now: float) -> None:
        """Observe, decide, and act."""
        self._api.ownership.begin_pass()
        self._act(self.observer.observe(self._notes, self._reporter.saved, now), now)

    def _act(self, observed: Observed, now: float) -> None:
        """Decide by what is observed; report that, note it, and do what is needed then."""
        before = self._notes
        decision = decide(self._run, before, observed, now)
        self._metrics.queued = any(task.waits for task in decision.pending or ())
        self._reporter.report(before, decision, observed, now)
        notes = self._end(decision, decision.outcome, observed, now) if decision.outcome else decision.notes
        self._notes = self._metrics.notes = notes = self._writer.write_later(notes)
        if notes.has_ended and not before.has_ended:  # first: what follows may wait for a node that does not answer
            self._reporter.publish_outcome(self._outcome)
            self._has_seen_end = True
        elif notes.has_ended:
            self._reporter.report_cleaning(self._outcome, observed.pods, now)
        self._actor.act(reconcile.needed(self._run, notes, observed, now), notes, observed, now)
        self._observed = observed

    def _end(self, decision: Decision, outcome: Outcome, observed: Observed, now: float) -> Notes:
        """The notes after the training, or after the last stage, with what the logs say of that."""
        run, notes = self._run, decision.notes
        if decision.failed_stage:
            outcome = ending.of_stage(self._api, self._logs, outcome, decision.failed_stage)
        if notes.state == "Finishing":
            outcome = ending.with_remedy(outcome)
        else:
            self._reporter.close()
            outcome = ending.of_training(run, self._logs, outcome, observed.tasks, notes)
        notes = lifecycle.end(run, notes, outcome, now)
        if not notes.has_ended:
            logger.info(f"the training succeeded: {outcome.reason}")
        return notes


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
