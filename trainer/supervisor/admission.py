"""The place of a run in Kueue's queue: when the tasks start, when they must end, and what Kueue is asked for. Pure.

With every other value of scheduling.gang, nothing here has an effect.
"""

from collections.abc import Iterator, Sequence

from trainer.supervisor import kueue, lifecycle
from trainer.supervisor.actions import Action, ChangeWorkload, OpenGate, PublishCheckpoint, SetConditions
from trainer.supervisor.decision import Report
from trainer.supervisor.kueue import Placement, Workload
from trainer.supervisor.notes import ElasticNotes, Notes
from trainer.supervisor.observed import Observed
from trainer.supervisor.run import Run

NOT_CREATED = "its Workload does not exist yet"
PUBLISH_SECONDS = 60.0
"""The time between two annotations of the last checkpoint. A thousand pods with it would be a thousand requests."""
ABSENT_SECONDS = 30.0
"""A Workload that is absent for this long is deleted. A server that has just started may answer 404."""
GRACE_SECONDS = 3.0
"""A run that is queued for longer than this is reported: what Kueue says first is often outdated a second later."""


def advance(run: Run, notes: Notes, observed: Observed, now: float) -> tuple[Notes, Sequence[Report], str]:
    """The notes after Kueue has admitted or evicted the run, the reports, and what the run waits for."""
    if not run.is_queued:
        return notes, [], ""
    workload, absent = observed.workload, observed.workload_absent
    admitted = workload if workload and workload.admits(run) else None
    is_deleted = absent is not None and now - absent >= ABSENT_SECONDS
    if notes.state == "Queued":
        if admitted and observed.placements.workload == admitted.uid:
            return _start(run, notes, admitted, now)
        if admitted:
            problem = observed.placements.problem
        else:
            problem = workload.problem if workload else observed.done.unreadable or NOT_CREATED
        is_due = now - notes.started >= GRACE_SECONDS
        return notes, [], f"waiting in the queue {run.gang.queue if run.gang else ''}: {problem}" if is_due else ""
    if notes.state in lifecycle.TRAINING and (is_deleted or (workload and not admitted)):
        what = "the tasks save a checkpoint and end, and the run waits in the queue again"
        report = Report(f"{_eviction(run, workload)}: {what}", "RunEvicted", "Warning")
        return lifecycle.enter(run, notes, "evicted", admitted=0.0, running=0.0), [report], ""
    return notes, [], ""


def _start(run: Run, notes: Notes, workload: Workload, now: float) -> tuple[Notes, Sequence[Report], str]:
    counts = {role: workload.counts.get(role, scale) for role, scale in notes.replicas.items()}
    fewer = [f"{n} of {notes.replicas[role]} {role}" for role, n in counts.items() if n < notes.replicas[role]]
    reports = []
    if workload.topologies:
        reports.append(
            Report(
                f"Kueue has chosen nodes for {', '.join(workload.topologies)} (topologyAssignment), and these tasks "
                "may run on others: use flavors without topologyName, and scheduling.placement to keep tasks close",
                kind="Warning",
            )
        )
    if fewer:
        reports.append(Report(f"Kueue has admitted {', '.join(fewer)} (run.elastic)"))
    elastic = ElasticNotes(wanted=counts.get("worker", 0))
    return lifecycle.enter(run, notes, "admitted", started=now, scales=counts, elastic=elastic), reports, ""


def _eviction(run: Run, workload: Workload | None) -> str:
    """Why the tasks must end."""
    if workload is None:
        return f"the Workload {run.fullname} was deleted"
    if workload.has("Evicted"):
        return f"Kueue has evicted the run ({workload.eviction})"
    return "Kueue has not admitted this run"


def needed(run: Run, notes: Notes, observed: Observed, now: float) -> Iterator[Action]:
    """Create, free, finish or delete the Workload, and let the pods of admitted tasks be scheduled."""
    workload, delete = observed.workload, ChangeWorkload("Workload", "delete")
    if not run.is_queued:
        return
    if notes.state in ("Preparing", "Queued"):
        yield from _while_waiting(run, notes, observed)
    elif workload is None:
        return
    elif notes.state in lifecycle.TRAINING:
        yield from _while_training(run, notes, workload, observed, now)
    elif notes.state == "Suspended" and lifecycle.are_gone(observed.pods.values()):
        yield delete
    elif needs_no_quota(notes) and not workload.has("Finished") and _is_freed(run, observed):
        reason = "Failed" if notes.state == "Failed" else "Succeeded"
        yield SetConditions("finish", workload, {"Finished": (True, reason, notes.reason or notes.training)})


def _while_waiting(run: Run, notes: Notes, observed: Observed) -> Iterator[Action]:
    workload = observed.workload
    if workload is None:
        if notes.state == "Queued" and not observed.flavors_unread:
            yield ChangeWorkload("Workload", "create")
    elif workload.run_hash != run.hash or workload.has("Finished") or observed.flavors_unread:
        # Without its flavors the run would hold a quota that it cannot use.
        yield ChangeWorkload("Workload", "delete")
    elif workload.has("Evicted") and workload.has("QuotaReserved"):
        yield SetConditions("free", workload, kueue.released(workload), frees_quota=True)


def _while_training(run: Run, notes: Notes, workload: Workload, observed: Observed, now: float) -> Iterator[Action]:
    placements, done = observed.placements, observed.done
    if not workload.admits(run) or placements.workload != workload.uid:
        return
    for pod in observed.unsteady.values():
        if pod.gated and pod.run_hash == run.hash and not pod.terminating and workload.covers(pod):
            yield OpenGate(pod.uid, pod.pod_name, placements.by_role.get(pod.role, Placement()))
    if observed.saved != done.published and now - done.published_at >= PUBLISH_SECONDS:
        leader = observed.pods.get(run.leader)
        yield PublishCheckpoint("checkpoint", observed.saved, leader.pod_name if leader else None)
    if notes.running and not workload.has("PodsReady"):
        yield SetConditions("ready", workload, {"PodsReady": (True, "Started", "Every task has started")})


def is_settled(run: Run, notes: Notes, workload: Workload | None) -> bool:
    """Whether the quota of a run that has ended, or is suspended, is given back."""
    if not run.is_queued or workload is None:
        return True
    return notes.state != "Suspended" and workload.has("Finished")


def needs_no_quota(notes: Notes) -> bool:
    """Whether the training needs no quota any more."""
    return notes.state == "Finishing" or notes.has_ended


def _is_freed(run: Run, observed: Observed) -> bool:
    """Whether the tasks have ended, or stay because run.cleanPodPolicy says so."""
    return run.clean_pod_policy != "All" or lifecycle.are_gone(observed.pods.values())
