"""How a replica coordinates with the tasks that its replication strategy needs.

`Coordinator` is that of a single process, which needs no other task. With parameter servers, replicas leave and return
on their own. In a collective group all replicas hold the parameters, so they take each step and end together.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from trainer.cluster import peers
from trainer.cluster.poll import poll_until
from trainer.cluster.spec import Cluster, Task
from trainer.data.epochs import Epochs
from trainer.data.leases import Leases
from trainer.errors import CollectiveLostError, ConfigurationError, LostPeersError
from trainer.graph.replica import Replica
from trainer.graph.replication import CollectiveGroup
from trainer.graph.replication.membership import PAUSED
from trainer.telemetry import report
from trainer.tensorflow import tf, tf1
from trainer.tensorflow.errors import brief
from trainer.tensorflow_types import Session
from trainer.training import parameter_server, server, session_errors
from trainer.training.callback import Callback
from trainer.training.context import TaskContext
from trainer.training.server import TaskServer
from trainer.training.update_loop import UpdateLoop
from trainer.training.watch.peer_monitor import PeerMonitor
from trainer.training.watch.replica_monitor import ReplicaMonitor

logger = logging.getLogger(__name__)

LEAVE_SHARE = 0.9
"""The share of `stall_seconds` that a replica waits for the end of the others, so that the watchdog does not end it."""
SHARE_ALL = -1
"""What the chief proposes in place of a number of steps, so that all replicas take over its parameters first."""
PAUSE_SECONDS = 0.2
"""Between the loss of a parameter server and the next attempt, which would fail at once if nothing waited."""
OLD_CHIEF_SECONDS = 5.0
"""How long a replica of a collective group waits for the end of a chief that does not take it up."""
LEAVE_SECONDS = 2.0
"""How long a replica that is told to end tries to tell the parameter server that it leaves."""


class Coordinator:
    """Coordinates a single process: there is nothing to wait for or to agree on."""

    def __init__(self, context: TaskContext, replica: Replica) -> None:
        self._context, self._replica = context, replica

    @property
    def needed(self) -> Mapping[str, str]:
        """The addresses of the other tasks that a step of this replica may wait for, by name."""
        return {}

    def wait_for_peers(self, seconds: float) -> None:
        """Wait for the tasks that this replica needs, before TensorFlow connects to them.

        Raises:
            LostPeersError: a task does not respond within `seconds`.
        """

    def join(self, session: Session, epochs: Epochs | None) -> None:
        """Wait for the chief's variables, on a replica that is not the chief.

        Args:
            session: The session.
            epochs: The epochs by the settings of this task; None if they are not known.

        Raises:
            LostPeersError: the chief does not respond in time.
        """

    def agreement(self, session: Session, callback: Callback) -> Callable[[int], int]:
        """Return a function that takes the steps which this replica proposes, and returns the steps to take.

        The chief proposes 0 when the run is over before its last step.
        """
        return int

    @contextlib.contextmanager
    def participation(self, session: Session, step: int, last_step: int, callback: Callback) -> Iterator[None]:
        """Return a context for the steps of a session, from this global step to the last one of the run.

        On the chief, run the updates of the replication concurrently with its steps, if it has any.
        """
        with self._updating(session, step, lambda _: last_step):
            yield

    def _updating(
        self, session: Session, step: int, stop: Callable[[int], int]
    ) -> contextlib.AbstractContextManager[object]:
        """A context in which the updates of the replication run, if it has any."""
        updates = self._replica.replication.updates
        if not updates:
            return contextlib.nullcontext()
        callables = {steps: session.make_callable(update) for steps, update in updates.items()}
        return UpdateLoop(session, callables, step, stop)

    def count_replicas(self, session: Session) -> int:
        """Return how many replicas advance the global step without waiting for each other."""
        return 1

    def withdraw(self, session: Session, leases: Leases | None) -> None:
        """Called after the last step of a session, also if this task is told to end before the run is done."""

    def rolled_back(self) -> None:
        """Called after the chief has restored the best checkpoint of a run that diverged.

        Raises:
            CollectiveLostError: this process must restart.
        """

    def recover(self, error: Exception) -> None:
        """Handle an error of the session. Return if the replica can open another session.

        Raises:
            Exception: `error`, if no other task has caused it.
            LostPeersError: another task is lost, and this task must exit.
            CollectiveLostError: another task is lost, and this process must restart.
        """
        raise error

    def leave(self) -> None:
        """End this replica's part in a run that is done, after the chief has written the result.

        Raises:
            LostPeersError, CollectiveLostError: a replica was lost before that.
        """


class ClusterCoordinator(Coordinator):
    """Waits for the tasks that a replica needs, and notices their loss."""

    def __init__(
        self, context: TaskContext, cluster: Cluster, replica: Replica, own_server: TaskServer, needed: tuple[Task, ...]
    ) -> None:
        """`needed` are the tasks without which this replica cannot take a step."""
        super().__init__(context, replica)
        self._cluster, self._server = cluster, own_server
        self._needed = {task: cluster.address(task) for task in needed}

    @property
    def needed(self) -> Mapping[str, str]:
        return {str(task): address for task, address in self._needed.items() if task != self._cluster.task}

    def wait_for_peers(self, seconds: float) -> None:
        context = self._context
        context.watchdog.pause()
        context.watchdog.operation = "connecting"
        with context.metrics.waiting():
            peers.wait_for_own_name(self._cluster.address(self._cluster.task), seconds, context.is_stopping)
            needed = {str(task): address for task, address in self._needed.items()}
            peers.wait_for(needed, seconds, context.is_stopping)
        context.watchdog.progress()

    def _raise_unless_peer_lost(self, error: Exception) -> None:
        if not session_errors.is_lost_task(error, self._cluster.task.device, self._is_peer_lost):
            raise error

    def _lost_peer(self, error: Exception) -> str | None:
        """The name of the first needed task that did not answer; None if the error names none."""
        others = {task.device: str(task) for task in self._needed if task != self._cluster.task}
        called = [others[device] for device in session_errors.called_tasks(error) if device in others]
        monitored = [name for name in others.values() if f"{name} at " in str(error)]  # by the peer monitor
        return next(iter([*called, *monitored]), None)

    def _is_peer_lost(self) -> bool:
        others = [address for task, address in self._needed.items() if task != self._cluster.task]
        return any(peers.probe_errors(others))


class ParameterServerCoordinator(ClusterCoordinator):
    """Coordinates a replica that trains with parameter servers."""

    @property
    def needed(self) -> Mapping[str, str]:
        """The parameter servers. A synchronous step also waits for the chief, and the chief for all replicas."""
        cluster, needed = self._cluster, dict(super().needed)
        if self._replica.replication.independent_replicas == 1:
            replicas = cluster.replicas if cluster.is_chief else (cluster.chief_task,)
            needed |= {str(task): cluster.address(task) for task in replicas if task != cluster.task}
        return needed

    def join(self, session: Session, epochs: Epochs | None) -> None:
        context, cluster = self._context, self._cluster
        context.watchdog.operation = "reading whether the run has begun"
        address, seconds = cluster.address(cluster.chief_task), context.settings.wait_seconds
        chief = f"the chief ({cluster.chief_task}) at {address}"

        def not_ready() -> str:
            if session.run(self._replica.is_ready):
                found = self._replica.course.read(session).epochs
                if not (found and epochs and found.examples == epochs.examples and found.per_step != epochs.per_step):
                    return ""
                return (
                    f"its steps take {found.per_step} examples and those of this task {epochs.per_step}, so it must "
                    "restart with the same settings"
                )
            context.watchdog.progress()
            return "it has not initialized the parameters yet"

        with context.metrics.waiting():
            poll_until(
                not_ready,
                seconds,
                waiting=lambda reason: [f"waiting for {chief}: {peers.probe_error(address) or reason}"],
                expired=lambda reason: (
                    f"{chief} did not begin the run within {seconds:g} s: {peers.probe_error(address) or reason}; "
                    "start it, check its log, or raise wait_seconds."
                ),
                interrupted=context.is_stopping,
                interval=0.1,
                first_message=5.0,
            )

    @contextlib.contextmanager
    def participation(self, session: Session, step: int, last_step: int, callback: Callback) -> Iterator[None]:
        """On the chief, also follow which replicas take part."""
        cluster, settings, membership = self._cluster, self._context.settings, self._replica.replication.membership
        with contextlib.ExitStack() as stack:
            stop = lambda _: last_step  # noqa: E731
            if membership and cluster.is_chief and step < last_step:
                addresses = {str(task): cluster.address(task) for task in cluster.replicas}
                monitor = ReplicaMonitor(session, self._replica, membership, addresses, settings, callback)
                stop = stack.enter_context(monitor).stop
            with self._updating(session, step, stop):
                yield

    def count_replicas(self, session: Session) -> int:
        membership = self._replica.replication.membership
        return max(1, int((session.run(membership.last_steps) > PAUSED).sum())) if membership else 1

    def withdraw(self, session: Session, leases: Leases | None) -> None:
        """Let the others go on at once without this replica, which is told to end."""
        membership, shared = self._replica.replication.membership, self._replica.leases
        if membership and self._context.is_stopping():
            with contextlib.suppress(*server.LOST):
                if shared and leases:
                    session.run(shared.leave, {shared.done: leases.done}, options=_timeout(LEAVE_SECONDS))
                session.run(membership.leave, options=_timeout(LEAVE_SECONDS))

    def recover(self, error: Exception) -> None:
        self._raise_unless_peer_lost(error)
        settings = self._context.settings
        if time.monotonic() - self._context.clock.last_progress > settings.wait_seconds + settings.stall_seconds:
            raise LostPeersError(f"the parameter servers respond, but no step succeeds: {brief(error)}") from error
        reason = f"lost {self._lost_peer(error) or 'a parameter server'} ({brief(error)})"
        report.log(logger, f"{reason}; reconnecting", lost={"reason": reason})
        with self._context.metrics.waiting():
            time.sleep(PAUSE_SECONDS)

    def _is_peer_lost(self) -> bool:
        """Return whether a parameter server does not respond, or has restarted without variables."""
        if super()._is_peer_lost():
            return True
        try:
            with self._server.session(self._replica.graph, "/job:ps") as session:
                return not session.run(self._replica.is_ready)
        except server.LOST:
            return True

    def leave(self) -> None:
        if self._cluster.is_chief:
            parameter_server.signal_done(self._cluster, self._server)


class CollectiveCoordinator(ClusterCoordinator):
    """Coordinates a replica of a collective group.

    Collective ops never work again in a process in which one has failed. Therefore a replica restarts its own process.
    A chief without progress exits, so that the launcher or Kubernetes counts the restart.
    """

    def __init__(
        self,
        context: TaskContext,
        cluster: Cluster,
        replica: Replica,
        own_server: TaskServer,
        group: CollectiveGroup,
    ) -> None:
        super().__init__(context, cluster, replica, own_server, cluster.replicas)
        self._group = group

    def join(self, session: Session, epochs: Epochs | None) -> None:
        self._context.watchdog.operation = "initializing the parameters"
        session.run(self._replica.initialize)  # the chief's values replace these

    def agreement(self, session: Session, callback: Callback) -> Callable[[int], int]:
        """All replicas take the steps that the chief proposes, with its parameters if something has changed these."""
        agree = session.make_callable(self._group.agreed, [self._group.wanted])
        known = self._replica.replication.executions

        def agree_on(proposed: int) -> int:
            steps = int(agree(SHARE_ALL if callback.take_changes() else proposed))
            if steps == SHARE_ALL:
                session.run(self._replica.replication.join)
                steps = int(agree(proposed))
            if steps and steps not in known:
                raise ConfigurationError(
                    f"steps_per_execution: the chief takes {steps} and this replica {max(known)}; "
                    "give all replicas the same settings."
                )
            return steps

        return agree_on

    @contextlib.contextmanager
    def participation(self, session: Session, step: int, last_step: int, callback: Callback) -> Iterator[None]:
        """Monitor the other replicas. When one is lost, the chief saves its own parameters."""

        def give_up() -> None:
            """Save on behalf of the blocked main thread, then close its session, which raises an error in it."""
            self._context.account.lost()
            callback.save_before_exit()
            session.close()

        others, chief = self.needed, str(self._cluster.chief_task)
        watched = others if self._cluster.is_chief else {chief: others[chief]}
        monitor = PeerMonitor(others, watched, self._context.watchdog, give_up)
        try:
            with monitor:
                yield
        except (*server.LOST, RuntimeError) as error:
            if monitor.lost:  # the cause of any error of the closed session
                raise tf.errors.UnavailableError(None, None, monitor.lost) from error
            if isinstance(error, server.LOST):
                self._context.account.lost()
                callback.save_before_exit()
            raise

    def rolled_back(self) -> None:
        raise CollectiveLostError("the run was rolled back")

    def recover(self, error: Exception) -> None:
        self._raise_unless_peer_lost(error)
        if not self._context.is_stopping():
            self._raise_lost(error)

    def leave(self) -> None:
        is_chief, watchdog = self._cluster.is_chief, self._context.watchdog
        seconds = parameter_server.LINGER_SECONDS if is_chief else LEAVE_SHARE * self._context.settings.stall_seconds
        with self._server.session(self._replica.graph) as session:
            if not is_chief:
                watchdog.operation = "waiting until the chief has written the result"
                watchdog.progress()
            try:
                session.run(self._group.leave, options=_timeout(seconds))
            except server.LOST as error:
                if not is_chief:
                    watchdog.pause()
                    self._raise_lost(error)
            watchdog.pause()
            # All replicas have passed the first barrier before one passes the second. A failure here is harmless.
            with contextlib.suppress(*server.LOST):
                session.run(self._group.leave, options=_timeout(parameter_server.LINGER_SECONDS))

    def _raise_lost(self, error: Exception) -> NoReturn:
        """Raise the error after which this process restarts, or this task exits.

        A replica without progress may have met the old group of the chief, which first has to notice that it has lost
        this task's former process, and to save. It asks again until then; if the chief itself cannot begin, it exits.
        """
        sentence = f"lost {self._lost_peer(error) or 'another replica'} ({brief(error)})"
        has_begun, cluster = self._context.clock.own_seconds > 0, self._cluster
        if not has_begun and cluster.is_chief:
            raise LostPeersError(f"{sentence} before the first step") from error
        if not has_begun:
            peers.wait_for_end(cluster.address(cluster.chief_task), OLD_CHIEF_SECONDS)
        raise CollectiveLostError(sentence) from error


def make_coordinator(context: TaskContext, replica: Replica, own_server: TaskServer) -> Coordinator:
    """Return the coordinator of this task's replica."""
    cluster, group = context.cluster, replica.replication.collective
    if cluster is None:
        return Coordinator(context, replica)
    if group:
        return CollectiveCoordinator(context, cluster, replica, own_server, group)
    return ParameterServerCoordinator(context, cluster, replica, own_server, cluster.parameter_servers)


def _timeout(seconds: float) -> tf1.RunOptions:
    return tf1.RunOptions(timeout_in_ms=int(1000 * seconds))
