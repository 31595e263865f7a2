"""The place of a run in Kueue's queue: asks for it, starts the tasks when it is admitted, and gives it back.

With every other value of scheduling.gang, nothing here has an effect.
"""

import logging
from collections.abc import Mapping

from trainer.supervisor import kueue, lifecycle
from trainer.supervisor.connection import UNAVAILABLE
from trainer.supervisor.kueue import Placement, Workload
from trainer.supervisor.kueue_api import KueueApi, UnreadableError
from trainer.supervisor.notes import ElasticNotes, Notes
from trainer.supervisor.pods import Pod
from trainer.supervisor.reporter import ANNOTATIONS, Reporter, checkpoint_annotation
from trainer.supervisor.run import Run
from trainer.supervisor.sent import Sent

logger = logging.getLogger(__name__)

NOT_CREATED = "its Workload does not exist yet"
PUBLISH_SECONDS = 60.0
"""The time between two annotations of the last checkpoint."""
ABSENT_SECONDS = 30.0
"""A Workload that is absent for this long is deleted. A server that has just started may answer 404."""


class QueueControl:
    """What this supervisor has done for the run's place in the queue."""

    def __init__(self, run: Run, api: KueueApi, reporter: Reporter) -> None:
        self._run, self._api, self._reporter = run, api, reporter
        self._sent = Sent()
        self._placements: tuple[str, Mapping[str, Placement]] = ("", {})
        """What the pods of each role get, and the uid of the Workload that it belongs to."""
        self._unreadable = ""
        """Why there is no Workload: what the supervisor must read first."""
        self._unread_flavors: frozenset[str] = frozenset()
        """The flavors of an admission, of which one could not be read."""
        self._absent_since: float | None = None
        """Since when there is no Workload, in seconds since 1970; None if there is one."""
        self._published, self._published_at = 0, 0.0
        """The time of a checkpoint that is published, and when it was."""

    def advance(self, notes: Notes, workload: Workload | None, now: float) -> Notes:
        """The notes after Kueue has admitted or evicted the run."""
        run = self._run
        if not run.is_queued:
            return notes
        admitted = workload if workload and workload.admits(run) else None
        self._absent_since = None if workload else (self._absent_since or now)
        is_deleted = self._absent_since is not None and now - self._absent_since >= ABSENT_SECONDS
        if notes.state == "Queued":
            if admitted:
                problem = self._place(admitted)
            else:
                problem = workload.problem if workload else self._unreadable or NOT_CREATED
            if admitted and not problem:
                return self._start(notes, admitted, now)
            self._reporter.report_queue(notes, problem, now)
        elif notes.state in ("Starting", "Running") and (is_deleted or (workload and not admitted)):
            what = "the tasks save a checkpoint and end, and the run waits in the queue again"
            self._reporter.report_eviction(f"{_eviction(run, workload)}: {what}")
            return lifecycle.enter(run, notes, "evicted", admitted=0.0, running=0.0)
        return notes

    def _start(self, notes: Notes, workload: Workload, now: float) -> Notes:
        counts = {role: workload.counts.get(role, scale) for role, scale in notes.replicas.items()}
        fewer = [f"{n} of {notes.replicas[role]} {role}" for role, n in counts.items() if n < notes.replicas[role]]
        if workload.topologies:
            logger.warning(
                f"Kueue has chosen nodes for {', '.join(workload.topologies)} (topologyAssignment), and these tasks "
                "may run on others: use flavors without topologyName, and scheduling.placement to keep tasks close"
            )
        if fewer:
            logger.info(f"Kueue has admitted {', '.join(fewer)} (run.elastic)")
        elastic = ElasticNotes(wanted=counts.get("worker", 0))
        return lifecycle.enter(self._run, notes, "admitted", started=now, scales=counts, elastic=elastic)

    def _place(self, workload: Workload) -> str:
        """Find out what the pods of each role get; return what prevents that, with the remedy, else nothing."""
        found = {}
        used = frozenset[str]().union(*workload.flavors.values())
        try:
            flavors = {name: self._api.flavor(name) for name in used}
        except UnreadableError as error:
            self._unreadable, self._unread_flavors = str(error), used
            return self._unreadable
        except UNAVAILABLE as error:
            return f"a flavor cannot be read: {error}"
        self._unread_flavors = frozenset()
        for role, names in workload.flavors.items():
            placement = workload.updates.get(role, Placement())
            for name in sorted(names):
                placement = placement | flavors[name]
            found[role] = placement
        self._placements = (workload.uid, found)
        return ""

    def reconcile(self, notes: Notes, workload: Workload | None, pods: Mapping[str, Pod], now: float) -> None:
        """Create, free, finish or delete the Workload, and let the pods of admitted tasks be scheduled."""
        if not self._run.is_queued:
            return
        if notes.state in ("Preparing", "Queued"):
            self._reconcile_waiting(notes, workload, now)
        elif workload is None:
            return
        elif notes.state in ("Starting", "Running"):
            self._reconcile_running(notes, workload, pods, now)
        elif notes.state == "Suspended" and lifecycle.are_gone(pods.values()) and self._sent.is_due("delete", now):
            self._api.delete()
        elif self.is_over(notes) and not workload.has("Finished") and self._is_freed(pods):
            reason = "Failed" if notes.state == "Failed" else "Succeeded"
            if self._sent.is_due("finish", now):
                self._api.set_conditions(workload, {"Finished": (True, reason, notes.reason or notes.training)})

    def _reconcile_waiting(self, notes: Notes, workload: Workload | None, now: float) -> None:
        if workload is None:
            if notes.state == "Queued" and self._sent.is_due("create", now):
                self._create()
        elif workload.run_hash != self._run.hash or workload.has("Finished") or self._unread_flavors:
            if self._sent.is_due("delete", now):  # without its flavors the run would hold a quota that it cannot use
                self._api.delete()
        elif workload.has("Evicted") and workload.has("QuotaReserved") and self._sent.is_due("free", now):
            self._api.set_conditions(workload, kueue.released(workload), frees_quota=True)

    def _create(self) -> None:
        try:
            for name in self._unread_flavors:
                self._api.flavor(name)
            self._unreadable, self._unread_flavors = "", frozenset()
            self._api.create()
        except UnreadableError as error:
            self._unreadable = str(error)
        except UNAVAILABLE:
            return  # the next passes try again

    def _reconcile_running(self, notes: Notes, workload: Workload, pods: Mapping[str, Pod], now: float) -> None:
        if not workload.admits(self._run):
            return
        if self._placements[0] != workload.uid and self._place(workload):  # a new supervisor
            return
        gated = [
            pod
            for pod in pods.values()
            if pod.gated and pod.run_hash == self._run.hash and not pod.terminating and workload.covers(pod)
        ]
        due = [pod for pod in gated if self._sent.is_due(pod.uid, now)]
        self._api.open_gates((pod.pod_name, self._placements[1].get(pod.role, Placement())) for pod in due)
        self._publish_checkpoint(pods.get(self._run.leader), now)
        if notes.running and not workload.has("PodsReady") and self._sent.is_due("ready", now):
            self._api.set_conditions(workload, {"PodsReady": (True, "Started", "Every task has started")})

    def _publish_checkpoint(self, leader: Pod | None, now: float) -> None:
        """Annotate the Workload and the leader's pod with the time of the last checkpoint, at most once a minute.

        A scheduler that preempts may choose by it. A thousand pods with it would be a thousand requests.
        """
        saved = self._reporter.saved
        if saved == self._published or now - self._published_at < PUBLISH_SECONDS:
            return
        self._published, self._published_at = saved, now
        annotations = {f"{ANNOTATIONS}/{key}": value for key, value in checkpoint_annotation(saved).items()}
        self._api.annotate(annotations)
        if leader:
            self._api.annotate_pod(leader.pod_name, annotations)

    def is_settled(self, notes: Notes, workload: Workload | None) -> bool:
        """Whether the quota of a run that has ended, or is suspended, is given back."""
        if not self._run.is_queued or workload is None:
            return True
        return notes.state != "Suspended" and workload.has("Finished")

    def is_over(self, notes: Notes) -> bool:
        """Whether the training needs no quota any more."""
        return notes.state == "Finishing" or notes.has_ended

    def _is_freed(self, pods: Mapping[str, Pod]) -> bool:
        """Whether the tasks have ended, or stay because run.cleanPodPolicy says so."""
        return self._run.clean_pod_policy != "All" or lifecycle.are_gone(pods.values())


def _eviction(run: Run, workload: Workload | None) -> str:
    """Why the tasks must end."""
    if workload is None:
        return f"the Workload {run.fullname} was deleted"
    if workload.has("Evicted"):
        return f"Kueue has evicted the run ({workload.eviction})"
    return "Kueue has not admitted this run"
