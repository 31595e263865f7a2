"""The task of a parameter server, and the signal of the chief that ends it."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable

from trainer.cluster import peers
from trainer.cluster.spec import Cluster, Task
from trainer.shards import shared_event
from trainer.shards.shared_event import SharedEvent
from trainer.tensorflow import tf
from trainer.training import server
from trainer.training.context import TaskContext
from trainer.training.server import LOST, TaskServer

logger = logging.getLogger(__name__)

LINGER_SECONDS = 30.0
"""How long the chief of a collective group waits for the others to pass its last barriers."""
REPLICA_EXIT_SECONDS = 120.0
"""How long parameter servers wait for the replicas to exit after the run is done. A replica that was stopped, or whose
machine was, then reads from them that the run is done, and ends with code 0."""
SIGNAL_DONE_SECONDS = 30.0
"""How long the chief waits for a parameter server to accept the signal that the run is done."""
ALONE_SECONDS = 1.0
"""How long the chief may take to exit before a parameter server that receives SIGTERM asks it to save: if the whole run
ends, it saves by itself."""
LAST_SAVE_SECONDS = 6.0
"""How long a parameter server that receives SIGTERM waits for the chief to exit, or to save."""
POLL_SECONDS = 0.5


def serve(context: TaskContext, cluster: Cluster) -> None:
    """Run a parameter server: hold variables until the chief signals that the run is done and the replicas have exited.

    When the watchdog stops this task, return earlier, but give the chief at most `grace_seconds` to save.

    Raises:
        ConfigurationError: the task's port is in use.
    """
    own_server = server.start(cluster, context.threads)
    context.metrics.serving = True
    logger.info(f"serving on {cluster.address(cluster.task)}")
    with tf.Graph().as_default() as graph:
        is_done, is_saving = (
            SharedEvent(name, _cpu(cluster.task)).is_set() for name in (shared_event.DONE, shared_event.SAVING)
        )
        leaving = SharedEvent(shared_event.LEAVING, _cpu(cluster.task))
        leave, is_leaving = leaving.set(), leaving.is_set()
    with own_server.session(graph) as session:
        while not context.is_stopping() and not session.run(is_done):
            time.sleep(POLL_SECONDS)
        context.metrics.serving = False
        if context.is_stopping():  # the chief saves the variables held here, perhaps because the whole run ends
            chief, grace_seconds = [cluster.address(cluster.chief_task)], context.settings.grace_seconds
            start_seconds = min(LAST_SAVE_SECONDS, grace_seconds)
            _wait_until_gone(chief, min(ALONE_SECONDS, start_seconds), lambda: False)
            session.run(leave)
            _wait_until_gone(chief, start_seconds - ALONE_SECONDS, lambda: not session.run(is_leaving))
            _wait_until_gone(chief, grace_seconds - start_seconds, lambda: not session.run(is_saving))
            return
    logger.info("the run is done; waiting for the replicas to leave")
    _wait_until_gone(
        [cluster.address(replica) for replica in cluster.replicas], REPLICA_EXIT_SECONDS, context.is_stopping
    )


def _wait_until_gone(addresses: list[str], seconds: float, stopping: Callable[[], bool]) -> None:
    """Wait at most `seconds` until none of these addresses accepts connections."""
    deadline = time.monotonic() + seconds
    given_up = threading.Event()

    def watch() -> None:
        left = addresses
        while left and not given_up.is_set():  # do not probe a failed address again: the task may not exist
            left = [address for address, error in zip(left, peers.probe_errors(left), strict=True) if error is None]
            given_up.wait(0.2)

    # Use a thread: a slow DNS server may need more than `seconds` to resolve the names of a large cluster.
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    while watching.is_alive() and not stopping() and time.monotonic() < deadline:
        watching.join(0.2)
    given_up.set()


def signal_done(cluster: Cluster, own_server: TaskServer) -> None:
    """Signal every parameter server that the run is done. Wait at most SIGNAL_DONE_SECONDS for one that restarts."""
    # Use threads: TensorFlow has no timeout for a parameter server that accepts connections but does not respond.
    signalling = {
        ps: threading.Thread(target=_signal_done_to, args=(ps, cluster.address(ps), own_server), daemon=True)
        for ps in cluster.parameter_servers
    }
    for thread in signalling.values():
        thread.start()
    deadline = time.monotonic() + SIGNAL_DONE_SECONDS
    for ps, thread in signalling.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            reason = peers.probe_error(cluster.address(ps)) or "it accepts connections, but does not respond"
            logger.warning(f"cannot signal {ps} at {cluster.address(ps)} that the run is done: {reason}")


def _signal_done_to(ps: Task, address: str, own_server: TaskServer) -> None:
    with tf.Graph().as_default() as graph:
        set_done = SharedEvent(shared_event.DONE, _cpu(ps)).set()
    while True:
        if peers.probe_error(address) is None:
            with contextlib.suppress(*LOST), own_server.session(graph, ps.device) as session:
                session.run(set_done)
                return
        time.sleep(POLL_SECONDS)


def _cpu(ps: Task) -> str:
    """The device of a parameter server's events."""
    return f"{ps.device}/device:CPU:0"
