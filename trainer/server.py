"""This task's TensorFlow server, sessions on it, and the word that a run is done.

Sessions are filtered to the parameter servers and this task: without that, each would wait for every other replica.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from trainer import peers
from trainer.cluster import Cluster, Task
from trainer.tensorflow import tf, tf1

LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,  # a parameter server came back empty
    tf.errors.NotFoundError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)
"""What TensorFlow raises, by turns, when another task is lost in mid-run."""

LINGER_SECONDS = 30.0
"""How long parameter servers wait for replicas to leave, and the chief for a parameter server to listen."""
POLL_SECONDS = 0.5


def start(cluster: Cluster) -> Any:
    """Start this task's server.

    Raises:
        ConfigurationError: its port is in use.
    """
    peers.check_port_is_free(cluster.address(cluster.task))
    if cluster.task.role == "ps":
        tf.config.set_visible_devices([], "GPU")
    return tf.distribute.Server(
        tf.train.ClusterSpec(cluster.spec),
        job_name=cluster.task.role,
        task_index=cluster.task.index,
        config=_session_config([cluster.task.device, "/job:ps"]),
    )


@contextlib.contextmanager
def open_session(graph: Any, server: Any | None, *also: str) -> Iterator[Any]:
    """A session on this task's server that sees its own devices and these others; without a server, a local one."""
    if server is None:
        with tf1.Session(graph=graph, config=_session_config([])) as session:
            yield session
        return
    definition = server.server_def
    here = f"/job:{definition.job_name}/task:{definition.task_index}"
    session = tf1.Session(server.target, graph, _session_config([here, *also]))
    try:
        yield session
    finally:
        with contextlib.suppress(*LOST):
            session.close()


def _session_config(device_filters: list[str]) -> Any:
    config = tf1.ConfigProto(allow_soft_placement=True, device_filters=device_filters)
    config.gpu_options.allow_growth = True
    return config


def serve(cluster: Cluster, say: Callable[[str], None], stopping: Callable[[], bool]) -> None:
    """A parameter server's life: hold variables until the chief says that the run is done and the replicas have left.

    Raises:
        ConfigurationError: its port is in use.
    """
    server = start(cluster)
    say(f"serving on {cluster.address(cluster.task)}")
    graph, _, is_done = _done_flag(cluster.task)
    with open_session(graph, server) as session:
        while not stopping() and not session.run(is_done):
            time.sleep(POLL_SECONDS)
    if stopping():
        return
    say("the run is done; waiting for the replicas to leave")
    deadline = time.monotonic() + LINGER_SECONDS
    addresses = [cluster.address(replica) for replica in cluster.replicas]
    while not stopping() and time.monotonic() < deadline and not all(map(peers.complaint, addresses)):
        time.sleep(POLL_SECONDS)


def say_done(cluster: Cluster, server: Any, say: Callable[[str], None]) -> None:
    """Tell every parameter server that the run is done; one that just restarts is waited for, for a bounded time."""
    for ps in cluster.parameter_servers:
        graph, set_done, _ = _done_flag(ps)
        deadline = time.monotonic() + LINGER_SECONDS
        while True:
            reason = peers.complaint(cluster.address(ps))
            if reason is None:
                try:
                    with open_session(graph, server, ps.device) as session:
                        session.run(set_done, options=tf1.RunOptions(timeout_in_ms=5000))
                    break
                except LOST as error:
                    reason = brief(error)
            if time.monotonic() >= deadline:
                say(f"{ps} at {cluster.address(ps)} could not be told that the run is done: {reason}")
                break
            time.sleep(POLL_SECONDS)


def _done_flag(ps: Task) -> tuple[Any, Any, Any]:
    """A graph with a queue on this parameter server that is not empty once the run is done: graph, set, is set."""
    graph = tf.Graph()
    with graph.as_default(), tf1.device(f"{ps.device}/device:CPU:0"):
        queue = tf.queue.FIFOQueue(100, tf.bool, shapes=[()], shared_name="run_is_done", name="run_is_done")
        return graph, queue.enqueue(True), tf.greater(queue.size(), 0)


def brief(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200]
