"""The training loop: the steps of one replica in one session."""

import logging
import time

from trainer.data.leases import ASK_SECONDS, Leases
from trainer.graph.execution import ExecutionPlanner, check_rounds
from trainer.graph.replica import Replica
from trainer.tensorflow_types import Session
from trainer.training.callback import Callback
from trainer.training.context import TaskContext
from trainer.training.coordinator import Coordinator
from trainer.training.executions import Executions
from trainer.training.hook_gate import HookGate
from trainer.training.watch.progress_reporter import ProgressReporter

logger = logging.getLogger(__name__)

STALE_SECONDS = 0.01
"""After a pause of this length, such as a save, read the global step again: other replicas may have advanced it."""
COUNT_SECONDS = 0.5
"""Seconds after which the replicas that take part are counted again, and whether the run is over is read again."""


def take_steps(
    context: TaskContext, replica: Replica, session: Session, coordinator: Coordinator, callback: Callback
) -> None:
    """Train until the last global step of the run, or until the watchdog stops this task.

    Args:
        context: The task.
        replica: The replica's graph, whose variables are initialized or restored in the session.
        session: The session.
        coordinator: Coordinates this replica with the tasks that it needs.
        callback: Follows the loop.

    Raises:
        ConfigurationError: the settings do not fit the global step or the other replicas.
        tf.errors.OpError: another task is lost, or the model's own code failed.
    """
    settings, watchdog, replication = context.settings, context.watchdog, replica.replication
    watchdog.operation = "reading the global step"
    session.run([replication.join, *([replica.leases.join] if replica.leases else [])])
    course, step = replica.course.read(session), int(session.run(replica.global_step))
    own = replica.leases.own(session) if replica.leases else None
    replica.batches.begin(session, course.begun, own)
    leases = replica.files.begin(own) if replica.files and own else own
    last_step = course.last_step
    check_rounds(replica.mode.local_steps, step, last_step)
    logger.info(f"at step {min(step, last_step)} of {last_step}")

    executions = Executions(replica, session, leases)
    replicas = replica.mode.beginners if replica.mode.is_independent else 1
    epochs = course.epochs if replica.epochs else None
    planner = ExecutionPlanner(
        settings,
        replica.mode.local_steps,
        max(replication.executions),
        replicas,
        course.stop,
        replica.hook_steps,
        epochs.end if epochs else None,
    )
    gate = HookGate(replica, session, planner.next_hooks, leases)
    reporter = ProgressReporter(context, replica.mode.devices, step, last_step)
    agree = coordinator.agreement(session, callback)
    callback.on_train_begin()
    with coordinator.participation(session, step, course.stop, callback):
        read = counted = looked = time.monotonic()
        while not watchdog.stopping:
            if step >= planner.last_step:
                planner.last_step = replica.course.read(session).stop
                if step >= planner.last_step:
                    break
            watchdog.progress()
            watchdog.operation = "taking steps"
            if replication.independent_replicas > 1 and time.monotonic() - read > STALE_SECONDS:
                step, read = int(session.run(replica.global_step)), time.monotonic()
                continue
            if replica.is_over is not None and time.monotonic() - looked > COUNT_SECONDS:
                looked = time.monotonic()
                if session.run(replica.is_over_now):
                    break
            if not callback.is_over:
                callback.on_execution_due(step)
            if not callback.is_over and not gate.pass_through(step, watchdog):
                break
            steps = agree(0 if callback.is_over else planner.choose(step))
            if not steps:
                break
            if leases and not executions.can_take(steps):
                steps = replica.mode.local_steps
                if not executions.can_take(steps):
                    if leases.is_over:
                        gate.arrive(int(session.run(replica.global_step)))
                        break
                    step = pause(replica, session, leases)
                    continue
            callback.on_execution_begin(step, steps * planner.replicas)
            outcome = executions.run(steps, step)
            step, read = outcome.step, outcome.ended
            gate.arrive(step)
            planner.took(steps, outcome.seconds)
            if replication.independent_replicas > 1 and outcome.ended - counted > COUNT_SECONDS:
                planner.replicas, counted = coordinator.count_replicas(session), outcome.ended
            if progress := reporter.report(outcome):
                callback.on_report(progress)
            callback.on_execution_end(outcome)
        if callback.is_over and step < last_step:
            logger.info(f"a callback has ended the run at step {step} of {last_step}")
        if replica.end_early is not None and replica.mode.index == 0 and not watchdog.stopping:
            session.run(replica.end_early)  # others may wait for its hooks
        callback.on_train_end(is_complete=not watchdog.stopping)
    coordinator.withdraw(session, leases)


def pause(replica: Replica, session: Session, leases: Leases) -> int:
    """Wait for a lease: the others have all that are left. The rounds go on without this replica.

    Returns:
        The global step after that.
    """
    membership, shared = replica.replication.membership, replica.leases
    if shared:
        session.run(shared.report, {shared.done: leases.done})
    if membership and replica.mode.has_rounds:
        session.run(membership.pause)
    time.sleep(ASK_SECONDS)
    return int(session.run(replica.global_step))
