"""This task's TensorFlow server, its sessions, and the signal that a run is done.

Device filters restrict a session to the parameter servers and this task. Without them it would wait for every other
replica. Collective ops use the servers, not the sessions, so the filters do not affect them.
"""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from trainer.cluster import peers
from trainer.cluster.spec import Cluster, Task
from trainer.graph import shared_event
from trainer.graph.devices import count_cpus
from trainer.graph.shared_event import SharedEvent
from trainer.telemetry.metrics import Metrics
from trainer.tensorflow import tf, tf1
from trainer.training.threads import Threads

LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,  # a parameter server restarted without variables
    tf.errors.NotFoundError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)
"""The errors that TensorFlow raises when another task is lost during a run."""

LINGER_SECONDS = 30.0
"""How long parameter servers wait for the replicas to exit after the run is done."""
SIGNAL_DONE_SECONDS = 30.0
"""How long the chief waits for a parameter server to accept the signal that the run is done."""
LAST_SAVE_SECONDS = 6.0
"""How long a parameter server that receives SIGTERM waits for the chief to exit or to start a save."""
POLL_SECONDS = 0.5
LIST_PREFIX = re.compile(rf"^(?:\s*\(\d+\) )?(?:{'|'.join(filter(str.isupper, dir(tf.errors)))}): ")
"""The prefix of an error in a list: its number and code, such as "  (0) UNKNOWN: " or "UNKNOWN: "."""


def start(cluster: Cluster, threads: Threads) -> Any:
    """Start this task's server with these thread pools.

    Raises:
        ConfigurationError: the task's port is in use.
    """
    peers.check_port_is_free(cluster.address(cluster.task))
    if cluster.task.role == "ps":
        tf.config.set_visible_devices([], "GPU")
    config = _session_config(threads, [cluster.task.device, "/job:ps"])
    if not cluster.ps:  # the leader assigns the keys of the collective group
        leader = cluster.chief_task
        config.experimental.collective_group_leader = f"/job:{leader.role}/replica:0/task:{leader.index}"
    return tf.distribute.Server(
        tf.train.ClusterSpec(cluster.spec),
        job_name=cluster.task.role,
        task_index=cluster.task.index,
        config=config,
    )


@contextlib.contextmanager
def open_session(graph: Any, server: Any | None, threads: Threads, *also: str) -> Iterator[Any]:
    """Open a session on this task's server with its own devices and those in `also`; without a server, a local one."""
    if server is None:
        with tf1.Session(graph=graph, config=_session_config(threads, [])) as session:
            yield session
        return
    definition = server.server_def
    here = f"/job:{definition.job_name}/task:{definition.task_index}"
    session = tf1.Session(server.target, graph, _session_config(threads, [here, *also]))
    try:
        yield session
    finally:
        with contextlib.suppress(*LOST):
            session.close()


def _session_config(threads: Threads, device_filters: list[str]) -> Any:
    config = tf1.ConfigProto(
        allow_soft_placement=True,
        device_filters=device_filters,
        intra_op_parallelism_threads=threads.intra_op,
        inter_op_parallelism_threads=threads.inter_op,
    )
    config.device_count["CPU"] = count_cpus()
    # Grappler takes most of the time before the first step. It does not speed up steps on CPUs. On GPUs it converts
    # images to the layout with the fastest convolutions.
    config.graph_options.rewrite_options.disable_meta_optimizer = not tf.config.list_physical_devices("GPU")
    config.gpu_options.allow_growth = True
    config.experimental.disable_thread_spinning = True  # a spinning thread takes CPU time from another task's gRPC
    return config


def serve(
    cluster: Cluster,
    threads: Threads,
    grace_seconds: float,
    log: Callable[[str], None],
    stopping: Callable[[], bool],
    metrics: Metrics,
) -> None:
    """Run a parameter server: hold variables until the chief signals that the run is done and the replicas have exited.

    When `stopping` returns True, return earlier, but give the chief at most `grace_seconds` to save.

    Raises:
        ConfigurationError: the task's port is in use.
    """
    server = start(cluster, threads)
    metrics.serving = True
    log(f"serving on {cluster.address(cluster.task)}")
    with tf.Graph().as_default() as graph:
        is_done, is_saving = (
            SharedEvent(name, _cpu(cluster.task)).is_set() for name in (shared_event.DONE, shared_event.SAVING)
        )
    with open_session(graph, server, threads) as session:
        while not stopping() and not session.run(is_done):
            time.sleep(POLL_SECONDS)
        metrics.serving = False
        if stopping():  # the whole run may be stopping: the chief then saves the variables held here
            chief = [cluster.address(cluster.chief_task)]
            start_seconds = min(LAST_SAVE_SECONDS, grace_seconds)
            _wait_until_gone(chief, start_seconds, lambda: False)
            _wait_until_gone(chief, grace_seconds - start_seconds, lambda: not session.run(is_saving))
            return
    log("the run is done; waiting for the replicas to leave")
    _wait_until_gone([cluster.address(replica) for replica in cluster.replicas], LINGER_SECONDS, stopping)


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


def signal_done(cluster: Cluster, server: Any, threads: Threads, log: Callable[[str], None]) -> None:
    """Signal every parameter server that the run is done. Wait at most SIGNAL_DONE_SECONDS for one that restarts."""
    # Use threads: TensorFlow has no timeout for a parameter server that accepts connections but does not respond.
    signalling = {
        ps: threading.Thread(target=_signal_done_to, args=(ps, cluster.address(ps), server, threads), daemon=True)
        for ps in cluster.parameter_servers
    }
    for thread in signalling.values():
        thread.start()
    deadline = time.monotonic() + SIGNAL_DONE_SECONDS
    for ps, thread in signalling.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            reason = peers.probe_error(cluster.address(ps)) or "it accepts connections, but does not respond"
            log(f"cannot signal {ps} at {cluster.address(ps)} that the run is done: {reason}")


def _signal_done_to(ps: Task, address: str, server: Any, threads: Threads) -> None:
    with tf.Graph().as_default() as graph:
        set_done = SharedEvent(shared_event.DONE, _cpu(ps)).set()
    while True:
        if peers.probe_error(address) is None:
            with contextlib.suppress(*LOST), open_session(graph, server, threads, ps.device) as session:
                session.run(set_done)
                return
        time.sleep(POLL_SECONDS)


def _cpu(ps: Task) -> str:
    """The device of a parameter server's events."""
    return f"{ps.device}/device:CPU:0"


def brief(error: Exception) -> str:
    """Return the first line of an error that describes the error, not its location."""
    locations = ("Graph execution error", "Detected at node", "Node:", "From /job:", " ")
    # TensorFlow lists several errors below "2 root error(s) found." or between lines of equals signs.
    lines = [LIST_PREFIX.sub("", line) for line in str(error).splitlines()]
    text = [line for line in lines if any(map(str.isalpha, line)) and not line.endswith(" root error(s) found.")]
    found = (line for line in text if not line.startswith(locations))
    return next(found, (text or [type(error).__name__])[0])[:200]
