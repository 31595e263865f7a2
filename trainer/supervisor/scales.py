"""How many tasks of each role the cluster should have now, and whether TensorBoard should run. Pure.

The supervisor compares these scales with the observed ones again and again, and sets those that differ. So it does not
matter who has changed a scale: an interrupted supervisor, a rollback, or a tool that applies manifests again.

TensorBoard and the leader mount the same volume. If only one node at a time can mount it, the first of the two to be
scheduled decides the node for both. TensorBoard fits on any node and the leader does not, so the leader is scheduled
first, and TensorBoard is scaled to 0 while the leader is unschedulable.
"""

import dataclasses
from collections.abc import Mapping

from trainer.supervisor.notes import ElasticNotes, Notes
from trainer.supervisor.pods import Pod
from trainer.supervisor.run import Run

TENSORBOARD = "tensorboard"
ELASTIC = "worker"
"""The role whose scale users may change."""


def wanted(run: Run, notes: Notes, tasks: Mapping[str, Pod], now: float) -> dict[str, int]:
    """The scale that each object should have now, by component; without those that may have any scale.

    Args:
        run: The run.
        notes: The notes.
        tasks: The pods that exist, by task.
        now: Seconds since 1970.
    """
    if notes.state in ("Stopping", "Suspended", "Preparing", "Queued"):
        scales = dict.fromkeys(run.roles, 0)
    elif notes.state == "Finishing" or notes.has_ended:
        scales = dict.fromkeys(_freed(run, notes, tasks), 0)
    else:
        scales = dict(notes.scales)
    after = notes.has_ended
    tensorboard = tensorboard_after(run, notes, now) if after else _tensorboard(run, tasks.get(run.leader))
    return scales if tensorboard is None else scales | {TENSORBOARD: tensorboard}


def _freed(run: Run, notes: Notes, tasks: Mapping[str, Pod]) -> list[str]:
    """The roles whose resources run.cleanPodPolicy frees after the training."""
    freed = []
    for role, values in run.roles.items():
        names = run.roles_of(((role, notes.scales.get(role, 0)),)).keys()
        is_done = names <= notes.finished.keys()
        completes = values.job and is_done and not any(notes.finished[name] for name in names)
        there = [tasks[name] for name in names if name in tasks]
        if completes and there and not any(pod.running or pod.has_sidecar or not pod.terminated for pod in there):
            continue  # a Job that completes holds no resources, and keeps its log
        if names and (run.clean_pod_policy == "All" or (run.clean_pod_policy == "Running" and not is_done)):
            freed.append(role)
    return freed


def tensorboard_after(run: Run, notes: Notes, now: float) -> int | None:
    """The scale of TensorBoard when the run is over; None if it may have any scale. `now` in seconds since 1970."""
    if not run.tensorboard or (run.tensorboard.gated and not notes.leader):
        return None
    ttl = run.tensorboard.ttl_seconds_after_finished
    return 0 if ttl is not None and now >= notes.ended + ttl else 1


def _tensorboard(run: Run, leader: Pod | None) -> int | None:
    if run.tensorboard and not run.tensorboard.gated:
        return 1
    if not run.tensorboard or leader is None:
        return None
    if leader.node:
        return 1
    return 0 if leader.problem else None


def adopt(run: Run, notes: Notes, confirmed: Mapping[str, int], observed: Mapping[str, int]) -> Notes:
    """The notes with the scale that a user or an autoscaler has set, for example with `kubectl scale`.

    Args:
        run: The run.
        notes: The notes.
        confirmed: By component: the scale that was observed before.
        observed: By component: the scale that is observed now.
    """
    scale, values = observed.get(ELASTIC, 0), run.roles.get(ELASTIC)
    was_right = confirmed.get(ELASTIC) == notes.scales.get(ELASTIC)
    if notes.state != "Running" or values is None or not was_right or scale == 0:
        return notes
    if run.is_queued:  # Kueue has admitted that many
        return notes
    if values.addresses is not None and scale > values.addresses:  # the cluster has no addresses for so many
        return notes
    if run.elastic and scale != notes.scales[ELASTIC] and not run.elastic.min <= scale <= run.elastic.max:
        return notes
    if scale == notes.scales[ELASTIC]:
        return notes
    return dataclasses.replace(notes, scales={**notes.scales, ELASTIC: scale}, elastic=ElasticNotes(wanted=scale))
