"""What people see of a run in progress: the supervisor's log, and the events and annotations of its Job.

The log has each change once, pending tasks once a minute, and the progress, which a thread reads from the leader's log.
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from trainer.supervisor import policy
from trainer.supervisor.decision import Decision, Report
from trainer.supervisor.diagnosis import PART_OF_GANG
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.metrics import state_of
from trainer.supervisor.notes import Notes
from trainer.supervisor.observed import Observed
from trainer.supervisor.ownership import SupersededError
from trainer.supervisor.pods import Pod
from trainer.supervisor.policy import Outcome, PendingTask
from trainer.supervisor.run import Run
from trainer.supervisor.task_logs import TaskLogs
from trainer.telemetry import report
from trainer.telemetry.progress import Progress, parse
from trainer.text import truncate

logger = logging.getLogger(__name__)

START_GRACE_SECONDS = 10.0
"""A task that is pending for longer than this is reported."""
REMINDER_SECONDS = 60.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 15.0
"""Between two attempts to follow a log."""
PROGRESS_SECONDS = 10.0
SILENCE_SECONDS = 180.0
"""The leader is named when it has logged nothing for this time, then for twice as long, and so on."""
ANNOTATION_SECONDS = 15.0
LONGEST_TEXT = 500
"""Of what a task reports, in an annotation or an event."""
ANNOTATIONS = "distributed-tensorflow"
"""The prefix of the annotations of the supervisor's Job."""
LAST_DATE = 253_402_300_800
"""The year 10000, in seconds since 1970. A task may report anything."""
TERMINATION_MESSAGE = Path("/dev/termination-log")


class Reporter:
    """Reports the changes of one run. A thread reads the progress from the leader's log."""

    def __init__(self, run: Run, api: KubernetesApi, logs: TaskLogs) -> None:
        self._run, self._api, self._logs = run, api, logs
        self._uids: dict[str, str] = {}
        """Those of the pods that were last seen, by task that should exist."""
        self._scales: Mapping[str, int] = {}
        """How many should."""
        self._replaced: set[str] = set()
        self._lost: set[str] = set()
        self._reported: dict[str, float] = {}
        """When each reason why something waits was last reported."""
        self._stopping_reported = time.time()
        self._progress: Progress | None = None
        """What the leader has reported since the last line about the progress in the supervisor's log."""
        self._last_progress: Progress | None = None
        """That of the last such line."""
        self._progress_reported = 0.0
        self.saved = 0
        """When the leader saved its last checkpoint, in seconds since 1970; 0 if it has not said so."""
        self._annotations: dict[str, str] = {}
        self._annotated = 0.0
        self._followed = self._followed_pod = ""
        self._heard = 0.0
        """When the leader logged its last line, or when its log was first asked for, in seconds since 1970."""
        self._silence = SILENCE_SECONDS

    @property
    def _on_version(self) -> str:
        return f" on version {self._run.data_version} of the data" if self._run.data_version else ""

    def report_beginning(self, before: Notes, notes: Notes) -> None:
        """Report what this supervisor does with the run that it finds."""
        if self._run.data_watch and not notes.has_ended:  # those of the run on another version
            self._api.annotate_job({f"{ANNOTATIONS}/{key}": None for key in ("outcome", "progress", "estimated-end")})
        is_same = (before.hash, before.data_version) == (notes.hash, notes.data_version)
        if notes.has_ended:
            logger.info("this run has already ended")
            if before.hash != notes.hash:
                logger.info("only the chart's version has changed; to run it again, raise run.attempt")
        elif notes.state == "Suspended" and self._run.waits_for_data:
            logger.info("ending the tasks until a version of the data is there")
        elif notes.state == "Suspended":
            logger.info("suspending the run: ending its tasks")
        elif notes.state == "Stopping" and before.hash == notes.hash and notes.data_version:
            logger.info(f"version {notes.data_version} of the data follows: ending the tasks of the previous run")
        elif notes.state == "Stopping":
            logger.info("the run has changed: ending the tasks of the previous run")
        elif notes.state == "Finishing" and before.state != "Finishing":
            logger.info("the training has succeeded before; only the stages after it are left")
        elif before.hash == notes.hash and before.started == notes.started:
            logger.info("the supervisor continues the run in progress")
        elif notes.state == "Preparing":
            logger.info("running the stages before the training")
        elif notes.state == "Queued":
            logger.info("asking Kueue for a place in its queue")
        else:
            self.report_start(notes, "RunResumed" if is_same and before.state == "Suspended" else "RunStarted")

    def report_start(self, notes: Notes, reason: str = "RunStarted") -> None:
        """Report that the tasks start. `reason` is that of the event."""
        tasks = ", ".join(f"{scale} {role}" for role, scale in notes.scales.items())
        attempt = f" (attempt {self._run.attempt})" if self._run.attempt > 1 else ""
        sentence = f"starting {tasks}{self._on_version}{attempt}"
        self._uids.clear()  # of pods that have ended together; these replace none
        self._scales = {}
        logger.info(sentence)
        self._api.record_event("Normal", reason, sentence)

    def report(self, before: Notes, decision: Decision, observed: Observed, now: float) -> None:
        """Report what a pass has seen and decided.

        Args:
            before: The notes of the pass before.
            decision: The decision.
            observed: What it follows from.
            now: Seconds since 1970.
        """
        seen = decision.seen
        starts = before.state in ("Stopping", "Preparing", "Queued") and seen.state == "Starting"
        if starts:  # after what has led to it, such as the end of a stage
            self._report_all(decision.reports)
            self.report_start(seen)
        if decision.pending is not None:
            self.report_changes(before, seen, observed)
            self.report_pending(seen, decision.pending, now)
        if not starts:
            self._report_all(decision.reports)
        if decision.waits_for and now - self._reported.get(decision.waits_for, 0.0) > REMINDER_SECONDS:
            self._reported[decision.waits_for] = now
            logger.info(decision.waits_for)
        if decision.pending is None and not seen.has_ended:
            if seen.state in ("Queued", "Stopping", "Suspended"):
                self.report_stopping(observed.pods, now)
            self._annotate({"state": state_of(seen)}, now)

    def _report_all(self, reports: Iterable[Report]) -> None:
        for each in reports:
            logger.log(logging.WARNING if each.kind == "Warning" else logging.INFO, each.sentence)
            if each.event:
                self._api.record_event(each.kind, each.event, each.sentence)

    def report_stopping(self, pods: Mapping[str, Pod], now: float) -> None:
        """Report once a minute which tasks have not ended yet."""
        if pods and now - self._stopping_reported > REMINDER_SECONDS:
            self._stopping_reported = now
            logger.info(f"waiting for {_listed(set(pods))} to end")

    def report_changes(self, before: Notes, after: Notes, observed: Observed) -> None:
        """Report what has changed."""
        for name, code in after.finished.items():
            if name not in before.finished:
                logger.info(f"{name} is done" if code == 0 else f"{name} failed with code {code}")
        lost, pods = set(), observed.tasks
        expected, looked_at = policy.expected_tasks(self._run, after), observed.unsteady_tasks
        if after.scales != self._scales:
            self._scales, looked_at = after.scales, pods
            for name in self._uids.keys() - expected.keys():
                del self._uids[name]
        for name, pod in looked_at.items():
            if name not in expected:  # scaled away: its next pod replaces none
                continue
            if pod.terminated and after.counted.seen.get(pod.uid, 0) > before.counted.seen.get(pod.uid, 0):
                limit = "" if self._run.backoff_limit is None else f" of {self._run.backoff_limit}"
                has_counted = after.counted.restarts != before.counted.restarts
                incident = f"restart {after.counted.restarts}, incident {after.counted.incidents}{limit}"
                count = incident if has_counted else "not counted"
                logger.info(f"{name} ended with {pod.ending} and restarts ({count})")
                lost.add(name)
            if self._uids.setdefault(name, pod.uid) != pod.uid:
                self._uids[name] = pod.uid
                if name not in after.finished and name not in self._replaced:
                    logger.info(
                        f"{name} was replaced: its node was drained or lost, or it was deleted; this is not counted"
                    )
                    lost.add(name)
                self._replaced.discard(name)
        self._report_lost(lost, pods, after)
        if after.running and not before.running:
            logger.info(f"every task has started, {_duration(after.running - after.started)} after the run")
        leader = pods.get(self._run.leader)
        if leader and leader.running and leader.name not in after.finished:
            self._follow(leader)
        else:
            self._followed = ""

    def report_replacement(self, pod: Pod) -> None:
        """Report that a task restarts in a new pod. Its next pod is expected."""
        self._replaced.add(pod.name)
        ran = _duration(pod.terminated.ran_seconds if pod.terminated else 0.0)
        logger.info(f"{pod.name} ran for {ran}: a new pod restarts it without the kubelet's back-off; its last lines:")

    def report_outdated(self, names: Sequence[str]) -> None:
        """Report that pods that have never started are deleted, so that new ones get the settings of an upgrade."""
        self._replaced.update(names)
        logger.info(f"{_listed(set(names))} had not started before the upgrade: a new pod has its settings")

    def _report_lost(self, lost: set[str], pods: Mapping[str, Pod], notes: Notes) -> None:
        """Create one event for all tasks that were lost since the last pass, and one for those that are back."""
        back = {
            name for name in self._lost - lost if name in pods and pods[name].running and not pods[name].terminating
        }
        expected = policy.expected_tasks(self._run, notes).keys()
        self._lost = ((self._lost | lost) - back - notes.finished.keys()) & expected
        if lost:
            self._api.record_event("Warning", "TasksLost", f"{_listed(lost)} ended or lost its node, and restarts")
        if back:
            self._api.record_event("Normal", "TasksBack", f"{_listed(back)} runs again")

    def _follow(self, leader: Pod) -> None:
        container = f"{leader.uid}/{leader.restart_count}"
        if container != self._followed:
            self._followed, self._followed_pod, self._heard = container, leader.pod_name, time.time()
            threading.Thread(target=self._read, args=(leader, container), daemon=True).start()

    def _read(self, leader: Pod, container: str) -> None:
        last, pause = "", FIRST_PAUSE_SECONDS
        while self._followed == container:
            for index, line in enumerate(self._logs.follow(leader.pod_name, leader.role)):
                if self._followed != container:
                    return
                if index == 0 and line == last:  # the log is followed again from its last line on
                    continue
                last, pause = line, FIRST_PAUSE_SECONDS
                self._heard, self._silence = time.time(), SILENCE_SECONDS
                self._progress = parse(line) or self._progress
                self.saved = report.read(line, "saved", int) or self.saved
                if change := report.read(line, "replicas", str):
                    logger.info(change)
                if checkpoint := report.read(line, "restored", str):
                    sentence = f"{leader.name} restored {truncate(checkpoint, LONGEST_TEXT)}"
                    try:
                        self._api.record_event("Normal", "CheckpointRestored", sentence)
                    except SupersededError:  # the loop's next write ends it
                        return
            time.sleep(pause)  # the API server is unavailable, or does not report the end of the container yet
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def report_pending(self, notes: Notes, pending: Sequence[PendingTask], now: float) -> None:
        """Report pending tasks and the progress at their intervals; tasks with the same reason share one line."""
        by_reason: dict[str, list[PendingTask]] = {}
        for task in pending:
            if not task.in_gang:  # the reason may have the task's own name, such as that of its host
                by_reason.setdefault(policy.explain(task).replace(task.name, ""), []).append(task)
        for reason, tasks in by_reason.items():
            count = sum(task.alike for task in tasks)
            others = f" (and {count - 1} more)" if count > 1 else ""
            self._report_waiting(f"{tasks[0].name}: {policy.explain(tasks[0])}{others}", reason, tasks, now)
        if gang := [task for task in pending if task.in_gang]:
            reasons = dict.fromkeys(map(policy.explain, gang))
            reason = "; ".join([each for each in reasons if each != PART_OF_GANG] or [PART_OF_GANG])
            count = self._run.gang.size if self._run.gang else 0
            self._report_waiting(f"room for {count} tasks at once (scheduling.gang): {reason}", reason, gang, now)
        if notes.running and self._followed:
            self._report_silence(max(self._heard, notes.running), now)
        annotations = {"state": state_of(notes, any(task.waits for task in pending))}
        if self._progress:
            annotations |= progress_annotations(self._progress, now) | checkpoint_annotation(self.saved)
            if now - self._progress_reported >= PROGRESS_SECONDS:
                self._report_progress(now)
        self._annotate(annotations, now)

    def _report_waiting(self, what: str, reason: str, tasks: Sequence[PendingTask], now: float) -> None:
        """Report once a minute what these tasks wait for, after a grace period."""
        is_due = now - self._reported.get(reason, 0.0) > REMINDER_SECONDS
        if is_due and now - min(task.since for task in tasks) >= START_GRACE_SECONDS:
            self._reported[reason] = now
            logger.info(f"waiting for {what}")

    def _report_silence(self, since: float, now: float) -> None:
        """Name the leader if it has logged nothing for long: ever more rarely."""
        if now - since < self._silence:
            return
        self._silence = 2 * (now - since)
        hint = "" if self._progress_reported else "; a program that sets TF_CONFIG itself may wait for tasks in vain"
        silence, log = _duration(now - since), f"kubectl logs {self._followed_pod}"
        logger.info(f"{self._run.leader} has logged nothing for {silence}; its log: {log}{hint}")

    def _annotate(self, annotations: Mapping[str, str], now: float) -> None:
        """Annotate the Job at once if the state has changed, else at most every 15 seconds."""
        changed = {key: value for key, value in annotations.items() if self._annotations.get(key) != value}
        if "state" in changed or (changed and now - self._annotated > ANNOTATION_SECONDS):
            self._annotated = now
            if self._api.annotate_job({f"{ANNOTATIONS}/{key}": value for key, value in changed.items()}):
                self._annotations |= changed

    def _report_progress(self, now: float) -> None:
        progress, self._progress, self._progress_reported = self._progress, None, now
        if progress:
            self._last_progress = progress
            left = progress.seconds_left if self._followed else None  # it may have ended before its last step
            logger.info(f"{progress}" + (f", {_duration(left)} left" if left else ""))

    def report_suspension(self) -> None:
        """Report that the run is suspended."""
        if self._run.waits_for_data:
            sentence = "the run waits for a version of the data"
        else:
            sentence = "the run is suspended; run.suspend=false resumes it from its last checkpoint"
        self._api.record_event("Normal", "RunSuspended", sentence)
        # The Job is complete: this pod has ended, and the run has not.
        self._api.annotate_job({f"{ANNOTATIONS}/state": "Suspended", f"{ANNOTATIONS}/outcome": sentence})
        if TERMINATION_MESSAGE.exists():
            TERMINATION_MESSAGE.write_text(sentence)
        logger.info(sentence)

    def report_cleaning(self, outcome: Outcome, pods: Mapping[str, Pod], now: float) -> None:
        """Report once a minute which tasks have not ended yet after the run."""
        left = {name for name, pod in pods.items() if pod.terminating}
        if left and now - self._stopping_reported > REMINDER_SECONDS:
            self._stopping_reported = now
            logger.info(f"{self.ending(outcome)}; waiting for {_listed(left)} to end")

    def ending(self, outcome: Outcome) -> str:
        """How the run has ended, in a sentence."""
        return f"the run{self._on_version} {'succeeded' if outcome.succeeded else 'failed'}: {outcome.reason}"

    def report_outcome(self, outcome: Outcome) -> None:
        """Report how the run ended, in the last line of the log."""
        logger.info(self.ending(outcome))

    def publish_outcome(self, outcome: Outcome) -> None:
        """Publish how the run ended: in the Job's annotations, the termination message, and an event."""
        word, sentence = "succeeded" if outcome.succeeded else "failed", self.ending(outcome)
        annotations = {"state": word.capitalize(), "outcome": sentence, "estimated-end": None}
        if self._last_progress:
            annotations["progress"] = _sentence(self._last_progress)
        self._api.annotate_job({f"{ANNOTATIONS}/{key}": value for key, value in annotations.items()})
        if TERMINATION_MESSAGE.exists():
            TERMINATION_MESSAGE.write_text(sentence)
        kind = "Normal" if outcome.succeeded else "Warning"
        self._api.record_event(kind, f"Run{word.capitalize()}", sentence)

    def close(self) -> None:
        """Report the last progress, and stop reading the log."""
        self._followed = ""
        self._report_progress(time.time())


def progress_annotations(progress: Progress, now: float) -> dict[str, str]:
    """What the supervisor's Job shows of the progress."""
    annotations = {"progress": _sentence(progress)}
    if progress.seconds_left is not None:
        end = datetime.fromtimestamp(now + progress.seconds_left, timezone.utc)
        annotations["estimated-end"] = end.isoformat(timespec="seconds")
    return annotations


def checkpoint_annotation(saved: int) -> dict[str, str]:
    """When the last checkpoint was saved, in seconds since 1970; nothing for 0, which is unknown."""
    when = datetime.fromtimestamp(saved, timezone.utc).isoformat(timespec="seconds") if 0 < saved < LAST_DATE else ""
    return {"checkpoint": when} if when else {}


def _sentence(progress: Progress) -> str:
    return truncate(str(progress), LONGEST_TEXT)


def _listed(names: set[str]) -> str:
    first, *others = sorted(names)
    return first + (f" (and {len(others)} more)" if others else "")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
