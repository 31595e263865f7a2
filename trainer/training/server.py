"""This task's TensorFlow server and its sessions.

Device filters restrict a session to the parameter servers and this task. Without them it would wait for every other
replica. Collective ops use the servers, not the sessions, so the filters do not affect them.
"""

import contextlib
import ctypes
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainer.cluster import connections, peers
from trainer.cluster.spec import Cluster
from trainer.graph import devices
from trainer.kernels import library
from trainer.tensorflow import tf, tf1
from trainer.tensorflow_types import Graph, Session
from trainer.training.threads import Threads

logger = logging.getLogger(__name__)

LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,  # a parameter server restarted without variables
    tf.errors.NotFoundError,
    tf.errors.InternalError,
    tf.errors.UnknownError,
    tf.errors.UnimplementedError,  # a server of another kind has the address of a lost task
)
"""The errors that TensorFlow raises when another task is lost during a run."""


@dataclass(frozen=True)
class TaskServer:
    """The TensorFlow server of a task, which opens its sessions. A single process has no server."""

    threads: Threads
    server: tf.distribute.Server | None = None

    @property
    def target(self) -> str:
        """The address of the server for sessions; empty without a server."""
        return str(self.server.target) if self.server else ""

    @contextlib.contextmanager
    def session(self, graph: Graph, *also: str) -> Iterator[Session]:
        """Open a session with the devices of this task and of the jobs or tasks in `also`."""
        if self.server is None:
            with tf1.Session(graph=graph, config=_session_config(self.threads, [])) as session:
                yield session
            return
        definition = self.server.server_def
        here = f"/job:{definition.job_name}/task:{definition.task_index}"
        session = tf1.Session(self.target, graph, _session_config(self.threads, [here, *also]))
        try:
            yield session
        finally:
            with contextlib.suppress(*LOST):
                session.close()
            _free()


def _free() -> None:
    """Give memory back to the system that is free now.

    The threads of a session each have a part of the heap, of which glibc keeps what a closed session has left: a chief
    that lost a parameter server 25 times had 310 MB more.
    """
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def create_pools(threads: Threads) -> None:
    """Create the thread pools of this process, before a model file or a data set uses TensorFlow.

    TensorFlow creates most of them once, for the first session or the first eager op, and later ones share them
    whatever they ask for: as many threads as the machine has CPUs, which spin, after an eager op.
    """
    config = _pools(threads)
    config.device_count.update({"CPU": 1, "GPU": 0})
    tf1.Session(graph=tf.Graph(), config=config).close()


def start(cluster: Cluster | None, threads: Threads) -> TaskServer:
    """Start this task's server with these thread pools. Without a cluster there is nothing to start.

    Raises:
        ConfigurationError: the task's port is in use.
    """
    if cluster is None:
        return TaskServer(threads)
    peers.check_port_is_free(cluster.address(cluster.task))
    library.load()  # for the ops of tables
    if cluster.task.role == "ps":
        tf.config.set_visible_devices([], "GPU")
    config = _session_config(threads, [cluster.task.device, "/job:ps"], has_gpus=cluster.task.role != "ps")
    if not cluster.ps:  # the leader assigns the keys of the collective group
        leader = cluster.chief_task
        config.experimental.collective_group_leader = f"/job:{leader.role}/replica:0/task:{leader.index}"
    connections.configure()
    server = tf.distribute.Server(
        tf.train.ClusterSpec(cluster.spec),
        job_name=cluster.task.role,
        task_index=cluster.task.index,
        config=config,
    )
    connections.start(cluster.ports)
    return TaskServer(threads, server)


def _session_config(threads: Threads, device_filters: list[str], has_gpus: bool = True) -> Any:
    gpus = devices.configured("GPU") if has_gpus else []
    config = _pools(threads)
    config.allow_soft_placement = True
    config.device_filters.extend(device_filters)
    config.device_count.update({"CPU": devices.count_cpus(), "GPU": len(gpus)})
    if any(part.memory_limit for parts in gpus for part in parts):  # TensorFlow knows these in eager mode only
        for parts in gpus:
            limits = [part.memory_limit for part in parts if part.memory_limit]
            config.gpu_options.experimental.virtual_devices.add(memory_limit_mb=limits)
    # Grappler takes most of the time before the first step. It does not speed up steps on CPUs. On GPUs it converts
    # images to the layout with the fastest convolutions.
    config.graph_options.rewrite_options.disable_meta_optimizer = not gpus
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = devices.visible_gpus()
    return config


def _pools(threads: Threads) -> Any:
    config = tf1.ConfigProto(
        intra_op_parallelism_threads=threads.intra_op, inter_op_parallelism_threads=threads.inter_op
    )
    config.experimental.disable_thread_spinning = True  # a spinning thread takes CPU time from another task's gRPC
    return config
