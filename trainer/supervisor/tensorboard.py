"""When TensorBoard may run. Pure.

It needs the volume that the leader needs, and where only one node can mount that, whoever has a node first decides for
both. TensorBoard fits anywhere and the leader does not, so the leader goes first, and TensorBoard makes way for it.
"""

from trainer.supervisor.pods import Pod
from trainer.supervisor.run import Run


def scale(run: Run, leader: Pod | None) -> int | None:
    """How many TensorBoards there should be now; None for as many as there are.

    Args:
        run: The run.
        leader: The leader's pod, where there is one.
    """
    if not run.holds_tensorboard or leader is None:
        return None
    if leader.placed:
        return 1
    return 0 if leader.problem else None
