"""When a gang that has lost a part of its tasks gives its nodes back, and waits as a whole again. Pure.

A scheduler places a task that is replaced alone. So a gang whose tasks are preempted one after another, or that has
lost a node, would hold the rest of its nodes while it waits: the state that a gang is there to prevent.
"""

from collections.abc import Sequence

from trainer.supervisor import lifecycle, policy
from trainer.supervisor.notes import Notes
from trainer.supervisor.policy import PendingTask
from trainer.supervisor.run import Run


def give_back(run: Run, notes: Notes, pending: Sequence[PendingTask], now: float) -> tuple[Notes, str]:
    """The notes with which all tasks end and start together again, and a sentence on why; empty if they go on.

    Args:
        run: The run.
        notes: The notes.
        pending: The result of `policy.pending_tasks`.
        now: Seconds since 1970.
    """
    if notes.state != "Running" or run.gang is None or not run.is_placed_together:
        return notes, ""
    lost = [task for task in pending if task.unscheduled]
    placed = len(policy.expected_tasks(run, notes)) - sum(task.alike for task in lost)
    stuck = [task for task in lost if now - task.since >= run.node_wait_seconds]
    if not stuck or not 0 < placed < run.gang.size or any(task.in_gang for task in pending):
        return notes, ""
    count = sum(task.alike for task in stuck)
    others = f" (and {count - 1} more)" if count > 1 else ""
    sentence = (
        f"{stuck[0].name}{others} has no node, and only {placed} of the {run.gang.size} tasks of the gang have one: "
        "ending all tasks, which start together again when there is room (scheduling.gang)"
    )
    return lifecycle.enter(run, notes, "gang lost nodes", admitted=0.0, running=0.0, ungated={}), sentence
