"""The training of one replica (chief, worker or single process): connect, restore, step, report, save, end.

`train` is the whole program of a replica; the functions below it are its phases, in order. `trainer.graph.replication`
aggregates the gradients of the replicas, and `trainer.training.chief` holds the chief's other duties.
"""

import contextlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trainer
from trainer.cluster import peers
from trainer.cluster.spec import Cluster
from trainer.config import Settings
from trainer.data import datasets
from trainer.data.datasets import Dataset
from trainer.errors import CollectiveLostError, ConfigurationError, LostPeersError, RollBackError
from trainer.graph import devices
from trainer.graph.checkpoints import CheckpointList
from trainer.graph.execution import ExecutionPlanner, next_multiple
from trainer.graph.replica import Replica, build, describe_mode
from trainer.graph.replication import CollectiveGroup
from trainer.models import find
from trainer.telemetry.metrics import Metrics
from trainer.telemetry.progress import Clock, Progress
from trainer.telemetry.result import describe as describe_result
from trainer.telemetry.result import to_line
from trainer.telemetry.tracing import Tracer
from trainer.tensorflow import tf, tf1
from trainer.training import best, server, session_errors
from trainer.training.chief import Chief
from trainer.training.evaluation import UNREADABLE, CheckpointEvaluator, Score
from trainer.training.peer_monitor import PeerMonitor
from trainer.training.periodic_evaluation import PeriodicEvaluation
from trainer.training.run_record import RunRecord
from trainer.training.threads import Threads, choose
from trainer.training.training_directory import TrainingDirectory, describe, new_path
from trainer.training.update_loop import UpdateLoop
from trainer.training.watchdog import Watchdog

STALE_SECONDS = 0.01
"""After a pause of this length, such as a save, read the global step again: other replicas may have advanced it."""

LINE_INTERVAL_SECONDS = 1.0
"""Minimum seconds between two progress lines: in Kubernetes each line passes five programs on its way to a log."""


@dataclass(frozen=True)
class TaskContext:
    """The objects that all phases of a replica share."""

    settings: Settings
    cluster: Cluster | None
    replica: Replica
    watchdog: Watchdog
    clock: Clock
    log: Callable[[str], None]
    metrics: Metrics


def train(
    settings: Settings, cluster: Cluster | None, watchdog: Watchdog, log: Callable[[str], None], metrics: Metrics
) -> bool:
    """Train as this task of the cluster, or alone; return True if the run is done, False if the watchdog stopped it.

    Raises:
        ConfigurationError: the settings do not fit the data, the training directory or the cluster.
        LostPeersError: other tasks did not respond in time.
        CollectiveLostError: the collective group lost a replica, or the run was rolled back.
        DivergedError: the run diverges and cannot continue.
    """
    dataset = datasets.load(settings.dataset, settings.data_dir, settings.download)
    model = find(settings.model)
    parameters = model.parameters(dataset.image_shape, dataset.classes, settings.hidden_units)
    directory, run = None, {}
    if cluster is None or cluster.is_chief:
        directory = TrainingDirectory(settings.train_dir or new_path())
        directory.create()
        run = describe(settings.model, parameters, dataset)
        directory.claim(run)
        log(f"training directory: {directory.path}")
    run_id = json.dumps([run, str(directory.path.resolve())]) if directory else ""
    replica = build(settings, cluster, model, parameters, dataset.train, devices.count_gpus(settings), run_id)
    threads = choose(settings, cluster.task.role if cluster else None)
    context = TaskContext(settings, cluster, replica, watchdog, Clock(settings.train_steps), log, metrics)
    own_server = server.start(cluster, threads) if cluster else None

    collective = replica.replication.collective
    earlier = directory.read_result() if directory else {}
    was_done = earlier.get("state", "done") == "done" and earlier.get("global_step", 0) >= settings.train_steps
    record = _make_record(context, directory, earlier, dataset) if directory else None
    evaluation = None
    if record and not was_done:
        evaluation = PeriodicEvaluation(
            settings.eval_seconds,
            lambda: CheckpointEvaluator(model, parameters, dataset.test),
            lambda candidate, score: record.add_evaluation(candidate, score, is_candidate=True),
            log,
        )
    diverged: RollBackError | None = None
    while True:
        if cluster:
            try:
                _wait_for_peers(
                    context, cluster, min(settings.wait_seconds, server.SIGNAL_DONE_SECONDS if was_done else math.inf)
                )
            except LostPeersError:
                if not was_done:
                    raise
                log("the run was done before, and the other tasks have ended")
                return True
        if watchdog.stopping:
            return False
        try:
            with contextlib.ExitStack() as stack:
                session = stack.enter_context(server.open_session(replica.graph, own_server, threads, "/job:ps"))
                chief = None
                if directory and record:
                    chief = stack.enter_context(
                        Chief(
                            *(settings, directory, replica, session, log, metrics, run_id, record, evaluation),
                            untrained_loss=math.log(dataset.classes),
                        )
                    )
                    chief.prepare(diverged)
                    if diverged and collective:
                        raise CollectiveLostError("the run was rolled back")
                    diverged = None
                elif collective:
                    session.run(replica.initialize)  # the chief's values replace these
                elif cluster:
                    with metrics.waiting():
                        _wait_for_the_chief(context, cluster, session)
                _take_steps(context, session, chief)
                checkpoint = chief.checkpoint if chief else ""
                break
        except RollBackError as found:
            diverged = found
        except server.LOST as error:
            if cluster is None or not _is_lost_task(context, cluster, own_server, threads, error):
                raise
            if collective:
                if watchdog.stopping:
                    return False
                raise _lost_replica_error(context, error) from error
            if time.monotonic() - context.clock.last_progress > settings.wait_seconds + settings.stall_seconds:
                raise LostPeersError(
                    f"the parameter servers respond, but no step succeeds: {server.brief(error)}"
                ) from error
            log(f"lost a parameter server ({server.brief(error)}); reconnecting")
            with metrics.waiting():
                time.sleep(1)

    watchdog.save_before_exit = None
    watchdog.pause()
    if watchdog.stopping:
        if directory and cluster is None:
            step = directory.newest_step()
            saved = "no checkpoint was saved; start again" if step is None else f"saved step {step}; continue"
            log(f"{saved} with the same command and --train_dir {directory.path}")
        return False
    if directory and record:
        if evaluation:
            evaluation.wait()  # it writes the state "running" to result.json
        with evaluation or contextlib.nullcontext(), CheckpointEvaluator(model, parameters, dataset.test) as evaluator:
            _write_result(context, directory, checkpoint, record, evaluator, was_done)
    if cluster and collective:
        with server.open_session(replica.graph, own_server, threads) as session:
            _leave(context, cluster, collective, session)
    elif cluster and directory:
        server.signal_done(cluster, own_server, threads, log)
    return True


def _wait_for_peers(context: TaskContext, cluster: Cluster, seconds: float) -> None:
    """Wait for the tasks that this replica needs, before TensorFlow connects to them.

    Raises:
        LostPeersError: a task does not respond within `seconds`.
    """
    context.watchdog.pause()
    arguments = (seconds, context.log, lambda: context.watchdog.stopping)
    with context.metrics.waiting():
        peers.wait_for_own_name(cluster.address(cluster.task), *arguments)
        needed = cluster.replicas if context.replica.replication.collective else cluster.parameter_servers
        peers.wait_for({str(task): cluster.address(task) for task in needed}, *arguments)
    context.watchdog.progress()


def _is_lost_task(context: TaskContext, cluster: Cluster, own_server: Any, threads: Threads, error: Exception) -> bool:
    """Return whether this session error means that another task is lost, and not that this one failed."""
    collective = context.replica.replication.collective
    needed = cluster.replicas if collective else cluster.parameter_servers

    def is_peer_lost() -> bool:
        """Return whether a needed task does not respond, or a parameter server restarted without variables."""
        if any(peers.probe_errors([cluster.address(task) for task in needed if task != cluster.task])):
            return True
        if collective:
            return False
        try:
            with server.open_session(context.replica.graph, own_server, threads, "/job:ps") as session:
                return not session.run(context.replica.is_ready)
        except server.LOST:
            return True

    return session_errors.is_lost_task(error, cluster.task.device, is_peer_lost)


def _wait_for_the_chief(context: TaskContext, cluster: Cluster, session: Any) -> None:
    """Wait until the chief has initialized or restored every variable.

    Raises:
        LostPeersError: the chief has not done so within `wait_seconds`.
    """
    seconds = context.settings.wait_seconds
    address = cluster.address(cluster.chief_task)
    chief = f"the chief ({cluster.chief_task}) at {address}"
    deadline = time.monotonic() + seconds
    next_message = time.monotonic() + peers.MESSAGE_INTERVAL_SECONDS
    while not context.watchdog.stopping and not session.run(context.replica.is_ready):
        context.watchdog.progress()
        now = time.monotonic()
        if now >= min(deadline, next_message):
            reason = peers.probe_error(address) or "it has not initialized the parameters yet"
            if now >= deadline:
                raise LostPeersError(
                    f"{chief} did not begin the run within {seconds:g} s: {reason}; start it, check its log, or raise "
                    "wait_seconds."
                )
            context.log(f"waiting for {chief}: {reason}")
            next_message = now + peers.MESSAGE_INTERVAL_SECONDS
        time.sleep(0.1)


def _take_steps(context: TaskContext, session: Any, chief: Chief | None) -> None:
    """Train up to the run's last global step, or until the watchdog stops this task. In both cases the chief saves."""
    settings, replica, replication, watchdog = (
        context.settings,
        context.replica,
        context.replica.replication,
        context.watchdog,
    )
    metrics, last_step = context.metrics, context.settings.train_steps
    executions = {
        steps: session.make_callable(
            [execution.step, execution.loss, execution.accuracy], replica.batches.feeds, accept_options=True
        )
        for steps, execution in replication.executions.items()
    }
    tracer = Tracer(lambda: chief is not None and chief.profile.running)
    if settings.step_time_breakdown:
        executions = {steps: tracer.watch(steps, execution) for steps, execution in executions.items()}
    independent_replicas = (
        1 if settings.sync_replicas or replication.collective or not context.cluster else len(context.cluster.replicas)
    )
    planner = ExecutionPlanner(settings, max(executions), independent_replicas)
    agree = (
        session.make_callable(replication.collective.agreed, [replication.collective.wanted])
        if replication.collective
        else int
    )

    replica.batches.begin(session)
    session.run(replication.join)
    step = int(session.run(replica.global_step))
    context.log(f"at step {step} of {last_step}")
    context.clock.tick(step)
    metrics.global_step = step
    now = time.monotonic()
    reported_step, reported_time, logged_time = step, now, -math.inf
    updates = None
    if chief:
        watchdog.save_before_exit = chief.save_before_exit
        if replication.updates:
            callables = {steps: session.make_callable(update) for steps, update in replication.updates.items()}
            updates = UpdateLoop(session, callables, step, last_step)
    if step < last_step and (last_step - step) % settings.local_steps:
        raise ConfigurationError(
            f"local_steps: the run is at step {step}, from which rounds of {settings.local_steps} steps do not end at "
            f"train_steps {last_step}; choose others."
        )
    with updates or contextlib.nullcontext(), _monitored_collective(context, session, chief):
        while step < last_step and not watchdog.stopping:
            watchdog.progress()
            if independent_replicas > 1 and time.monotonic() - now > STALE_SECONDS:
                step = int(session.run(replica.global_step))
                now = time.monotonic()
                continue
            steps = int(agree(planner.choose(step)))
            if steps not in executions:
                raise ConfigurationError(
                    f"steps_per_execution: the chief takes {steps} and this replica {max(executions)}; "
                    "give all replicas the same settings."
                )
            if chief:
                chief.profile.before_execution(step, steps * independent_replicas)
            began = time.monotonic()
            measured, loss, accuracy = executions[steps](*replica.batches.take(steps))
            now = time.monotonic()
            planner.took(steps, now - began)
            step = int(measured)
            context.clock.tick(step)
            metrics.global_step = step
            metrics.examples += steps * settings.batch_size * replica.learners
            if step >= min(next_multiple(settings.report_steps, reported_step), last_step):
                rate = (step - reported_step) / (now - reported_time)
                progress = Progress(step, last_step, float(loss), float(accuracy), rate)
                reported_step, reported_time = step, now
                if step >= last_step or now - logged_time >= LINE_INTERVAL_SECONDS:
                    logged_time = now
                    context.log(str(progress))
                metrics.report(progress)
                if chief:
                    chief.report(progress)
            if chief:
                chief.check_loss(step, float(loss))
                chief.profile.after_execution(step)
                chief.save_if_due(step)
                chief.evaluate_if_due()
        if chief and watchdog.stopping:
            chief.save()
        elif chief:
            chief.save_final()
    if tracer.step_time:
        context.log(str(tracer.step_time))


@contextlib.contextmanager
def _monitored_collective(context: TaskContext, session: Any, chief: Chief | None) -> Iterator[None]:
    """Monitor the other replicas of a collective group. When one is lost, the chief saves its own parameters."""
    if not context.cluster or not context.replica.replication.collective:
        yield
        return

    def give_up() -> None:
        """Save on behalf of the blocked main thread, then close its session, which raises an error in it."""
        if chief:
            chief.save_before_exit()
        session.close()

    others = [task for task in context.cluster.replicas if task != context.cluster.task]
    addresses = {str(task): context.cluster.address(task) for task in others}
    monitor = PeerMonitor(addresses, context.watchdog.stalled_for, give_up)
    try:
        with monitor:
            yield
    except (*server.LOST, RuntimeError) as error:
        if monitor.lost:  # the cause of any error of the closed session
            raise tf.errors.UnavailableError(None, None, monitor.lost) from error
        if chief and isinstance(error, server.LOST):
            chief.save()
        raise


def _lost_replica_error(context: TaskContext, error: Exception) -> Exception:
    """Return the error that a replica of a collective group raises when it loses another one.

    Collective ops never work again in a process in which one has failed. Therefore a replica that has made progress
    restarts its own process. Otherwise it exits, so that the launcher or Kubernetes counts the restart.
    """
    sentence = f"another replica was lost ({server.brief(error)})"
    has_stepped = context.clock.own_seconds > 0
    return CollectiveLostError(sentence) if has_stepped else LostPeersError(f"{sentence} before the first step")


def _leave(context: TaskContext, cluster: Cluster, collective: CollectiveGroup, session: Any) -> None:
    """End together with the other replicas, after the chief has written the result.

    Raises:
        LostPeersError, CollectiveLostError: a replica was lost before that.
    """
    seconds = server.LINGER_SECONDS if cluster.is_chief else context.settings.stall_seconds
    try:
        session.run(collective.leave, options=tf1.RunOptions(timeout_in_ms=int(1000 * seconds)))
    except server.LOST as error:
        if not cluster.is_chief:
            raise _lost_replica_error(context, error) from error
    # All replicas have passed the first barrier before one passes the second. A failure own_server is harmless.
    with contextlib.suppress(*server.LOST):
        session.run(collective.leave, options=tf1.RunOptions(timeout_in_ms=int(1000 * server.LINGER_SECONDS)))


def _make_record(
    context: TaskContext, directory: TrainingDirectory, earlier: dict[str, Any], dataset: Dataset
) -> RunRecord:
    """Return the record of this run. It continues an earlier result.json."""
    settings, cluster = context.settings, context.cluster
    facts = {
        "mode": describe_mode(settings, cluster),
        "workers": len(cluster.replicas) if cluster else context.replica.learners,
        "ps": len(cluster.ps) if cluster else 0,
        "model": settings.model,
        "dataset": dataset.name,
        "dataset_digest": dataset.digest,
        "train_dir": str(directory.path),
        "version": trainer.__version__,
    }
    context.clock.earlier = float(earlier.get("seconds", 0.0))
    return RunRecord(directory, facts, context.clock, earlier.get("last"), context.log, context.metrics)


def _write_result(
    context: TaskContext,
    directory: TrainingDirectory,
    checkpoint: str,
    record: RunRecord,
    evaluator: CheckpointEvaluator,
    was_done: bool,
) -> None:
    """Evaluate the run's last checkpoint, export the best or the last one, and write result.json.

    A run that was done before this process started keeps its result.
    """
    score = evaluator.score(checkpoint)
    result = directory.read_result()
    is_done = was_done and result.get("state", "done") == "done"
    if not is_done or context.clock.own_seconds > 0 or result.get("global_step") != score.global_step:
        if directory.has_evaluator:  # it may not evaluate these in time for the export
            _offer(directory, evaluator)
            score = evaluator.score(checkpoint)
        record.add_evaluation(checkpoint, score, is_candidate=False)
        export = _export(context, directory, score, evaluator)
        result = record.write_done(checkpoint, score, str(export))
        shutil.rmtree(directory.candidate, ignore_errors=True)
    context.log(
        f"done: {result['global_step']} steps in {result['seconds']:.1f} s ({result['steps_per_second']:.1f} steps/s), "
        f"{describe_result(result)}, test loss {score.loss:.4f}, result in {directory.path / 'result.json'}"
    )
    if context.cluster:  # the supervisor reads it from the log
        context.log(to_line(result))


def _offer(directory: TrainingDirectory, evaluator: CheckpointEvaluator) -> None:
    """Offer each listed checkpoint as the best one."""
    for path in CheckpointList(directory.path, keep=1).paths:
        with contextlib.suppress(*UNREADABLE, OSError):
            best.offer(directory.best, path, evaluator.score(path))


def _export(context: TaskContext, directory: TrainingDirectory, score: Score, evaluator: CheckpointEvaluator) -> Path:
    """Export the best checkpoint, or the last one, which the evaluator holds; return the SavedModel's folder."""
    step, kept = score.global_step, best.read(directory.best)
    if context.settings.export == "best" and kept:
        try:
            evaluator.restore(kept.checkpoint)
            step = kept.score.global_step
        except UNREADABLE:
            context.log(f"the best checkpoint {kept.checkpoint} cannot be read; exporting the last one")
    export = directory.path / "export" / str(step)
    export.parent.mkdir(exist_ok=True)
    evaluator.export(export)
    return export
