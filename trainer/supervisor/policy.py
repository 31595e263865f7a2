"""When a run has succeeded or failed, and which restarts count. Pure: pods and notes in, notes and outcome out.

The semantics are those of Kubeflow's TFJob (the chief or all workers decide success; exit codes from 128 on are
retried); the rules of `run.failurePolicy` are those of Kubernetes' Jobs and JobSets. Evictions, preemptions and lost
nodes replace a pod and do not count. When one task restarts, others may restart because of it, so the restarts within a
minute are one incident. The limit counts incidents, and ten minutes without a restart reset the count.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainer.supervisor.diagnosis import diagnose, lacks_capacity
from trainer.supervisor.notes import CountedRestarts, Notes
from trainer.supervisor.observed import Observed
from trainer.supervisor.pods import Pod, Template, ended_by_itself
from trainer.supervisor.run import ExitAction, Run

INCIDENT_SECONDS = 60.0
"""Restarts within this time after the first one belong to the same incident."""
RESET_SECONDS = 600.0
"""This time without a restart resets the count of restarts."""
RAN_WELL_SECONDS = 30.0
"""A task that ran for this time restarts without the kubelet's back-off, which is meant for programs that fail at their
start."""
BACK_OFF_SECONDS, MAX_BACK_OFF_SECONDS = 10.0, 300.0
"""The kubelet's delay before the second restart of a container, which then doubles, and its maximum. The first restart
has none. A container that runs for 10 minutes starts from there again."""
PROMPT_SECONDS = 2.0
"""Within this time the kubelet restarts a container that it does not delay, or reports that it ended the pod itself."""
REPLACEMENT_SECONDS = 3.0
"""How long a new pod takes to start. A shorter delay is not worth one."""
OUTDATED_SECONDS = 5.0
"""A pod that is younger than this may be newer than what is known of its StatefulSet."""
OVERDUE_SECONDS = 60.0
"""A pod that still exists this long after its grace period is on a node that no longer answers."""


@dataclass(frozen=True)
class Outcome:
    """The end of a run."""

    succeeded: bool
    reason: str
    failed: tuple[str, ...] = ()
    """The names of the tasks that caused the failure."""


@dataclass(frozen=True)
class RestartAll:
    """All tasks must end and start again, because a rule of the failure policy says so."""

    reason: str


def observe_pods(run: Run, notes: Notes, pods: Iterable[Pod], now: float) -> Notes:
    """The notes, updated with the finished tasks and the restarts that these pods show.

    Args:
        run: The run.
        notes: The notes before.
        pods: Pods of the run's tasks.
        now: Seconds since 1970.
    """
    looked_at = list(pods)
    notes = _observe_starts(run, notes, looked_at, now)
    for pod in looked_at:
        if pod.name not in notes.finished:  # later changes of the pod have no effect
            notes = _observe_end(run, notes, pod, now)
    return notes


def forget_gone(notes: Notes, pods: Iterable[Pod]) -> Notes:
    """The notes without what they have about pods that no longer exist; `pods` are all those of the run's tasks."""
    if not notes.counted.seen and not notes.ungated:
        return notes
    uids = {pod.uid for pod in pods}
    return dataclasses.replace(
        notes,
        counted=dataclasses.replace(
            notes.counted, seen={uid: count for uid, count in notes.counted.seen.items() if uid in uids}
        ),
        ungated={uid: since for uid, since in notes.ungated.items() if uid in uids},
    )


def _observe_starts(run: Run, notes: Notes, pods: Iterable[Pod], now: float) -> Notes:
    """The notes with which pods a queue has admitted, the leader's pod, and the images."""
    leader, ungated, admitted, images = notes.leader, dict(notes.ungated), notes.admitted, dict(notes.images)
    for pod in pods:
        waits = pod.gated or (run.is_placed_together and not pod.node) or notes.state == "Stopping"
        admitted = admitted or (0.0 if waits else now)
        if pod.gated and not run.is_queued:
            ungated[pod.uid] = 0.0
        elif ungated.get(pod.uid) == 0.0:
            ungated[pod.uid] = now
        if pod.name == run.leader and pod.node:
            leader = pod.uid
        if pod.image and pod.name == run.task(pod.role, 0):
            images[pod.role] = pod.image
    return dataclasses.replace(notes, leader=leader, ungated=ungated, admitted=admitted, images=images)


def _observe_end(run: Run, notes: Notes, pod: Pod, now: float) -> Notes:
    """The notes with the end of a task for good, or with the restarts of its pod that are new."""
    by_itself = ended_by_itself(pod, now)
    if pod.terminating and not (by_itself and pod.terminated and pod.terminated.code == 0):
        return notes
    if pod.terminated and by_itself and run.is_final(pod.role, pod.terminated.code):
        notes = dataclasses.replace(notes, finished={**notes.finished, pod.name: pod.terminated.code})
    # The restart that parks a finished task is not a failure.
    counted = pod.restart_count - (1 if pod.name in notes.finished else 0)
    if is_replaceable(run, notes, pod, now):  # the restart that its replacement makes
        counted += 1
    new = counted - notes.counted.seen.get(pod.uid, 0)
    if new <= 0:
        return notes
    known = dataclasses.replace(notes.counted, seen={**notes.counted.seen, pod.uid: counted})
    if not (pod.terminated and run.on_exit(pod.role, pod.terminated.code) == "Ignore"):
        known = _count(known, pod.role, new, now)
    return dataclasses.replace(notes, counted=known)


def _count(known: CountedRestarts, role: str, new: int, now: float) -> CountedRestarts:
    """The counted restarts with new ones of a task."""
    if now - known.last >= RESET_SECONDS:
        known = dataclasses.replace(known, restarts=0, incidents=0)
    if not known.incidents or now - known.incident_began > INCIDENT_SECONDS:
        known = dataclasses.replace(known, incidents=known.incidents + 1, incident_began=now)
    by_role = {**known.by_role, role: known.by_role.get(role, 0) + new}
    return dataclasses.replace(known, restarts=known.restarts + new, last=now, by_role=by_role)


def is_replaceable(run: Run, notes: Notes, pod: Pod, now: float) -> bool:
    """Whether a task has run well and waits for the kubelet's back-off, so that a new pod restarts it sooner.

    The kubelet reports the back-off only when most of the first one has passed, so its length is computed here.

    Not in a queue, which would have to admit the new pod; nor in a Job, which counts its pods that were replaced.
    """
    ended = pod.terminated
    delay = (
        min(BACK_OFF_SECONDS * 2 ** min(pod.restart_count - 1, 10), MAX_BACK_OFF_SECONDS) if pod.restart_count else 0
    )
    return (
        pod.awaits_restart
        and not pod.terminating
        and ended is not None
        and ended.ran_seconds >= RAN_WELL_SECONDS
        and PROMPT_SECONDS <= now - ended.finished_at <= delay - REPLACEMENT_SECONDS
        and not run.is_final(pod.role, ended.code)
        and not run.roles[pod.role].job
        and pod.name not in notes.finished
        and pod.uid not in notes.ungated
    )


def is_outdated(run: Run, pod: Pod, template: Template | None, now: float) -> bool:
    """Whether a pod has never started, and an upgrade has changed its settings since: a new pod gets the new ones.

    Args:
        run: The run. An upgrade that fails early leaves its template of another run: a new pod would belong to that.
        pod: The pod of a task, or of the same task in another run.
        template: What new pods are made from; None if that is not known.
        now: Seconds since 1970.
    """
    if template is None or template.run_hash != run.hash or not template.revision:
        return False
    # The watch of pods may be ahead of that of StatefulSets.
    is_settled = now - pod.created >= OUTDATED_SECONDS
    return is_settled and pod.revision not in ("", template.revision) and not has_started(pod)


def outcome(run: Run, notes: Notes, observed: Observed, now: float) -> Outcome | RestartAll | None:
    """The run's outcome, or None while it continues.

    Args:
        run: The run.
        notes: The notes, updated by `observe_pods`.
        observed: What is observed.
        now: Seconds since 1970.
    """
    pods = observed.tasks
    if _has_succeeded(run, notes):
        who = run.leader if run.success_policy == "Chief" else "every worker"
        restarts = sum(notes.counted.by_role.values())
        after = f", after {restarts} restart{'s' if restarts > 1 else ''} of tasks" if restarts else ""
        return Outcome(True, f"{who} ended with code 0{after}")
    for name, code in notes.finished.items():
        if code != 0:
            ending = f"{name} failed with {_describe(pods.get(name), code)}"
            action = run.on_exit(run.role_of(name), code)
            return _restart_all(run, notes, ending, name) if action == "RestartAll" else _failure(action, ending, name)
    for name, pod in observed.unsteady_tasks.items():
        if name in notes.finished:
            continue
        on_conditions = run.failure_policy.on_conditions(pod.role, pod.conditions)
        ending = f"{pod.name} was disrupted"
        if on_conditions == "RestartAll":
            return _restart_all(run, notes, ending, pod.name)
        if on_conditions == "Fail":
            return _failure(on_conditions, ending, pod.name)
    if run.backoff_limit is not None and notes.counted.incidents > run.backoff_limit:
        return _too_many_incidents(run.backoff_limit, notes, pods)
    limit = run.active_deadline_seconds
    if limit is not None and notes.admitted and now - notes.admitted > limit:
        return Outcome(False, f"it took longer than run.activeDeadlineSeconds ({limit} s)")
    return None


def _has_succeeded(run: Run, notes: Notes) -> bool:
    """Whether all tasks on which success depends have ended with code 0."""
    if run.success_policy == "Chief":
        return notes.finished.get(run.leader) == 0
    counts = {role: notes.scales.get(role, 0) for role in ("chief", "worker")}
    if not 0 < sum(counts.values()) <= len(notes.finished):
        return False
    return all(notes.finished.get(task) == 0 for task in run.roles_of(tuple(counts.items())))


def _failure(action: ExitAction, ending: str, task: str) -> Outcome:
    why = "and run.failurePolicy fails the run" if action == "Fail" else "which is not retried"
    return Outcome(False, f"{ending}, {why}", (task,))


def _restart_all(run: Run, notes: Notes, ending: str, task: str) -> Outcome | RestartAll:
    clients = [name for name, code in notes.finished.items() if run.roles[run.role_of(name)].job and not code]
    if clients:
        return Outcome(False, f"{ending}, and all tasks cannot restart, as {clients[0]} has ended", (task,))
    limit = run.failure_policy.max_restarts
    if limit is not None and notes.counted.of_all >= limit:
        return Outcome(
            False, f"{ending}, and all tasks have restarted run.failurePolicy.maxRestarts ({limit}) times", (task,)
        )
    count = f"restart {notes.counted.of_all + 1}" + ("" if limit is None else f" of {limit}")
    return RestartAll(f"{ending}: restarting all tasks ({count})")


def _too_many_incidents(limit: int, notes: Notes, pods: Mapping[str, Pod]) -> Outcome:
    ended = [(pod.terminated.finished_at, pod.name, pod.ending) for pod in pods.values() if pod.terminated]
    _, last, how = max(ended, default=(0.0, "", ""))
    return Outcome(
        False,
        f"{notes.counted.incidents} incidents with {notes.counted.restarts} restarts exceed run.backoffLimit ({limit})"
        + (f"; the last was {last} with {how}" if last else ""),
        (last,) if last else (),
    )


@dataclass(frozen=True)
class PendingTask:
    """A task that does not run although it should, or whose host name does not resolve; it may stand for others."""

    name: str
    role: str
    since: float
    """Seconds since 1970."""
    started: bool
    """Whether it has run before: then it is restarting, or only its host name does not resolve."""
    problem: str
    """The reason that Kubernetes reports; empty if its pod has none."""
    gated: bool = False
    """Whether its pod has scheduling gates."""
    in_gang: bool = False
    """Whether it waits until there is room for all tasks of its gang."""
    held: bool = False
    """Whether its pod cannot be created because an object of the release is absent: then no limit applies either."""
    unscheduled: bool = False
    """Whether its pod has no node, and Kubernetes finds none or does not create the pod."""
    unresolved: bool = False
    """Whether its pod runs, and only its host name does not resolve."""
    alike: int = 1
    """How many tasks without a pod wait alike, of which this is the first; 1 for a task with a pod."""

    @property
    def waits(self) -> bool:
        """Whether a queue or a gang holds it back: then no limit applies."""
        return self.gated or self.in_gang

    @property
    def lacks_capacity(self) -> bool:
        """Whether it waits for a node or for quota, and nothing is wrong with the run itself."""
        return self.unscheduled and lacks_capacity(self.problem)


def pending_tasks(run: Run, notes: Notes, observed: Observed, now: float) -> list[PendingTask]:
    """The tasks that the run waits for, in their order.

    Args:
        run: The run.
        notes: The notes, updated by `observe_pods`.
        observed: What is observed.
        now: Seconds since 1970.
    """
    expected = expected_tasks(run, notes)
    alike: dict[object, list[str]] = {}
    for name, role in expected.items():
        if name in notes.finished or (name in observed.steady and role in observed.scales):
            continue
        # At the start of a large run thousands have no pod, and wait alike.
        absent = role, observed.absent.get(name), observed.warnings.get(name)
        alike.setdefault(name if name in observed.pods else absent, []).append(name)
    # A gang that waits holds nothing. Once a pod has a node, all have, or this one is scheduled alone.
    scheduled = [pod.scheduled for pod in observed.pods.values() if pod.node] if run.is_placed_together else [0.0]
    placed = min(scheduled, default=None)
    found = []
    for names in alike.values():
        if task := _pending_task(run, notes, observed, names[0], expected[names[0]], placed, now):
            task = with_warning(run, task, observed.warnings)
            found.append(dataclasses.replace(task, alike=len(names)) if len(names) > 1 else task)
    return found


def _pending_task(
    run: Run, notes: Notes, observed: Observed, name: str, role: str, placed: float | None, now: float
) -> PendingTask | None:
    """What a task waits for, if it does. `placed` is when a gang got its first node; None if it waits for nodes."""
    pod, lookup, absent = observed.pods.get(name), observed.unresolved.get(name), observed.absent.get(name, now)
    if role not in observed.scales:
        kind = "Job" if run.roles[role].job else "StatefulSet"
        problem = f"absent: the {kind} {run.roles[role].job or run.stateful_set(role)}"
        return PendingTask(name, role, absent, False, problem, held=True)
    if pod and pod.run_hash != run.hash:
        return PendingTask(name, role, max(notes.started, absent), False, f"another run: {pod.pod_name}")
    if pod is None:
        return PendingTask(name, role, max(notes.started, absent), False, "", unscheduled=True)
    if pod.deadline is not None and now - pod.deadline > OVERDUE_SECONDS:
        return PendingTask(name, role, pod.deadline, True, f"lost node: {pod.node}")
    since = _since(run, notes, pod, placed or 0.0)
    if pod.problem or not has_started(pod):
        waits = placed is None
        unscheduled = bool(pod.problem) and not pod.node and not pod.gated and not waits
        started = has_started(pod)
        return PendingTask(name, role, since, started, pod.problem, pod.gated, waits, unscheduled=unscheduled)
    if lookup and not pod.terminated:  # a task that keeps ending has no address for a while, each time
        since = max(since, lookup.since)
        return PendingTask(name, role, since, True, f"does not resolve: {lookup.host}", unresolved=True)
    return None


def with_warning(run: Run, task: PendingTask, warnings: Mapping[str, str]) -> PendingTask:
    """The task with why it does not run: from its pod's status, else the last warning about it or its owner."""
    if task.problem or not warnings:
        return task
    owner = run.roles[task.role].job or run.stateful_set(task.role)
    return dataclasses.replace(task, problem=warnings.get(task.name) or warnings.get(owner, ""))


def explain(task: PendingTask) -> str:
    """Why a task does not run, in one sentence with the remedy."""
    return diagnose(task.role, task.problem)


def _since(run: Run, notes: Notes, pod: Pod, placed: float) -> float:
    """Since when a pod has been able to start, in seconds since 1970. `placed` is when the first one got its node."""
    queued = notes.admitted if run.gang else notes.ungated.get(pod.uid, 0.0)
    return max(notes.started, pod.created, pod.scheduled, placed if run.is_placed_together else queued)


def start_outcome(run: Run, notes: Notes, pending: Iterable[PendingTask], now: float) -> Outcome | None:
    """The outcome of a run if one of its tasks did not start in time, else None.

    Once every task has run, replacements have a limit of their own. A host name that does not resolve fails no run: the
    supervisor asks from its own pod, which a network policy may keep from the DNS.

    Args:
        run: The run.
        notes: The notes, updated by `observe_pods`.
        pending: The result of `pending_tasks`.
        now: Seconds since 1970.
    """
    for task in pending:
        if task.started or task.waits or task.held:
            continue
        if not notes.running and task.lacks_capacity:
            name, limit = "run.schedulingTimeoutSeconds", run.scheduling_timeout_seconds
        elif notes.running:
            name, limit = "run.replacementTimeoutSeconds", run.replacement_timeout_seconds
        else:
            name, limit = "run.startTimeoutSeconds", run.start_timeout_seconds
        if limit is not None and now - task.since > limit:
            return Outcome(False, f"{task.name} did not start within {name} ({limit} s): {explain(task)}", (task.name,))
    return None


def expected_tasks(run: Run, notes: Notes) -> Mapping[str, str]:
    """The roles of the tasks that should exist, by task, in their order."""
    return run.roles_of(tuple((role, notes.scales.get(role, 0)) for role in run.roles))


def has_started(pod: Pod) -> bool:
    """Whether the task's container has run at least once."""
    return pod.running or pod.terminated is not None or pod.restart_count > 0


def _describe(pod: Pod | None, code: int) -> str:
    return pod.ending if pod and pod.terminated and pod.terminated.code == code else f"code {code}"
