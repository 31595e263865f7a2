"""When a run has succeeded or failed, and which restarts count. Pure: pods and notes in, notes and outcome out.

The semantics are those of Kubeflow's TFJob (the chief or all workers decide success; exit codes from 128 on are
retried). Evictions, preemptions and lost nodes replace a pod and do not count. When one task restarts, others may
restart because of it, so the restarts within a minute are one incident. The limit counts incidents, and ten minutes
without a restart reset the count.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from trainer.supervisor.dns import Unresolved
from trainer.supervisor.notes import Notes
from trainer.supervisor.pods import Pod, ended_by_itself
from trainer.supervisor.run import Run

INCIDENT_SECONDS = 60.0
"""Restarts within this time after the first one belong to the same incident."""
RESET_SECONDS = 600.0
"""This time without a restart resets the count of restarts."""


@dataclass(frozen=True)
class Outcome:
    """The end of a run."""

    succeeded: bool
    reason: str
    failed: tuple[str, ...] = ()
    """The names of the tasks that caused the failure."""


def observe_pods(run: Run, notes: Notes, pods: Iterable[Pod], now: float) -> Notes:
    """The notes, updated with the finished tasks and the restarts that these pods show.

    Args:
        run: The run.
        notes: The notes before.
        pods: All pods of the run's tasks.
        now: Seconds since 1970.
    """
    finished, seen = dict(notes.finished), dict(notes.seen)
    restarts, incidents, by_role = notes.restarts, notes.incidents, dict(notes.restarts_by_role)
    restarted, incident_began = notes.restarted, notes.incident_began
    leader, ungated = notes.leader, dict(notes.ungated)
    for pod in pods:
        if pod.gated:
            ungated[pod.uid] = 0.0
        elif ungated.get(pod.uid) == 0.0:
            ungated[pod.uid] = now
        if pod.name == run.leader and pod.scheduled:
            leader = pod.uid
        if pod.name in notes.finished:  # later changes of the pod have no effect
            continue
        if pod.terminating and not (ended_by_itself(pod) and pod.terminated and pod.terminated.code == 0):
            continue
        if pod.terminated and run.roles[pod.role].is_final(pod.terminated.code):
            finished[pod.name] = pod.terminated.code
        # The restart that parks a finished task is not a failure.
        counted = pod.restart_count - (1 if pod.name in finished else 0)
        new = counted - seen.get(pod.uid, 0)
        if new > 0:
            if now - restarted >= RESET_SECONDS:
                restarts = incidents = 0
            if not incidents or now - incident_began > INCIDENT_SECONDS:
                incidents, incident_began = incidents + 1, now
            restarts += new
            restarted = now
            by_role[pod.role] = by_role.get(pod.role, 0) + new
            seen[pod.uid] = counted
    return dataclasses.replace(
        notes,
        finished=finished,
        seen=seen,
        restarts=restarts,
        restarted=restarted,
        incidents=incidents,
        incident_began=incident_began,
        restarts_by_role=by_role,
        leader=leader,
        ungated=ungated,
    )


def outcome(run: Run, notes: Notes, pods: Mapping[str, Pod], scale: Mapping[str, int], now: float) -> Outcome | None:
    """The run's outcome, or None while it continues.

    Args:
        run: The run.
        notes: The notes, updated by `observe_pods`.
        pods: The pods of the run's tasks, by task.
        scale: The current replicas of each role.
        now: Seconds since 1970.
    """
    failed = {pod: code for pod, code in notes.finished.items() if code != 0}
    if run.success_policy == "Chief":
        needed = {run.leader}
    else:
        needed = {
            f"{run.fullname}-{role}-{index}" for role in ("chief", "worker") for index in range(scale.get(role, 0))
        }
    if needed and all(notes.finished.get(pod) == 0 for pod in needed):
        who = run.leader if run.success_policy == "Chief" else "every worker"
        return Outcome(True, f"{who} ended with code 0")
    if failed:
        pod, code = next(iter(failed.items()))
        return Outcome(False, f"{pod} failed with {_describe(pods.get(pod), code)}, which is not retried", (pod,))
    if run.backoff_limit is not None and notes.incidents > run.backoff_limit:
        culprits = sorted(
            (pod for pod in pods.values() if pod.terminated),
            key=lambda pod: -(pod.terminated.finished_at if pod.terminated else 0),
        )
        last = culprits[0] if culprits else None
        ending = f"; the last was {last.name} with {last.terminated}" if last else ""
        return Outcome(
            False,
            f"{notes.incidents} incidents with {notes.restarts} restarts exceed run.backoffLimit "
            f"({run.backoff_limit}){ending}",
            (last.name,) if last else (),
        )
    if run.active_deadline_seconds is not None and now - notes.started > run.active_deadline_seconds:
        return Outcome(False, f"it took longer than run.activeDeadlineSeconds ({run.active_deadline_seconds} s)")
    return None


@dataclass(frozen=True)
class PendingTask:
    """A task that does not run although it should, or whose host name does not resolve."""

    name: str
    role: str
    since: float
    """Seconds since 1970."""
    started: bool
    """Whether it has run and its name resolved before: then it is restarting."""
    problem: str
    """The reason that Kubernetes reports; empty if its pod has none."""
    gated: bool = False
    """Whether its pod has scheduling gates."""
    unresolved: bool = False
    """Whether its pod runs, and only its host name does not resolve."""


def pending_tasks(
    run: Run,
    notes: Notes,
    pods: Mapping[str, Pod],
    absent: Mapping[str, float],
    expected: Iterable[tuple[str, str]],
    unresolved: Mapping[str, Unresolved],
) -> list[PendingTask]:
    """The tasks that the run waits for.

    Args:
        run: The run.
        notes: The notes, updated by `observe_pods`.
        pods: The pods of the run's tasks, by task.
        absent: By the names of pods that do not exist: since when, in seconds since 1970.
        expected: The result of `expected_pods`.
        unresolved: By task: host names that do not resolve.
    """
    found = []
    for name, role in expected:
        pod = pods.get(name)
        lookup = unresolved.get(name)
        started = pod is not None and has_started(pod) and not lookup
        problem = pod.problem if pod else ""
        only_unresolved = lookup is not None and not problem
        if lookup and only_unresolved:
            problem = f"does not resolve: {lookup.host}"
        if name not in notes.finished and (problem or not started):
            since = [notes.started]
            since += [pod.created, notes.ungated.get(pod.uid, 0.0)] if pod else [absent[name]]
            since += [lookup.since] if lookup and only_unresolved else []
            gated = pod is not None and pod.gated
            found.append(PendingTask(name, role, max(since), started, problem, gated, only_unresolved))
    return found


def start_outcome(
    run: Run, notes: Notes, pending: Iterable[PendingTask], now: float, explain: Callable[[PendingTask], str]
) -> Outcome | None:
    """The outcome of a run if one of its tasks did not start in time, else None.

    Once every task has run, replacements have a limit of their own. Once every name has resolved, a name that does not
    resolve fails no run: the tasks know each other's addresses by then.

    Args:
        run: The run.
        notes: The notes, updated by `observe_pods`.
        pending: The result of `pending_tasks`.
        now: Seconds since 1970.
        explain: Returns a sentence on why a task does not run.
    """
    for task in pending:
        if task.started or task.gated or (task.unresolved and notes.resolved):
            continue
        if notes.running and not task.unresolved:
            name, limit = "run.replacementTimeoutSeconds", run.replacement_timeout_seconds
        else:
            name, limit = "run.startTimeoutSeconds", run.start_timeout_seconds
        if limit is not None and now - task.since > limit:
            return Outcome(False, f"{task.name} did not start within {name} ({limit} s): {explain(task)}", (task.name,))
    return None


def expected_pods(run: Run, scale: Mapping[str, int]) -> list[tuple[str, str]]:
    """The names and roles of the pods that should exist."""
    return [(f"{run.fullname}-{role}-{index}", role) for role in run.roles for index in range(scale.get(role, 0))]


def has_started(pod: Pod) -> bool:
    """Whether the task's container has run at least once."""
    return pod.running or pod.terminated is not None or pod.restart_count > 0


def _describe(pod: Pod | None, code: int) -> str:
    return str(pod.terminated) if pod and pod.terminated and pod.terminated.code == code else f"code {code}"
