"""The supervisor's log while a run is in progress: each change once, pending tasks once a minute, and the progress."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence

from lightkube.resources.core_v1 import Event

from trainer.supervisor.diagnosis import diagnose
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.notes import Notes
from trainer.supervisor.pods import Pod
from trainer.supervisor.policy import PendingTask
from trainer.supervisor.run import Run
from trainer.telemetry.progress import Progress, parse

logger = logging.getLogger(__name__)

START_GRACE_SECONDS = 10.0
"""A task that is pending for longer than this is reported."""
REMINDER_SECONDS = 60.0
PROGRESS_SECONDS = 10.0


class Reporter:
    """Logs the changes of one run. A thread reads the progress from the leader's log."""

    def __init__(self, run: Run, api: KubernetesApi) -> None:
        self._run, self._api = run, api
        self._warnings: dict[str, str] = {}
        self._uids: dict[str, str] = {}
        self._reported: dict[str, tuple[str, float]] = {}
        self._progress: Progress | None = None
        self._progress_reported = 0.0
        self._followed = ""

    def record_warning(self, event: Event) -> None:
        """Keep the last warning about each pod or its owner: it has reasons that no status has, such as a volume's."""
        if event.reason in ("FailedMount", "FailedAttachVolume", "FailedCreate", "FailedCreatePodSandBox"):
            about = event.involvedObject.name or ""
            jobs = (role.job for role in self._run.roles.values() if role.job and about.startswith(role.job))
            self._warnings[next(jobs, about)] = f"{event.reason}: {event.message}"

    def explain(self, task: PendingTask) -> str:
        """Why a task does not run: from its pod's status, else the last warning about the pod or its owner."""
        owner = self._run.roles[task.role].job or self._run.stateful_set(task.role)
        warning = self._warnings.get(task.name) or self._warnings.get(owner, "")
        return diagnose(task.role, task.problem or warning)

    def report_changes(self, before: Notes, after: Notes, pods: Mapping[str, Pod]) -> None:
        """Report what has changed."""
        for name, code in after.finished.items():
            if name not in before.finished:
                logger.info(f"{name} is done" if code == 0 else f"{name} failed with code {code}")
        if after.restarts != before.restarts and after.restarts > 0:
            limit = "" if self._run.backoff_limit is None else f" of {self._run.backoff_limit}"
            for pod in pods.values():
                if pod.terminated and after.seen.get(pod.uid, 0) > before.seen.get(pod.uid, 0):
                    count = f"incident {after.incidents}{limit}"
                    logger.info(f"{pod.name} ended with {pod.terminated} and restarts ({count})")
        for name, pod in pods.items():
            if self._uids.setdefault(name, pod.uid) != pod.uid:
                self._uids[name] = pod.uid
                if name not in after.finished:
                    logger.info(
                        f"{name} was replaced: its node was drained or lost, or it was deleted; this is not counted"
                    )
        if after.running and not before.running:
            logger.info(f"every task has started, {_duration(after.running - after.started)} after the run")
        leader = pods.get(self._run.leader)
        if leader and leader.running and leader.name not in after.finished:
            self._follow(leader)
        else:
            self._followed = ""

    def _follow(self, leader: Pod) -> None:
        container = f"{leader.uid}/{leader.restart_count}"
        if container != self._followed:
            self._followed = container
            threading.Thread(target=self._read, args=(leader, container), daemon=True).start()

    def _read(self, leader: Pod, container: str) -> None:
        while self._followed == container:
            for line in self._api.follow_log(leader.pod_name, leader.role):
                if self._followed != container:
                    return
                self._progress = parse(line) or self._progress
            time.sleep(1)  # the API server is unavailable, or does not report the end of the container yet

    def report_pending(self, pending: Sequence[PendingTask], now: float) -> None:
        """Report pending tasks and the progress at their intervals; tasks with the same reason share one line."""
        by_reason: dict[str, list[str]] = {}
        for task in pending:
            reason = self.explain(task)
            reported, at = self._reported.get(task.name, ("", 0.0))
            if now - task.since >= START_GRACE_SECONDS and (reason != reported or now - at > REMINDER_SECONDS):
                self._reported[task.name] = (reason, now)
                by_reason.setdefault(reason, []).append(task.name)
        for reason, (first, *others) in by_reason.items():
            logger.info(f"waiting for {first}: {reason}" + (f" (and {len(others)} more)" if others else ""))
        if self._progress and now - self._progress_reported >= PROGRESS_SECONDS:
            self._report_progress(now)

    def _report_progress(self, now: float) -> None:
        progress, self._progress, self._progress_reported = self._progress, None, now
        if progress:
            left = progress.seconds_left
            logger.info(f"{progress}" + (f", {_duration(left)} left" if left else ""))

    def close(self) -> None:
        """Report the last progress, and stop reading the log."""
        self._followed = ""
        self._report_progress(time.time())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
