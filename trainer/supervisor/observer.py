"""Observes one run: applies what the watches show, and reads what else a decision needs before each one."""

import time
from collections.abc import Mapping, Sequence

from lightkube.resources.core_v1 import Event

from trainer.supervisor import lifecycle, pods, policy, stages
from trainer.supervisor.changes import Change, StopRequested, WarningReported, WatchFailed
from trainer.supervisor.connection import UNAVAILABLE
from trainer.supervisor.dns import DnsProbe
from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.kueue import Placement, Workload
from trainer.supervisor.kueue_api import KueueApi, UnreadableError
from trainer.supervisor.notes import Notes
from trainer.supervisor.observed import Done, Observed, Placements
from trainer.supervisor.pods import Pod, lacks_termination, with_logged_termination
from trainer.supervisor.run import Run
from trainer.supervisor.scales import TENSORBOARD
from trainer.supervisor.task_logs import TaskLogs
from trainer.supervisor.view import View

PREDECESSOR_SECONDS = 60.0
"""An owner looks this often whether the release wants an earlier supervisor again, which has ended."""
STAGE_SECONDS = 5.0
"""The time between two looks at the pods of the current stage."""
FLAVOR_SECONDS = 5.0
"""The time between two attempts to read flavors that could not be read."""
CLOCK_SECONDS = 10.0
"""How much the clocks of two machines of the cluster may differ."""
NO_ACCOUNT = "error looking up service account"
"""In Kubernetes' message about a pod that it does not create, because the service account does not exist."""


class Observer:
    """What one supervisor has seen of one run."""

    def __init__(
        self, run: Run, api: KubernetesApi, kueue: KueueApi, logs: TaskLogs, dns: DnsProbe, view: View
    ) -> None:
        self._run, self._api, self._kueue, self._logs, self._dns = run, api, kueue, logs, dns
        self.view = view
        self.tasks = {name: pod for name, pod in (view.pods or {}).items() if self._is_own(pod)}
        """The pods of this run, by task."""
        self.since = 0.0
        """When the run has started, in seconds since 1970: earlier warnings are about another one."""
        self._warnings: dict[str, str] = {}
        self._state = ""
        """The state of the run in the last pass."""
        self._steady: set[str] = set()
        """Those of `Observed` in the next pass, if the state is the same and their pods do not change."""
        self._confirmed: Mapping[str, int] = {}
        self._absent: dict[str, float] = {}
        self._workload_absent: float | None = None
        self._placements = Placements()
        self._unread: frozenset[str] = frozenset()
        """The flavors of an admission, of which one could not be read."""
        self._read_at = self._looked_at_stage = 0.0
        self._looked_for_predecessor = time.time()
        self._tensorboard_left = False
        self._done = Done()

    def apply(self, batch: Sequence[Change], finished: Mapping[str, int]) -> None:
        """Apply changes to the view, and look into the logs of changed pods that lack their termination.

        Args:
            batch: The changes.
            finished: The tasks that have ended for good.
        """
        changed: set[str] = set()
        for change in batch:
            match change:
                case WarningReported(event):
                    self._keep_warning(event)
                case StopRequested() | WatchFailed():
                    pass
                case _:
                    changed.update(self.view.apply(change))
        self._steady -= changed
        there = {} if self.view.pods is None else self.view.pods
        for name in changed:
            self.tasks.pop(name, None)
            pod = there.get(name)
            if pod is None or not self._is_own(pod):
                continue
            if lacks_termination(pod) and name not in finished:
                pod = with_logged_termination(pod, self._logs.last_line(pod.pod_name, pod.role), time.time())
            self.tasks[name] = there[name] = pod

    def _is_own(self, pod: Pod) -> bool:
        """Whether a pod is that of a task of this run."""
        return pod.run_hash == self._run.hash and self._run.lists(pod.name)

    def _keep_warning(self, event: Event) -> None:
        """Keep the last warning about each pod or its owner: it has reasons that no status has, such as a volume's."""
        about = event.involvedObject.name or ""
        if NO_ACCOUNT in (event.message or ""):  # a stage whose turn it is not
            return
        if _time_of(event) < self.since - CLOCK_SECONDS:  # about an earlier run, whose objects had the same names
            return
        jobs = [role.job for role in self._run.roles.values() if role.job]
        owners = (job for job in [*jobs, *(stage.job for stage in self._run.stages.all)] if about.startswith(job))
        self._warnings[next(owners, about)] = f"{event.reason}: {event.message}"

    def begin(self, notes: Notes) -> None:
        """Take the notes with which the supervisor begins: their scales have been observed before."""
        self.since = notes.started
        self._confirmed = notes.scales if notes.state == "Running" else {}

    def observe(self, notes: Notes, saved: int, now: float, leaves: bool = False) -> Observed:
        """What is observed now.

        Args:
            notes: The notes of the last pass.
            saved: When the leader saved its last checkpoint, in seconds since 1970; 0 if that is not known.
            now: Seconds since 1970.
            leaves: Whether the supervisor leaves the run, so that only its predecessor matters.
        """
        view, run = self.view, self._run
        there, confirmed = view.pods or {}, self._confirmed
        predecessor = self._predecessor(notes, now, leaves)
        state = lifecycle.advance(run, notes, there, view.scales, now).state
        if state != self._state:
            self._state = state
            self._steady.clear()
        if not (leaves or predecessor):
            self._confirmed = view.scales
            self._workload_absent = None if view.workload else (self._workload_absent or now)
            self._read_flavors(state, view.workload, now)
            if state in lifecycle.TRAINING:
                absent = policy.expected_tasks(run, notes).keys() - self.tasks.keys()
                self._absent = {name: self._absent.get(name, now) for name in absent}
            may_leave = notes.has_ended and run.tensorboard and run.tensorboard.leaves_node
            if may_leave and not self._tensorboard_left and view.scales.get(TENSORBOARD) == 0:
                self._tensorboard_left = not self._api.has_tensorboard()
        observed = Observed(
            pods=there,
            tasks=self.tasks,
            steady=frozenset(self._steady),
            scales=view.scales,
            confirmed=confirmed,
            templates=view.templates,
            jobs=view.stages or {},
            workload=view.workload,
            workload_absent=self._workload_absent,
            placements=self._placements,
            flavors_unread=bool(self._unread),
            absent=self._absent,
            unresolved=self._dns.unresolved(),
            warnings=self._warnings,
            stage_pods=None if leaves or predecessor else self._stage_pods(notes, now),
            tensorboard_left=self._tensorboard_left,
            predecessor=predecessor,
            saved=saved,
            done=self._done,
        )
        if state in lifecycle.TRAINING and not (leaves or predecessor):
            looked_at = observed.unsteady_tasks
            self._dns.look_up(looked_at.values())
            self._steady.update(
                name for name, pod in looked_at.items() if pod.is_steady and self._dns.has_resolved(pod)
            )
        return observed

    def _predecessor(self, notes: Notes, now: float, leaves: bool) -> str:
        """The Job of an earlier supervisor that the release wants again, if it has ended: nothing would end the run."""
        if notes.state not in lifecycle.UNENDED:
            return ""
        if not leaves and now - self._looked_for_predecessor < PREDECESSOR_SECONDS:
            return ""
        self._looked_for_predecessor = now
        return self._api.ended_predecessor()

    def _stage_pods(self, notes: Notes, now: float) -> list[Pod] | None:
        stage = stages.current(self._run, notes)
        if stage is None or now - self._looked_at_stage < STAGE_SECONDS:
            return None
        if now - notes.stages[stage.name].started < stages.START_GRACE_SECONDS:
            return None
        self._looked_at_stage = now
        return [pods.observe(pod) for pod in self._api.stage_pods(stage.job)]

    def _read_flavors(self, state: str, workload: Workload | None, now: float) -> None:
        """Find out what the pods of each role get, if that is not known; or whether it can be known by now."""
        if workload and workload.admits(self._run):
            is_known = self._placements.workload == workload.uid
            if state == "Queued" or (state in lifecycle.TRAINING and not is_known):
                self._placements = self._place(workload)
        elif state == "Queued" and workload is None and self._unread and now - self._read_at >= FLAVOR_SECONDS:
            self._read_at = now
            self._flavors(self._unread)

    def _place(self, workload: Workload) -> Placements:
        """What the pods of an admitted run get."""
        flavors = self._flavors(frozenset[str]().union(*workload.flavors.values()))
        if isinstance(flavors, str):
            return Placements(problem=flavors)
        found = {}
        for role, names in workload.flavors.items():
            placement = workload.updates.get(role, Placement())
            for name in sorted(names):
                placement = placement | flavors[name]
            found[role] = placement
        return Placements(workload.uid, found)

    def _flavors(self, names: frozenset[str]) -> Mapping[str, Placement] | str:
        """What flavors add to pods, by name; or why they cannot be read, with the remedy."""
        try:
            flavors = {name: self._kueue.flavor(name) for name in names}
        except UnreadableError as error:
            self._unread, self._done.unreadable = names, str(error)
            return str(error)
        except UNAVAILABLE as error:
            return f"a flavor cannot be read: {error}"
        self._unread = frozenset()
        return flavors


def _time_of(event: Event) -> float:
    """When an event was last seen, in seconds since 1970."""
    created = event.metadata.creationTimestamp if event.metadata else None
    moment = event.lastTimestamp or event.eventTime or created
    return moment.timestamp() if moment else 0.0
