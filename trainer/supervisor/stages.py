"""The stages of a run: Jobs before and after the training, one after another. Pure.

The chart makes a Job for each stage, and the supervisor resumes it when it is its turn. Kubernetes would start each Job
when the chart creates it, but it creates no pod without the pod's service account, and the supervisor creates that when
it is the stage's turn. So the chart need not render `suspend`, which an upgrade would reset. A Job runs once, so if the
data is watched, the supervisor itself creates the Job, for each version anew, and the chart has its account. Kubernetes
retries the pods of such a Job and applies its limits. A stage is skipped if its digest is that of its last success.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lightkube.models.batch_v1 import JobSpec, JobStatus
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job

from trainer.supervisor.actions import Action, ChangeStageJob, ProvideAccount
from trainer.supervisor.notes import Notes, StageNotes, StageState
from trainer.supervisor.run import Run, Stage

MADE_FOR = "distributed-tensorflow/made-for"
"""The annotation of a Job that the supervisor has created for a stage."""
CONTAINER = "stage"
"""The name of the container of a stage's pod, which is also the label of its component."""
START_GRACE_SECONDS = 10.0
"""A stage that does not start for longer than this is reported."""


@dataclass(frozen=True)
class StageJob:
    """The state of a stage's Job."""

    uid: str
    suspended: bool
    has_pods: bool
    """Whether a pod of it exists that has not ended."""
    complete: bool
    failure: str
    """Why it failed, as Kubernetes reports it; empty if it has not failed."""
    made_for: str = ""
    """What the supervisor has created it for, as `made_for` returns; empty if the chart has."""

    @property
    def may_start(self) -> bool:
        """Whether Kubernetes starts it, or has started it, and it has not ended."""
        return not (self.suspended or self.complete or self.failure)


@dataclass(frozen=True)
class Progress:
    """How far the stages of one kind, before or after the training, have come."""

    notes: Mapping[str, StageNotes]
    """Of all stages of the run, by name."""
    current: Stage | None = None
    """The stage that runs now."""
    failed: Stage | None = None
    sentences: Sequence[str] = ()
    """What has changed."""


def observe(job: Job) -> StageJob:
    """The state of a Job, from the object that the API server returns."""
    metadata, spec, status = job.metadata or ObjectMeta(), job.spec, job.status or JobStatus()
    conditions = {each.type: each for each in status.conditions or [] if each.status == "True"}
    failed = conditions.get("Failed")
    return StageJob(
        uid=metadata.uid or "",
        suspended=bool(isinstance(spec, JobSpec) and spec.suspend),
        has_pods=bool(status.active),
        complete="Complete" in conditions,
        failure=(failed.message or failed.reason or "no reason is known") if failed else "",
        made_for=(metadata.annotations or {}).get(MADE_FOR, ""),
    )


def made_for(run: Run, stage: Stage) -> str:
    """The manifest and the version of the data that a stage's Job must be for; empty if the chart creates it."""
    return f"{stage.template}.v{run.data_version}" if stage.manifest else ""


def own(run: Run, jobs: Mapping[str, StageJob]) -> dict[str, StageJob]:
    """The Jobs without those for another manifest or version of the data."""
    wanted = {stage.name: made_for(run, stage) for stage in run.stages.all}
    return {name: job for name, job in jobs.items() if job.made_for == wanted.get(name)}


def renew(stages: Sequence[Stage], notes: Notes) -> dict[str, StageNotes]:
    """The notes on stages that begin: all wait. The last success counts, unless a stage before always runs."""
    found, forgets = {}, False
    for stage in stages:
        forgets = forgets or stage.always
        found[stage.name] = StageNotes(digest="" if forgets else notes.stages.get(stage.name, StageNotes()).digest)
    return found


def advance(
    stages: Sequence[Stage], notes: Mapping[str, StageNotes], jobs: Mapping[str, StageJob], now: float
) -> Progress:
    """What follows from the Jobs of some stages.

    Args:
        stages: The stages before the training, or those after it, in their order.
        notes: The notes on all stages.
        jobs: The observed Jobs, by the name of the stage.
        now: Seconds since 1970.
    """
    found, sentences = dict(notes), []

    def enter(stage: Stage, state: StageState, sentence: str) -> StageNotes:
        sentences.append(f"stage {stage.name} {sentence}")
        own = dataclasses.replace(found.get(stage.name, StageNotes()), state=state)
        if state == "running":
            own = dataclasses.replace(own, started=now)
        found[stage.name] = dataclasses.replace(own, digest=stage.digest) if state == "done" else own
        return found[stage.name]

    for stage in stages:
        own, job = found.get(stage.name, StageNotes()), jobs.get(stage.name)
        if is_past(stage, found):
            continue
        if own.state == "waiting" and own.digest == stage.digest:
            enter(stage, "skipped", "is skipped: its image, its settings and what comes before it have not changed")
            continue
        if job and job.complete:
            seconds = f" after {round(now - own.started)} s" if own.state == "running" else ""
            enter(stage, "done", f"is done{seconds}")
            continue
        if job and job.failure:
            enter(stage, "failed", f"failed: {job.failure}")
            return Progress(found, failed=stage, sentences=sentences)
        if own.state != "running":
            enter(stage, "running", "starts")
        return Progress(found, current=stage, sentences=sentences)
    return Progress(found, sentences=sentences)


def is_past(stage: Stage, notes: Mapping[str, StageNotes]) -> bool:
    """Whether a stage is done or skipped as it is now."""
    own = notes.get(stage.name, StageNotes())
    return own.state in ("done", "skipped") and own.digest == stage.digest


def current(run: Run, notes: Notes) -> Stage | None:
    """The stage that should run now; None in a state without stages."""
    stages = {"Preparing": run.stages.before, "Finishing": run.stages.after}.get(notes.state, [])
    return next((stage for stage in stages if notes.stages.get(stage.name, StageNotes()).state == "running"), None)


def needed(run: Run, notes: Notes, jobs: Mapping[str, StageJob], accounts: Collection[str]) -> Iterator[Action]:
    """Resume the Job of the current stage, end those of skipped ones, and suspend all others that have not ended.

    `helm --wait-for-jobs` waits for all of them.

    Args:
        run: The run.
        notes: The notes.
        jobs: The observed Jobs, by the name of the stage.
        accounts: The uids of the Jobs whose service account exists.
    """
    now_running, mine = current(run, notes), own(run, jobs)
    for stage in run.stages.all:
        job, is_current = jobs.get(stage.name), stage == now_running
        if job and stage.name not in mine:
            yield ChangeStageJob(stage.job, "delete", stage)
        elif job is None:
            if is_current and stage.manifest:
                yield ChangeStageJob(stage.job, "create", stage)
        elif job.complete or job.failure:
            continue
        elif is_past(stage, notes.stages):
            yield ChangeStageJob(stage.job, "end", stage)
        elif is_current and not stage.manifest and job.uid not in accounts:
            # A Job without its account is retried ever later: resumed, it is tried at once.
            change = ChangeStageJob(stage.job, "resume" if job.suspended else "suspend", stage)
            yield ProvideAccount(job.uid, stage, None if job.has_pods and not job.suspended else change)
        elif job.suspended == is_current:
            yield ChangeStageJob(stage.job, "resume" if is_current else "suspend", stage)
