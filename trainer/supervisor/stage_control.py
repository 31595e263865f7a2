"""Runs the stages of a run: resumes the Job of the current one, suspends the others, and reports how they end.

Kubernetes would start each Job when the chart creates it. But it creates no pod without the pod's service account, and
the supervisor creates that when it is the stage's turn. So the chart need not render `suspend`, which an upgrade would
reset. A Job runs once, so if the data is watched, the supervisor itself creates the Job when it is the stage's turn,
for each version anew, and the chart has its account.
"""

import dataclasses
import logging
from collections.abc import Mapping

from trainer.supervisor import lifecycle, pods, stages
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.notes import Notes
from trainer.supervisor.policy import Outcome
from trainer.supervisor.reporter import START_GRACE_SECONDS, Reporter
from trainer.supervisor.run import Run, Stage
from trainer.supervisor.sent import Sent
from trainer.supervisor.stages import StageJob
from trainer.supervisor.task_logs import TaskLogs, cause_in
from trainer.telemetry import report

logger = logging.getLogger(__name__)

LOG_LINES = 200
"""The lines of a failed stage's log that the supervisor copies into its own."""
LOOK_SECONDS = 5.0
"""The time between two looks at the pods of the current stage."""


class StageControl:
    """The stages of one run, and what this supervisor has done for them."""

    def __init__(self, run: Run, api: KubernetesApi, logs: TaskLogs, reporter: Reporter) -> None:
        self._run, self._api, self._logs, self._reporter = run, api, logs, reporter
        self._accounts: set[str] = set()
        self._sent = Sent()
        self._looked = 0.0

    def advance(self, notes: Notes, jobs: Mapping[str, StageJob], now: float) -> tuple[Notes, Outcome | None]:
        """The notes on what the Jobs show, and the outcome of the run if it follows from them.

        Args:
            notes: The notes, in the state Preparing or Finishing.
            jobs: The observed Jobs, by the name of the stage.
            now: Seconds since 1970.
        """
        is_before = notes.state == "Preparing"
        jobs = self._own(jobs)
        found = stages.advance(
            self._run.stages.before if is_before else self._run.stages.after, notes.stages, jobs, now
        )
        notes = dataclasses.replace(notes, stages=found.notes)
        self._reporter.report_stages(notes, found.sentences, now)
        if found.failed:
            return notes, self._failure(found.failed, jobs[found.failed.name])
        if found.current:
            return notes, self._look(found.current, notes, jobs, now)
        if is_before:
            return lifecycle.enter(self._run, notes, "stages done", started=now), None
        return notes, Outcome(True, notes.training)

    def reconcile(self, notes: Notes, jobs: Mapping[str, StageJob], now: float) -> None:
        """Resume the Job of the current stage, end those of skipped ones, and suspend all others that have not ended.

        `helm --wait-for-jobs` waits for all of them.
        """
        current = stages.current(self._run, notes)
        for stage in self._run.stages.all:
            job = jobs.get(stage.name)
            if job and stage.name not in self._own(jobs):
                if self._sent.is_due(stage.name, now, "delete"):
                    self._api.delete_job(stage.job)
                continue
            if job is None and stage == current and stage.manifest and self._sent.is_due(stage.name, now, "create"):
                self._api.create_stage_job(stage)
            if job is None or job.complete or job.failure:
                continue
            if stages.is_past(stage, notes.stages):
                if self._sent.is_due(stage.name, now, "end"):
                    self._api.try_to_end_stage(stage.job)
                continue
            suspended = stage != current
            if stage == current and not stage.manifest and job.uid not in self._accounts:
                if not self._api.provide_stage_account(stage.job, job.uid):
                    continue
                self._accounts.add(job.uid)
                # A Job without its account is retried ever later: resumed, it is tried at once.
                suspended = not job.has_pods and not job.suspended
            if job.suspended != suspended and self._sent.is_due(stage.name, now, "suspend" if suspended else "resume"):
                self._api.try_to_suspend(stage.job, suspended)

    def _own(self, jobs: Mapping[str, StageJob]) -> dict[str, StageJob]:
        """The Jobs without those for another manifest or version of the data."""
        wanted = {stage.name: stages.made_for(self._run, stage) for stage in self._run.stages.all}
        return {name: job for name, job in jobs.items() if job.made_for == wanted.get(name)}

    def _failure(self, stage: Stage, job: StageJob) -> Outcome:
        """The outcome of a run whose stage has failed; the last lines of the stage's log are copied."""
        found = self._api.stage_pods(stage.job)
        ending = ""
        if found:
            pod = pods.observe(found[-1])
            lines = self._logs.tail(pod.pod_name, stages.CONTAINER, LOG_LINES)
            for line in lines:
                logger.info(f"| {stage.name}: {report.split(line)[0]}")
            if pod.terminated:
                cause = cause_in(lines)
                ending = f" with {pod.ending}{cause and f': {cause}'}"
        return Outcome(False, f"stage {stage.name} failed{ending or f': {job.failure}'}")

    def _look(self, stage: Stage, notes: Notes, jobs: Mapping[str, StageJob], now: float) -> Outcome | None:
        """Report why the current stage has not started; it fails the run if that takes too long."""
        since = notes.stages[stage.name].started
        if now - since < START_GRACE_SECONDS or now - self._looked < LOOK_SECONDS:
            return None
        self._looked = now
        if stage.name not in jobs and not stage.manifest:
            reason = self._reporter.explain_stage(stage, f"absent: the Job {stage.job}")
            self._reporter.report_pending_stage(stage, reason, now)
            return None
        found = [pods.observe(pod) for pod in self._api.stage_pods(stage.job)]
        if any(pod.running or pod.terminated for pod in found) or any(pod.gated for pod in found):
            return None
        problem = found[-1].problem if found else "" if stage.name in jobs else f"not created: {stage.job}"
        reason = self._reporter.explain_stage(stage, problem)
        self._reporter.report_pending_stage(stage, reason, now)
        name, limit = "run.startTimeoutSeconds", self._run.start_timeout_seconds
        if self._reporter.stage_lacks_capacity(stage, problem):
            name, limit = "run.schedulingTimeoutSeconds", self._run.scheduling_timeout_seconds
        elif found:
            since = max(since, found[-1].scheduled)
        if limit is None or now - since <= limit:
            return None
        ending = f"did not start within {name} ({limit} s): {reason}"
        return Outcome(False, f"stage {stage.name} {ending}")
