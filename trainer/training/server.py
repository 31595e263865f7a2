"""This task's TensorFlow server, sessions on it, and the word that a run is done.

Sessions are filtered to the parameter servers and this task: without that, each would wait for every other replica.
Collective ops go by the servers and not by sessions, so the filters do not keep replicas from meeting in them.
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
    tf.errors.FailedPreconditionError,  # a parameter server came back empty
    tf.errors.NotFoundError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
)
"""What TensorFlow raises, by turns, when another task is lost in mid-run."""

LINGER_SECONDS = 30.0
"""How long parameter servers wait for replicas to leave when the run is done."""
TELL_SECONDS = 30.0
"""How long the chief of a run that is done waits for a parameter server to listen."""
LAST_SAVE_SECONDS = 6.0
"""How long a parameter server that is told to end waits for the chief to leave, or to begin to save."""
POLL_SECONDS = 0.5
LISTED = re.compile(rf"^(?:\s*\(\d+\) )?(?:{'|'.join(filter(str.isupper, dir(tf.errors)))}): ")
"""What comes before an error in a list of several: its number and code, as "  (0) UNKNOWN: " or "UNKNOWN: "."""


def start(cluster: Cluster, threads: Threads) -> Any:
    """Start this task's server; its sessions use these threads.

    Raises:
        ConfigurationError: its port is in use.
    """
    peers.check_port_is_free(cluster.address(cluster.task))
    if cluster.task.role == "ps":
        tf.config.set_visible_devices([], "GPU")
    config = _session_config(threads, [cluster.task.device, "/job:ps"])
    if not cluster.ps:  # replicas meet in collective ops, and this one tells the others who belongs together
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
    """A session on this task's server that sees its own devices and these others; without a server, a local one."""
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
    # It takes most of the time in which TensorFlow prepares a call. Steps are no faster for it on CPUs; for GPUs it
    # turns images into the layout that they convolve fastest.
    config.graph_options.rewrite_options.disable_meta_optimizer = not tf.config.list_physical_devices("GPU")
    config.gpu_options.allow_growth = True
    config.experimental.disable_thread_spinning = True  # a thread that spins takes the CPU from another task's gRPC
    return config


def serve(
    cluster: Cluster,
    threads: Threads,
    grace_seconds: float,
    say: Callable[[str], None],
    stopping: Callable[[], bool],
    metrics: Metrics,
) -> None:
    """A parameter server's life: hold variables until the chief says that the run is done and the replicas have left.

    If it is `stopping` it returns sooner, but lets the chief save for at most `grace_seconds`.

    Raises:
        ConfigurationError: its port is in use.
    """
    server = start(cluster, threads)
    metrics.serving = True
    say(f"serving on {cluster.address(cluster.task)}")
    with tf.Graph().as_default() as graph:
        is_done, is_saving = (
            SharedEvent(name, _cpu(cluster.task)).is_set() for name in (shared_event.DONE, shared_event.SAVING)
        )
    with open_session(graph, server, threads) as session:
        while not stopping() and not session.run(is_done):
            time.sleep(POLL_SECONDS)
        metrics.serving = False
        if stopping():  # so is the whole run, perhaps: then the chief saves what is here
            chief = [cluster.address(cluster.chief_task)]
            begins = min(LAST_SAVE_SECONDS, grace_seconds)
            _wait_until_gone(chief, begins, lambda: False)
            _wait_until_gone(chief, grace_seconds - begins, lambda: not session.run(is_saving))
            return
    say("the run is done; waiting for the replicas to leave")
    _wait_until_gone([cluster.address(replica) for replica in cluster.replicas], LINGER_SECONDS, stopping)


def _wait_until_gone(addresses: list[str], seconds: float, stopping: Callable[[], bool]) -> None:
    """Wait, for a bounded time, until nobody answers any more at any of these addresses."""
    deadline = time.monotonic() + seconds
    given_up = threading.Event()

    def watch() -> None:
        there = addresses
        while there and not given_up.is_set():  # who was gone once is not asked again: it may never have existed
            there = [address for address, why in zip(there, peers.probe_errors(there), strict=True) if why is None]
            given_up.wait(0.2)

    # In a thread, because looking up the names of a large cluster can take a slow name server longer than the bound.
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    while watching.is_alive() and not stopping() and time.monotonic() < deadline:
        watching.join(0.2)
    given_up.set()


def say_done(cluster: Cluster, server: Any, threads: Threads, say: Callable[[str], None]) -> None:
    """Tell every parameter server that the run is done; one that just restarts is waited for, for a bounded time."""
    # In threads, because TensorFlow waits without a bound for a parameter server that listens and does not answer.
    telling = {
        ps: threading.Thread(target=_tell_done, args=(ps, cluster.address(ps), server, threads), daemon=True)
        for ps in cluster.parameter_servers
    }
    for thread in telling.values():
        thread.start()
    deadline = time.monotonic() + TELL_SECONDS
    for ps, thread in telling.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            reason = peers.probe_error(cluster.address(ps)) or "it listens, but does not answer"
            say(f"{ps} at {cluster.address(ps)} could not be told that the run is done: {reason}")


def _tell_done(ps: Task, address: str, server: Any, threads: Threads) -> None:
    with tf.Graph().as_default() as graph:
        set_done = SharedEvent(shared_event.DONE, _cpu(ps)).set()
    while True:
        if peers.probe_error(address) is None:
            with contextlib.suppress(*LOST), open_session(graph, server, threads, ps.device) as session:
                session.run(set_done)
                return
        time.sleep(POLL_SECONDS)


def _cpu(ps: Task) -> str:
    """The device on which a parameter server has its flags."""
    return f"{ps.device}/device:CPU:0"


def brief(error: Exception) -> str:
    """The first line of what TensorFlow says of an error itself, rather than of where it was met."""
    places = ("Graph execution error", "Detected at node", "Node:", "From /job:", " ")
    # Of several errors TensorFlow makes a list: under "2 root error(s) found." or between lines of equals signs.
    lines = [LISTED.sub("", line) for line in str(error).splitlines()]
    said = [line for line in lines if any(map(str.isalpha, line)) and not line.endswith(" root error(s) found.")]
    found = (line for line in said if not line.startswith(places))
    return next(found, (said or [type(error).__name__])[0])[:200]
