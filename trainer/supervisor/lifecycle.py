"""The states of a run, and the one table of what leads from each to the next. Pure.

The modes of a run decide where it begins and what follows: `first`, `after_stages` and `after_training`. A queue adds
Queued, stages add Preparing and Finishing, a gang or a queue that loses its nodes leads back to Stopping, and
`run.suspend` or data without a version to Suspended. An elastic run changes its scales and not its state, and another
version of watched data is another run.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from trainer.supervisor import stages
from trainer.supervisor.notes import ElasticNotes, Notes, State
from trainer.supervisor.pods import Pod
from trainer.supervisor.policy import Outcome
from trainer.supervisor.run import Run


def first(run: Run) -> State:
    """The state in which a run begins."""
    return "Preparing" if run.stages.before else after_stages(run)


def after_stages(run: Run) -> State:
    """The state after the stages before the training, if there are any."""
    return "Queued" if run.is_queued else "Starting"


def after_training(run: Run) -> State:
    """The state after the training has succeeded."""
    return "Finishing" if run.stages.after else "Succeeded"


class Transition(NamedTuple):
    """The states in which an event counts, and the state that follows."""

    states: tuple[State | Literal[""], ...]
    to: State | Callable[[Run], State]


ENDED: tuple[State, ...] = ("Succeeded", "Failed")
TRAINING: tuple[State, ...] = ("Starting", "Running")
"""The states in which tasks run."""
UNENDED: tuple[State, ...] = ("Stopping", "Preparing", "Queued", *TRAINING, "Finishing")
ANY: tuple[State | Literal[""], ...] = ("", "Suspended", *UNENDED, *ENDED)
TRANSITIONS: Mapping[str, Transition] = {
    # What the supervisor finds when it begins.
    "changed": Transition(ANY, first),
    "outdated": Transition(ANY, "Stopping"),
    "suspended": Transition(ANY, "Suspended"),
    "resumed": Transition(("Suspended",), first),
    "rescaled": Transition((*TRAINING, "Finishing", *ENDED), "Starting"),
    "trained": Transition(ANY, "Finishing"),
    # What the cluster shows.
    "tasks ended": Transition(("Stopping",), first),
    "stages done": Transition(("Preparing",), after_stages),
    "admitted": Transition(("Queued",), "Starting"),
    "scales set": Transition(("Starting",), "Running"),
    "evicted": Transition(TRAINING, "Stopping"),
    "gang lost nodes": Transition(("Running",), "Stopping"),
    "restart all": Transition(TRAINING, "Stopping"),
    "succeeded": Transition(TRAINING, after_training),
    "stages after done": Transition(("Finishing",), "Succeeded"),
    "failed": Transition(("Preparing", *TRAINING, "Finishing"), "Failed"),
    "superseded": Transition(UNENDED, "Suspended"),
}


def enter(run: Run, notes: Notes, event: str, **changes: Any) -> Notes:
    """The notes in the state after an event, with changes of other fields; as they are if it does not count there."""
    found = TRANSITIONS[event]
    if notes.state not in found.states:
        return notes
    state = found.to if isinstance(found.to, str) else found.to(run)
    return dataclasses.replace(notes, state=state, **changes)


def begin(run: Run, notes: Notes, pods: Iterable[Pod], now: float) -> Notes:
    """The notes with which a supervisor begins.

    Args:
        run: The run, as the values define it now.
        notes: The notes that an earlier supervisor left.
        pods: The pods of tasks.
        now: Seconds since 1970.
    """
    current = dataclasses.replace(notes, definition=run.definition, attempt=run.attempt)
    if is_over(run, notes):
        return dataclasses.replace(current, hash=run.hash)
    if asks_to_suspend(run):
        return enter(run, notes, "suspended", reason="")
    if has_trained(run, notes):
        return _stages_after(run, notes, current)
    is_other = notes.data_version != run.data_version
    has_old_pods = any(is_other or pod.run_hash != run.hash for pod in pods)
    if is_other or notes.hash != run.hash:
        return _new_run(run, notes, has_old_pods, now)
    replicas = {role: values.replicas for role, values in run.roles.items()}
    current = dataclasses.replace(current, after=run.after)
    if notes.state == "Suspended":
        return enter(
            run,
            current,
            "resumed",
            started=now,
            begun=now,
            admitted=0.0,
            running=0.0,
            replicas=replicas,
            scales=replicas,
            elastic=ElasticNotes(),
            stages=stages.renew(run.stages.all, notes),
        )
    if has_old_pods:  # one was replaced during an upgrade that was rolled back
        return enter(run, current, "outdated", running=0.0, replicas=replicas)
    return current if notes.replicas == replicas else _rescaled(run, notes, current, replicas)


def asks_to_suspend(run: Run) -> bool:
    """Whether the values suspend the run, or there is no version of its data yet."""
    return run.suspend or run.waits_for_data


def _stages_after(run: Run, notes: Notes, current: Notes) -> Notes:
    """The notes of a run of which only stages after the training are left."""
    current = enter(run, current, "trained", hash=run.hash, after=run.after)
    if notes.state == "Finishing" and notes.after == run.after:
        return current
    renewed = {**notes.stages, **stages.renew(run.stages.after, notes)}
    training = notes.training or notes.reason
    return dataclasses.replace(current, trained=run.definition, training=training, stages=renewed, reason="", ended=0.0)


def _new_run(run: Run, notes: Notes, has_old_pods: bool, now: float) -> Notes:
    """The notes of a run that replaces another one. Tasks of two runs never run at the same time."""
    # A client's new Job waits until it is suspended and resumed.
    client_waits = bool(notes.hash) and "client" in run.roles
    replicas = {role: values.replicas for role, values in run.roles.items()}
    begun = Notes(
        hash=run.hash,
        definition=run.definition,
        data_version=run.data_version,
        attempt=run.attempt,
        leader=notes.leader,
        started=now,
        begun=now,
        replicas=replicas,
        scales=replicas,
        stages=stages.renew(run.stages.all, notes),
        after=run.after,
    )
    return enter(run, begun, "outdated" if client_waits or has_old_pods else "changed")


def _rescaled(run: Run, notes: Notes, current: Notes, replicas: Mapping[str, int]) -> Notes:
    """The notes with the numbers of tasks that the values have now.

    Users may have set another scale of a role whose values are unchanged.
    """
    scales = {role: notes.scales[role] if notes.replicas.get(role) == n else n for role, n in replicas.items()}
    wanted = notes.elastic.wanted if notes.replicas.get("worker") == replicas.get("worker") else 0
    elastic = dataclasses.replace(notes.elastic, wanted=wanted)
    return enter(run, dataclasses.replace(current, replicas=replicas, scales=scales, elastic=elastic), "rescaled")


def is_over(run: Run, notes: Notes) -> bool:
    """Whether the run has ended, and nothing asks for a new one: a higher attempt, or other values of the user."""
    unchanged = notes.definition == run.definition and run.attempt <= notes.attempt
    same = unchanged or (notes.hash, notes.data_version) == (run.hash, run.data_version)
    return notes.has_ended and same and notes.after == run.after


def version_to_go_on(run: Run, notes: Notes) -> str:
    """The version of the data on which the run goes on, or has ended; empty if it is to begin on the newest."""
    version = notes.data_version
    return version if version and notes.definition == run.on_version(version).definition else ""


def has_trained(run: Run, notes: Notes) -> bool:
    """Whether only stages after the training are left: the training has succeeded, and nothing asks for a new one."""
    trained = notes.trained or (notes.definition if notes.state == "Succeeded" else "")
    asks = notes.state == "Succeeded" and run.attempt > notes.attempt
    return bool(trained) and trained == run.definition and not asks


def end(run: Run, notes: Notes, outcome: Outcome, now: float) -> Notes:
    """The notes after the end of the training, or of the stages. `now` in seconds since 1970."""
    ended = {"reason": outcome.reason, "ended": now}
    if not outcome.succeeded:
        return enter(run, notes, "failed", **ended)
    if notes.state == "Finishing":
        return enter(run, notes, "stages after done", **ended)
    trained = {"trained": run.definition, "training": outcome.reason}
    return enter(run, notes, "succeeded", **trained, **({} if run.stages.after else ended))


def restart_all(run: Run, notes: Notes) -> Notes:
    """The notes with which all tasks end, and then start again."""
    counted = dataclasses.replace(notes.counted, of_all=notes.counted.of_all + 1, seen={})
    return enter(run, notes, "restart all", running=0.0, counted=counted, finished={}, ungated={})


def are_gone(pods: Iterable[Pod]) -> bool:
    """Whether no task runs. The pod of a client's Job that has ended stays."""
    return all(pod.succeeded for pod in pods)


def advance(run: Run, notes: Notes, pods: Mapping[str, Pod], scales: Mapping[str, int], now: float) -> Notes:
    """The notes in the next state, if the cluster has what the current state waits for.

    Args:
        run: The run.
        notes: The notes.
        pods: The pods of tasks, including those of an earlier run.
        scales: The observed scales, by component.
        now: Seconds since 1970.
    """
    if notes.state == "Stopping" and are_gone(pods.values()) and not any(scales.get(role) for role in notes.scales):
        return enter(run, notes, "tasks ended", started=now)
    if notes.state == "Starting" and all(scales.get(role) == scale for role, scale in notes.scales.items()):
        return enter(run, notes, "scales set")
    return notes
