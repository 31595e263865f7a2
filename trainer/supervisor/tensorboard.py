"""When TensorBoard may run. Pure.

TensorBoard and the leader mount the same volume. If only one node at a time can mount it, the first of the two to be
scheduled decides the node for both. TensorBoard fits on any node and the leader does not, so the leader is scheduled
first, and TensorBoard is scaled to 0 while the leader is unschedulable.
"""

from trainer.supervisor.pods import Pod
from trainer.supervisor.run import Run


def scale(run: Run, leader: Pod | None) -> int | None:
    """The replicas that TensorBoard should have now; None to leave them as they are.

    Args:
        run: The run.
        leader: The leader's pod; None if it does not exist.
    """
    if not run.tensorboard_gated or leader is None:
        return None
    if leader.scheduled:
        return 1
    return 0 if leader.problem else None
