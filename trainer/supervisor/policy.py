"""When a run has succeeded or failed, and what counts on the way there. Pure: observed pods and notes in, both out.

The meanings are those of Kubeflow's TFJob (success by the chief, or by all workers; exit codes from 128 on are tried
again). Evictions, preemptions and lost nodes replace a pod and are not counted; every restart of a container is, and
the count starts anew after ten minutes without one.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from trainer.supervisor.notes import Notes
from trainer.supervisor.pods import Pod
from trainer.supervisor.run import Run

QUIET_SECONDS = 600.0
"""After so long without a restart, those before it are forgiven."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    succeeded: bool
    reason: str
    failed: tuple[str, ...] = ()
    """The pods whose tasks are to blame."""


def observe_pods(run: Run, notes: Notes, pods: Iterable[Pod], now: float) -> Notes:
    """The notes with what these pods show: tasks that ended for good, and restarts.

    Args:
        run: The run.
        notes: What was known.
        pods: All pods of its tasks.
        now: Seconds since 1970.
    """
    finished, seen = dict(notes.finished), dict(notes.seen)
    restarts, restarted, by_role = notes.restarts, notes.restarted, dict(notes.restarts_by_role)
    leader = notes.leader
    for pod in pods:
        if pod.name == run.leader and pod.placed:
            leader = pod.uid
        if pod.name in notes.finished:  # what becomes of it now is no matter
            continue
        if pod.leaving and not (pod.ended and pod.ended.code == 0):
            continue
        if pod.ended and run.roles[pod.role].ends_with(pod.ended.code):
            finished[pod.name] = pod.ended.code
        # a container that was started again to rest has not failed again
        counted = pod.starts_again - (1 if pod.name in finished else 0)
        new = counted - seen.get(pod.uid, 0)
        if new > 0:
            restarts = new + (restarts if now - restarted < QUIET_SECONDS else 0)
            restarted = now
            by_role[pod.role] = by_role.get(pod.role, 0) + new
            seen[pod.uid] = counted
    return dataclasses.replace(
        notes,
        finished=finished,
        seen=seen,
        restarts=restarts,
        restarted=restarted,
        restarts_by_role=by_role,
        leader=leader,
    )


def outcome(run: Run, notes: Notes, pods: Mapping[str, Pod], scale: Mapping[str, int], now: float) -> Outcome | None:
    """The run's verdict, or None while it goes on.

    Args:
        run: The run.
        notes: Up to date, by `take_note`.
        pods: The pods of its tasks by name.
        scale: How many tasks each role has now.
        now: Seconds since 1970.
    """
    failed = {pod: code for pod, code in notes.finished.items() if code != 0}
    if run.success_policy == "Chief":
        needed = {run.leader}
    else:
        needed = {f"{run.stem}-{role}-{index}" for role in ("chief", "worker") for index in range(scale.get(role, 0))}
    if needed and all(notes.finished.get(pod) == 0 for pod in needed):
        who = run.leader if run.success_policy == "Chief" else "every worker"
        return Outcome(True, f"{who} ended with code 0")
    if failed:
        pod, code = next(iter(failed.items()))
        return Outcome(False, f"{pod} failed with {_ending(pods.get(pod), code)}, which is not tried again", (pod,))
    if run.backoff_limit is not None and notes.restarts > run.backoff_limit:
        culprits = sorted(
            (pod for pod in pods.values() if pod.ended), key=lambda pod: -(pod.ended.at if pod.ended else 0)
        )
        last = culprits[0] if culprits else None
        ending = f"; the last was {last.name} with {last.ended}" if last else ""
        return Outcome(
            False,
            f"{notes.restarts} restarts are more than run.backoffLimit ({run.backoff_limit}) allows{ending}",
            (last.name,) if last else (),
        )
    if run.active_deadline_seconds is not None and now - notes.started > run.active_deadline_seconds:
        return Outcome(False, f"it took longer than run.activeDeadlineSeconds ({run.active_deadline_seconds} s)")
    return None


@dataclass(frozen=True)
class Awaited:
    """A task that should run and does not, or that cannot be found by the others."""

    name: str
    role: str
    since: float
    """Seconds since 1970."""
    started: bool
    """Whether it has run and could be found: it only keeps ending."""
    problem: str
    """Why, in Kubernetes' words; empty where its pod does not say."""


def awaited(
    run: Run,
    notes: Notes,
    pods: Mapping[str, Pod],
    absent: Mapping[str, float],
    expected: Iterable[tuple[str, str]],
    nameless: Mapping[str, str],
) -> list[Awaited]:
    """The tasks that the run waits for.

    Args:
        run: The run.
        notes: Up to date, by `take_note`.
        pods: The pods of its tasks by name.
        absent: By the names of pods that are not there: since when, in seconds since 1970.
        expected: As by the function of this name.
        nameless: By pod: host names that DNS should know and does not.
    """
    found = []
    for name, role in expected:
        pod = pods.get(name)
        started = pod is not None and has_started(pod) and name not in nameless
        problem = pod.problem if pod else ""
        if name in nameless and not problem:
            problem = f"does not resolve: {nameless[name]}"
        if name not in notes.finished and (problem or not started):
            since = max(notes.started, pod.created if pod else absent[name])
            found.append(Awaited(name, role, since, started, problem))
    return found


def start_outcome(run: Run, waiting: Iterable[Awaited], now: float, why: Callable[[Awaited], str]) -> Outcome | None:
    """The verdict on a run one of whose tasks has not started in the time allowed, or None.

    Args:
        run: The run.
        waiting: As by `awaited`.
        now: Seconds since 1970.
        why: A sentence about what keeps a task from running.
    """
    limit = run.start_timeout_seconds
    for task in waiting:
        if limit is not None and not task.started and now - task.since > limit:
            return Outcome(
                False,
                f"{task.name} did not start within run.startTimeoutSeconds ({limit} s): {why(task)}",
                (task.name,),
            )
    return None


def expected(run: Run, scale: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pods that there should be, by name, with their roles."""
    return [(f"{run.stem}-{role}-{index}", role) for role in run.roles for index in range(scale.get(role, 0))]


def has_started(pod: Pod) -> bool:
    """Whether the task's container has run at all."""
    return pod.running or pod.ended is not None or pod.starts_again > 0


def _ending(pod: Pod | None, code: int) -> str:
    return str(pod.ended) if pod and pod.ended and pod.ended.code == code else f"code {code}"
