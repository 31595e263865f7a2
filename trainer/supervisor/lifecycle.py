"""The states of a run: what a supervisor does with the notes that it finds, and what follows when. Pure."""

import dataclasses
from collections.abc import Iterable, Mapping

from trainer.supervisor import stages
from trainer.supervisor.notes import ElasticNotes, Notes, State
from trainer.supervisor.pods import Pod
from trainer.supervisor.run import Run


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
    if run.suspend or run.waits_for_data:
        return dataclasses.replace(notes, state="Suspended", reason="")
    if has_trained(run, notes):
        return _stages_after(run, notes, current)
    is_other = notes.data_version != run.data_version
    has_old_pods = any(is_other or pod.run_hash != run.hash for pod in pods)
    if is_other or notes.hash != run.hash:
        return _new_run(run, notes, has_old_pods, now)
    replicas = {role: values.replicas for role, values in run.roles.items()}
    current = dataclasses.replace(current, after=run.after)
    if notes.state == "Suspended":
        return dataclasses.replace(
            current,
            state=first(run),
            started=now,
            admitted=0.0,
            running=0.0,
            replicas=replicas,
            scales=replicas,
            elastic=ElasticNotes(),
            stages=stages.renew(run.stages.all, notes),
        )
    if has_old_pods:  # one was replaced during an upgrade that was rolled back
        return dataclasses.replace(current, state="Stopping", running=0.0, replicas=replicas)
    return current if notes.replicas == replicas else _rescaled(notes, current, replicas)


def first(run: Run) -> State:
    """The state in which a run begins."""
    return "Preparing" if run.stages.before else after_stages(run)


def after_stages(run: Run) -> State:
    """The state after the stages before the training, if there are any."""
    return "Queued" if run.is_queued else "Starting"


def _stages_after(run: Run, notes: Notes, current: Notes) -> Notes:
    """The notes of a run of which only stages after the training are left."""
    current = dataclasses.replace(current, hash=run.hash, state="Finishing", after=run.after)
    if notes.state == "Finishing" and notes.after == run.after:
        return current
    renewed = {**notes.stages, **stages.renew(run.stages.after, notes)}
    finished = finish(run, current, notes.training or notes.reason)
    return dataclasses.replace(finished, stages=renewed, reason="", ended=0.0)


def _new_run(run: Run, notes: Notes, has_old_pods: bool, now: float) -> Notes:
    """The notes of a run that replaces another one. Tasks of two runs never run at the same time."""
    # A client's new Job waits until it is suspended and resumed.
    client_waits = bool(notes.hash) and "client" in run.roles
    replicas = {role: values.replicas for role, values in run.roles.items()}
    return Notes(
        hash=run.hash,
        definition=run.definition,
        data_version=run.data_version,
        attempt=run.attempt,
        leader=notes.leader,
        state="Stopping" if client_waits or has_old_pods else first(run),
        started=now,
        replicas=replicas,
        scales=replicas,
        stages=stages.renew(run.stages.all, notes),
        after=run.after,
    )


def _rescaled(notes: Notes, current: Notes, replicas: Mapping[str, int]) -> Notes:
    """The notes with the numbers of tasks that the values have now.

    Users may have set another scale of a role whose values are unchanged.
    """
    scales = {role: notes.scales[role] if notes.replicas.get(role) == n else n for role, n in replicas.items()}
    state = notes.state if notes.state in ("Stopping", "Preparing", "Queued") else "Starting"
    wanted = notes.elastic.wanted if notes.replicas.get("worker") == replicas.get("worker") else 0
    elastic = dataclasses.replace(notes.elastic, wanted=wanted)
    return dataclasses.replace(current, state=state, replicas=replicas, scales=scales, elastic=elastic)


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


def finish(run: Run, notes: Notes, sentence: str) -> Notes:
    """The notes after the training has succeeded; the stages after it follow. `sentence` says how it ended."""
    return dataclasses.replace(notes, state="Finishing", trained=run.definition, training=sentence)


def are_gone(pods: Iterable[Pod]) -> bool:
    """Whether no task runs. The pod of a client's Job that has ended stays."""
    return all(pod.succeeded for pod in pods)


def advance(
    notes: Notes, pods: Mapping[str, Pod], scales: Mapping[str, int], now: float, begins: State = "Starting"
) -> Notes:
    """The notes in the next state, if the cluster has what the current state waits for.

    Args:
        notes: The notes.
        pods: The pods of tasks, including those of an earlier run.
        scales: The observed scales, by component.
        now: Seconds since 1970.
        begins: The state after Stopping, from `first`.
    """
    if notes.state == "Stopping" and are_gone(pods.values()) and not any(scales.get(role) for role in notes.scales):
        return dataclasses.replace(notes, state=begins, started=now)
    if notes.state == "Starting" and all(scales.get(role) == scale for role, scale in notes.scales.items()):
        return dataclasses.replace(notes, state="Running")
    return notes
