"""How many workers an elastic run has: fewer while some cannot be scheduled, and more when there is room. Pure.

`run.elastic` has the limits. The number that is wanted is `worker.replicas`, or what a user or an autoscaler has set.
"""

import dataclasses
from collections.abc import Sequence

from trainer.supervisor.notes import ElasticNotes, Notes
from trainer.supervisor.policy import PendingTask, explain
from trainer.supervisor.run import Run

ROLE = "worker"
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 120.0, 1800.0
"""Seconds to the next try with the wanted number, after the first one and at most; the time doubles."""


def adjust(run: Run, notes: Notes, pending: Sequence[PendingTask], now: float) -> tuple[Notes, str]:
    """The notes with the number of workers that fits, and a sentence on the change; empty without one.

    Args:
        run: The run.
        notes: The notes.
        pending: The result of `policy.pending_tasks`.
        now: Seconds since 1970.
    """
    if run.elastic is None or notes.state != "Running" or ROLE not in notes.scales:
        return notes, ""
    scale, wanted = notes.scales[ROLE], notes.elastic.wanted or run.roles[ROLE].replicas
    stuck = [task for task in pending if task.role == ROLE and task.unscheduled]
    count = sum(task.alike for task in stuck)
    gap = notes.elastic.gap or FIRST_RETRY_SECONDS
    if any(now - task.since >= run.node_wait_seconds for task in stuck) and scale > run.elastic.min:
        fitting = max(run.elastic.min, scale - count)
        others = f" (and {count - 1} more)" if count > 1 else ""
        return (
            dataclasses.replace(
                notes,
                scales={**notes.scales, ROLE: fitting},
                elastic=dataclasses.replace(notes.elastic, gap=min(2 * gap, LAST_RETRY_SECONDS), retry=now + gap),
            ),
            f"{stuck[0].name}{others} cannot be scheduled: {explain(stuck[0])}: going on with {fitting} instead of "
            f"{scale} workers, and trying {wanted} again in {gap / 60:g} min (run.elastic)",
        )
    if not stuck and scale < wanted and now >= notes.elastic.retry:
        return (
            dataclasses.replace(notes, scales={**notes.scales, ROLE: wanted}),
            f"trying {wanted} instead of {scale} workers (run.elastic)",
        )
    started = not any(task.role == ROLE and not task.started for task in pending)
    if scale == wanted and notes.elastic.gap and started:
        return dataclasses.replace(notes, elastic=ElasticNotes(notes.elastic.wanted)), ""
    return notes, ""
