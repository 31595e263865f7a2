"""The control loop of a run inside Kubernetes: start its tasks, watch them, and end with the run's own result.

`trainer supervise` runs as one small Job for each run. `supervise` reads from top to bottom as the run proceeds. All
state is in the cluster, in the pods and in the notes in the ConfigMap FULLNAME-run, so a restarted supervisor continues
from there. The other modules of this package interpret the Kubernetes objects.
"""

import dataclasses
import logging
import queue
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from trainer.supervisor import policy, tensorboard
from trainer.supervisor.changes import (
    Change,
    Changes,
    PodChanged,
    PodsListed,
    StopRequested,
    WarningReported,
    WatchFailed,
)
from trainer.supervisor.dns import DnsProbe
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.metrics import RunMetrics
from trainer.supervisor.notes import Notes, parse, to_data
from trainer.supervisor.pods import Pod, apply_change, lacks_termination, observe, with_logged_termination
from trainer.supervisor.policy import Outcome
from trainer.supervisor.reporter import Reporter
from trainer.supervisor.run import Run
from trainer.telemetry import report, result
from trainer.telemetry.metrics import serve

logger = logging.getLogger(__name__)

REMINDER_SECONDS = 60.0
LOG_LINES = 200
"""The lines of a failed task's log that the supervisor copies into its own."""
TERMINATION_MESSAGE = Path("/dev/termination-log")


class StoppedError(Exception):
    """The supervisor stops before the run ends. The run continues, and another supervisor takes over."""


def supervise(run: Run, api: KubernetesApi) -> Outcome:
    """Bring the run to its end, clean up, and return the outcome.

    Raises:
        StoppedError: SIGTERM or SIGINT arrived, or a later supervisor has taken over the run.
        ConfigurationError: the port of the metrics is not available.
        lightkube.ApiError: the API server refuses a request that the run needs.
    """
    changes: Changes = queue.SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: changes.put(StopRequested()))
    notes = parse(api.read_notes())
    metrics = RunMetrics(run, notes if notes.hash == run.hash else Notes())
    if run.metrics_port is not None:
        serve(metrics, run.metrics_port)
    if notes.hash == run.hash and notes.over:
        outcome = Outcome(notes.state == "Succeeded", notes.reason)
        logger.info("this run has already ended")
    else:
        api.watch(changes)
        notes = _start(run, api, notes, changes)
        notes, outcome, pods = _watch(run, api, notes, changes, metrics)
        if outcome.succeeded and (leader := pods.get(run.leader)):
            outcome = _with_result(run, api, outcome, leader)
        for pod in (pods[name] for name in outcome.failed if name in pods):
            for line in api.tail_task_log(pod.pod_name, pod.role, LOG_LINES):
                logger.info(f"| {pod.name}: {report.split(line)[0]}")
        state = "Succeeded" if outcome.succeeded else "Failed"
        notes = metrics.notes = dataclasses.replace(notes, state=state, reason=outcome.reason)
        _write_notes(run, api, notes)
    _clean_up(run, api, notes)
    _report_outcome(api, outcome)
    return outcome


def _write_notes(run: Run, api: KubernetesApi, notes: Notes, take_over: bool = False) -> None:
    def update(data: Mapping[str, str]) -> dict[str, str | None]:
        # During an upgrade two supervisors overlap for a moment. Only the later one may write.
        if not take_over and parse(data).job != run.job_uid:
            raise StoppedError("another supervisor has taken over the run")
        return to_data(notes, data)

    api.update_notes(update)


def _start(
    run: Run,
    api: KubernetesApi,
    notes: Notes,
    changes: Changes,
) -> Notes:
    """Start the run, unless an earlier supervisor has started it; return its notes."""
    if notes.hash == run.hash and notes.job == run.job_uid and notes.state == "Running":
        logger.info("continuing the run in progress")
        return notes
    interrupted = notes.state == "Starting"
    notes = dataclasses.replace(notes, job=run.job_uid, state="Starting")
    _write_notes(run, api, notes, take_over=True)
    pods = [observe(pod) for pod in api.pods()]
    if any(pod.run_hash != run.hash for pod in pods):
        # Tasks of two revisions never run at the same time.
        logger.info("the run has changed: ending the tasks of the previous run")
        _stop_all_tasks(run, api, changes)
    if notes.hash != run.hash:
        notes = Notes(hash=run.hash, job=run.job_uid, leader=notes.leader)
    scales = {role: api.get_scale(role) for role in run.roles}
    # The chart omits the scale at an installation and when a run is resumed, and Kubernetes defaults it to 1. A run in
    # progress may have a scale of 1 too, but then the leader's pod is the one in the notes.
    initial = all(scale <= 1 for scale in scales.values()) and all(
        pod.uid != notes.leader or pod.terminating for pod in pods
    )
    starting = interrupted or not notes.started or initial
    if starting:
        notes = dataclasses.replace(notes, started=time.time(), running=0.0)
        tasks = ", ".join(f"{values.replicas} {role}" for role, values in run.roles.items())
        logger.info(f"starting {tasks}" + (f" (attempt {run.attempt})" if run.attempt > 1 else ""))
    else:
        logger.info("continuing the run in progress")
    for role, values in run.roles.items():
        # While a run is in progress, keep a scale that a user has set, for example with `kubectl scale`. A changed
        # client is a new Job, which the chart creates suspended.
        if starting or values.job or notes.replicas.get(role) != values.replicas:
            api.set_scale(role, values.replicas)
    replicas = {role: values.replicas for role, values in run.roles.items()}
    notes = dataclasses.replace(notes, state="Running", replicas=replicas)
    _write_notes(run, api, notes)
    return notes


def _stop_all_tasks(run: Run, api: KubernetesApi, changes: Changes) -> None:
    """Scale every role to 0, and wait until all pods of tasks are gone."""
    for role in run.roles:
        api.set_scale(role, 0)
    pods: dict[str, Pod] = {}
    started = reported = time.monotonic()
    while True:
        change = _next_change(changes, 5)
        if isinstance(change, PodsListed | PodChanged):
            pods = apply_change(pods, change)
            if not pods:
                return
        if time.monotonic() - reported > REMINDER_SECONDS:
            reported = time.monotonic()
            logger.info(f"waiting for {', '.join(sorted(pods))} to end, for {reported - started:.0f} s")


def _next_change(changes: Changes, timeout: float) -> Change | None:
    try:
        change = changes.get(timeout=timeout)
    except queue.Empty:
        return None
    match change:
        case StopRequested():
            raise StoppedError("the supervisor received a signal to stop")
        case WatchFailed(error):
            raise RuntimeError("the watch of the cluster failed") from error
    return change


def _watch(
    run: Run,
    api: KubernetesApi,
    notes: Notes,
    changes: Changes,
    metrics: RunMetrics,
) -> tuple[Notes, Outcome, Mapping[str, Pod]]:
    """Watch the run until it has an outcome; return its notes, the outcome, and its pods at that time."""
    pods: dict[str, Pod] = {}
    absent: dict[str, float] = {}
    scale = {role: api.get_scale(role) for role in run.roles}
    tensorboard_scale: int | None = None
    dns = DnsProbe(run)
    reporter = Reporter(run, api)
    try:
        while True:
            change = _next_change(changes, 2)
            match change:
                case WarningReported(event):
                    reporter.record_warning(event)
                case PodsListed() | PodChanged():
                    current = {name: pod for name, pod in apply_change(pods, change).items() if pod.role in run.roles}
                    pods = _with_logged_terminations(api, notes, current)
                    if not (isinstance(change, PodChanged) and change.kind == "MODIFIED"):
                        # A pod was added or deleted, for example by `kubectl scale`.
                        scale = {role: api.get_scale(role) for role in run.roles}
            now = time.time()
            expected = policy.expected_pods(run, scale)
            absent = {name: absent.get(name, now) for name, _ in expected if name not in pods}
            dns.look_up(pods.values())

            observed = policy.observe_pods(run, notes, pods.values(), now)
            pending = policy.pending_tasks(run, observed, pods, absent, expected, dns.unresolved())
            if expected and not observed.running and all(task.started for task in pending):
                observed = dataclasses.replace(observed, running=now)
            if expected and not observed.resolved and dns.have_resolved(expected):
                observed = dataclasses.replace(observed, resolved=True)
            if observed != notes:
                _write_notes(run, api, observed)
            reporter.report_changes(notes, observed, pods)
            notes = metrics.notes = observed

            wanted = tensorboard.scale(run, pods.get(run.leader))
            if wanted is not None and wanted != tensorboard_scale:
                tensorboard_scale = wanted
                api.set_tensorboard_scale(wanted)

            reporter.report_pending(pending, now)
            outcome = policy.outcome(run, notes, pods, scale, now) or policy.start_outcome(
                run, notes, pending, now, reporter.explain
            )
            if outcome:
                return notes, outcome, pods
    finally:
        reporter.close()


def _with_result(run: Run, api: KubernetesApi, outcome: Outcome, leader: Pod) -> Outcome:
    """The outcome with the result at the end of the leader's log, if any, and the command that prints it."""
    # Not `tail_task_log`: if the leader restarted during the run, that may return the log before the last one.
    lines = api.tail_both_logs(leader.pod_name, leader.role, LOG_LINES)
    found = next(filter(None, map(result.parse, reversed(lines))), None)
    if found is None:
        return outcome
    command = f": {run.result_command}" if run.result_command else ""
    return dataclasses.replace(outcome, reason=f"{outcome.reason}; {result.describe(found)}{command}")


def _with_logged_terminations(api: KubernetesApi, notes: Notes, pods: Mapping[str, Pod]) -> dict[str, Pod]:
    """The pods, with terminations from the logs of parked containers where Kubernetes no longer reports them."""
    return {
        name: with_logged_termination(pod, api.tail_current_log(pod.pod_name, pod.role), time.time())
        if lacks_termination(pod) and name not in notes.finished
        else pod
        for name, pod in pods.items()
    }


def _clean_up(run: Run, api: KubernetesApi, notes: Notes) -> None:
    """Free the resources of the tasks according to run.cleanPodPolicy."""
    freed = []
    for role, values in run.roles.items():
        tasks = {f"{run.fullname}-{role}-{index}" for index in range(api.get_scale(role))}
        if values.job and all(notes.finished.get(task) == 0 for task in tasks):
            continue  # a Job that has completed holds no resources, and keeps its log
        if tasks and (
            run.clean_pod_policy == "All" or (run.clean_pod_policy == "Running" and not tasks <= set(notes.finished))
        ):
            api.set_scale(role, 0)
            freed.append(role)
    if run.tensorboard_gated and notes.leader:
        api.set_tensorboard_scale(1)
    if freed:
        logger.info(f"freed {', '.join(freed)} (run.cleanPodPolicy is {run.clean_pod_policy})")


def _report_outcome(api: KubernetesApi, outcome: Outcome) -> None:
    """Report the outcome in the termination message, in an event, and in the last line of the log."""
    word = "succeeded" if outcome.succeeded else "failed"
    sentence = f"the run {word}: {outcome.reason}"
    if TERMINATION_MESSAGE.exists():
        TERMINATION_MESSAGE.write_text(sentence)
    api.record_event(*("Normal", "RunSucceeded") if outcome.succeeded else ("Warning", "RunFailed"), sentence)
    logger.info(sentence)
