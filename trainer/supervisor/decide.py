"""What a pass decides: the next notes, from the notes, what is observed, and the time. Pure."""

import dataclasses

from trainer.supervisor import admission, elastic, gang, lifecycle, policy, scales, stages
from trainer.supervisor.decision import Decision, Report
from trainer.supervisor.diagnosis import diagnose, lacks_capacity
from trainer.supervisor.notes import Notes
from trainer.supervisor.observed import Observed
from trainer.supervisor.policy import Outcome, RestartAll
from trainer.supervisor.run import Run, Stage


def decide(run: Run, notes: Notes, observed: Observed, now: float) -> Decision:
    """The decision of a pass. `now` in seconds since 1970."""
    if observed.predecessor:
        report = Report(
            "the run is suspended, because the supervisor that the release wants again, the Job "
            f"{observed.predecessor}, has ended: raise run.attempt in an upgrade to run with the present values",
            kind="Warning",
        )
        notes = lifecycle.enter(run, notes, "superseded", reason="")
        return Decision(notes, notes, [report])
    before = notes
    notes = scales.adopt(run, notes, observed.confirmed, observed.scales)
    reports = []
    if notes.elastic.wanted not in (0, before.elastic.wanted):
        sentence = f"the workers have been scaled to {notes.elastic.wanted}"
        reports.append(_scaled(before, notes, sentence))
    notes = lifecycle.advance(run, notes, observed.pods, observed.scales, now)
    notes, admitted, waits_for = admission.advance(run, notes, observed, now)
    if notes.state in lifecycle.TRAINING:
        found = _of_tasks(run, notes, observed, now)
    elif notes.state in ("Preparing", "Finishing"):
        found = _of_stages(run, notes, observed, now)
    else:
        found = Decision(notes, notes, waits_for=waits_for)
    return dataclasses.replace(found, reports=[*reports, *admitted, *found.reports])


def _scaled(before: Notes, after: Notes, sentence: str) -> Report:
    more = after.scales[scales.ELASTIC] > before.scales.get(scales.ELASTIC, 0)
    return Report(sentence, "ScaledUp" if more else "ScaledDown")


def _of_tasks(run: Run, notes: Notes, observed: Observed, now: float) -> Decision:
    """What follows from the pods of tasks."""
    notes = policy.observe_pods(run, notes, observed.unsteady_tasks.values(), now)
    notes = policy.forget_gone(notes, observed.tasks.values())
    pending = policy.pending_tasks(run, notes, observed, now)
    if notes.state == "Running" and not notes.running and all(task.started for task in pending):
        notes = dataclasses.replace(notes, running=now)
    seen, reports = notes, []
    end = policy.outcome(run, notes, observed, now)
    end = end or policy.start_outcome(run, notes, pending, now)
    notes, sentence = elastic.adjust(run, notes, pending, now)
    if sentence:
        reports.append(_scaled(seen, notes, sentence))
    if not end:
        notes, sentence = gang.give_back(run, notes, pending, now)
        if sentence:
            reports.append(Report(sentence, "RunEvicted", "Warning"))
    if isinstance(end, RestartAll):
        reports.append(Report(end.reason))
        return Decision(lifecycle.restart_all(run, notes), seen, reports, pending=pending)
    return Decision(notes, seen, reports, pending=pending, outcome=end)


def _of_stages(run: Run, notes: Notes, observed: Observed, now: float) -> Decision:
    """What follows from the Jobs of the stages before or after the training."""
    is_before = notes.state == "Preparing"
    listed = run.stages.before if is_before else run.stages.after
    found = stages.advance(listed, notes.stages, stages.own(run, observed.jobs), now)
    notes = dataclasses.replace(notes, stages=found.notes)
    reports = [Report(sentence) for sentence in found.sentences]
    if found.failed:
        outcome = Outcome(False, f"stage {found.failed.name} failed: {observed.jobs[found.failed.name].failure}")
        return Decision(notes, notes, reports, outcome=outcome, failed_stage=found.failed)
    if found.current:
        waits_for, end = _start_of_stage(run, notes, found.current, observed, now)
        return Decision(notes, notes, reports, waits_for, outcome=end)
    if is_before:
        notes = lifecycle.enter(run, notes, "stages done", started=now, begun=now)
        return Decision(notes, notes, reports)
    return Decision(notes, notes, reports, outcome=Outcome(True, notes.training))


def _start_of_stage(run: Run, notes: Notes, stage: Stage, observed: Observed, now: float) -> tuple[str, Outcome | None]:
    """Why the current stage has not started, and the end of the run if that takes too long."""
    since, found = notes.stages[stage.name].started, observed.stage_pods
    if found is None or now - since < stages.START_GRACE_SECONDS:
        return "", None
    if any(pod.running or pod.terminated or pod.gated for pod in found):
        return "", None
    exists = stage.name in stages.own(run, observed.jobs)
    is_absent = not exists and not stage.manifest
    if is_absent:
        problem = f"absent: the Job {stage.job}"
    else:
        problem = found[-1].problem if found else "" if exists else f"not created: {stage.job}"
    problem = problem or observed.warnings.get(stage.job, "")
    reason = diagnose(f"stages[{stage.name}]", problem)
    name, limit = "run.startTimeoutSeconds", run.start_timeout_seconds
    if lacks_capacity(problem):
        name, limit = "run.schedulingTimeoutSeconds", run.scheduling_timeout_seconds
    elif found:
        since = max(since, found[-1].scheduled)
    waits_for = f"waiting for stage {stage.name}: {reason}"
    if is_absent or limit is None or now - since <= limit:
        return waits_for, None
    return waits_for, Outcome(False, f"stage {stage.name} did not start within {name} ({limit} s): {reason}")
