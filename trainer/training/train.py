"""The life of one replica (chief, worker or single process): look, restore, step, report, save, end.

`train` is that life, from top to bottom; the functions below it are its phases, in order. How replicas exchange
gradients is `trainer.graph.replication`'s business, what the chief does beside them is `trainer.training.chief`'s.
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
"""After so long, as for a checkpoint, other replicas may have taken the run on by more than what is known here."""

BETWEEN_LINES = 1.0
"""Seconds between two progress lines at least: in Kubernetes each passes five programs on its way to a log."""


@dataclass(frozen=True)
class TaskContext:
    """What every phase of a replica's life needs to know."""

    settings: Settings
    cluster: Cluster | None
    replica: Replica
    watchdog: Watchdog
    clock: Clock
    say: Callable[[str], None]
    metrics: Metrics


def train(
    settings: Settings, cluster: Cluster | None, watchdog: Watchdog, say: Callable[[str], None], metrics: Metrics
) -> bool:
    """Train as this task of the cluster, or alone; whether the run is done, rather than stopped by the guard.

    Raises:
        ConfigurationError: the settings do not fit the data, the training directory or the cluster.
        LostPeersError: other tasks did not answer in the time allowed.
        LostCircleError: one was lost without which the others cannot go on.
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
        say(f"training directory: {directory.path}")
    run_id = json.dumps([run, str(directory.path.resolve())]) if directory else ""
    replica = build(settings, cluster, model, parameters, dataset.train, devices.count_gpus(settings), run_id)
    threads = choose(settings, cluster.task.role if cluster else None)
    context = TaskContext(settings, cluster, replica, watchdog, Clock(settings.train_steps), say, metrics)
    here = server.start(cluster, threads) if cluster else None

    collective = replica.replication.collective
    earlier = directory.read_result() if directory else {}
    was_done = earlier.get("state", "done") == "done" and earlier.get("global_step", 0) >= settings.train_steps
    record = _make_record(context, directory, earlier, dataset) if directory else None
    evaluation = None
    if record and not was_done:
        evaluation = PeriodicEvaluation(
            settings.eval_seconds,
            lambda: CheckpointEvaluator(model, parameters, dataset.test),
            lambda candidate, score: record.examined(candidate, score, is_candidate=True),
            say,
        )
    diverged: RollBackError | None = None
    while True:
        if cluster:
            try:
                _look_for_peers(
                    context, cluster, min(settings.wait_seconds, server.TELL_SECONDS if was_done else math.inf)
                )
            except LostPeersError:
                if not was_done:
                    raise
                say("the run was done before, and the others have ended")
                return True
        if watchdog.stopping:
            return False
        try:
            with contextlib.ExitStack() as stack:
                session = stack.enter_context(server.open_session(replica.graph, here, threads, "/job:ps"))
                chief = None
                if directory and record:
                    chief = stack.enter_context(
                        Chief(
                            *(settings, directory, replica, session, say, metrics, run_id, record, evaluation),
                            untrained_loss=math.log(dataset.classes),
                        )
                    )
                    chief.prepare(diverged)
                    if diverged and collective:
                        raise CollectiveLostError("the run was rolled back")
                    diverged = None
                elif collective:
                    session.run(replica.initialize)  # until the chief's values come
                elif cluster:
                    with metrics.waiting():
                        _wait_for_the_chief(context, cluster, session)
                _take_steps(context, session, chief)
                checkpoint = chief.checkpoint if chief else ""
                break
        except RollBackError as found:
            diverged = found
        except server.LOST as error:
            if cluster is None or not _is_loss(context, cluster, here, threads, error):
                raise
            if collective:
                if watchdog.stopping:
                    return False
                raise _lost(context, error) from error
            if time.monotonic() - context.clock.last_progress > settings.wait_seconds + settings.stall_seconds:
                raise LostPeersError(
                    f"the parameter servers answer, but no step succeeds: {server.brief(error)}"
                ) from error
            say(f"lost a parameter server ({server.brief(error)}); looking for it")
            with metrics.waiting():
                time.sleep(1)

    watchdog.last_save = None
    watchdog.pause()
    if watchdog.stopping:
        if directory and cluster is None:
            step = directory.newest_step()
            saved = "no checkpoint was saved; start again" if step is None else f"saved step {step}; continue"
            say(f"{saved} with the same command and --train_dir {directory.path}")
        return False
    if directory and record:
        if evaluation:
            evaluation.wait()  # what it writes is of a run that goes on
        with evaluation or contextlib.nullcontext(), CheckpointEvaluator(model, parameters, dataset.test) as evaluator:
            _write_result(context, directory, checkpoint, record, evaluator, was_done)
    if cluster and collective:
        with server.open_session(replica.graph, here, threads) as session:
            _leave(context, cluster, collective, session)
    elif cluster and directory:
        server.say_done(cluster, here, threads, say)
    return True


def _look_for_peers(context: TaskContext, cluster: Cluster, seconds: float) -> None:
    """Wait for all that this replica needs before TensorFlow may look for it.

    Raises:
        LostPeersError: something is not there within `seconds`.
    """
    context.watchdog.pause()
    bounds = (seconds, context.say, lambda: context.watchdog.stopping)
    with context.metrics.waiting():
        peers.wait_for_own_name(cluster.address(cluster.task), *bounds)
        needed = cluster.replicas if context.replica.replication.collective else cluster.parameter_servers
        peers.wait_for({str(task): cluster.address(task) for task in needed}, *bounds)
    context.watchdog.progress()


def _is_loss(context: TaskContext, cluster: Cluster, here: Any, threads: Threads, error: Exception) -> bool:
    """Whether this error of the session means that another task is lost, rather than that this one failed."""
    collective = context.replica.replication.collective
    needed = cluster.replicas if collective else cluster.parameter_servers

    def look() -> bool:
        """Whether a needed task does not answer, or parameter servers came back empty."""
        if any(peers.probe_errors([cluster.address(task) for task in needed if task != cluster.task])):
            return True
        if collective:
            return False
        try:
            with server.open_session(context.replica.graph, here, threads, "/job:ps") as session:
                return not session.run(context.replica.is_ready)
        except server.LOST:
            return True

    return session_errors.is_loss(error, cluster.task.device, look)


def _wait_for_the_chief(context: TaskContext, cluster: Cluster, session: Any) -> None:
    """Wait until the chief has given every variable its value.

    Raises:
        LostPeersError: it has not within `wait_seconds`.
    """
    seconds = context.settings.wait_seconds
    address = cluster.address(cluster.chief_task)
    chief = f"the chief ({cluster.chief_task}) at {address}"
    deadline = time.monotonic() + seconds
    next_message = time.monotonic() + peers.BETWEEN_MESSAGES
    while not context.watchdog.stopping and not session.run(context.replica.is_ready):
        context.watchdog.progress()
        now = time.monotonic()
        if now >= min(deadline, next_message):
            reason = peers.probe_error(address) or "it has not initialised the parameters yet"
            if now >= deadline:
                raise LostPeersError(
                    f"{chief} did not begin the run within {seconds:g} s: {reason}. Start it, or look at its log; "
                    "wait_seconds sets how long to wait."
                )
            context.say(f"waiting for {chief}: {reason}")
            next_message = now + peers.BETWEEN_MESSAGES
        time.sleep(0.1)


def _take_steps(context: TaskContext, session: Any, chief: Chief | None) -> None:
    """Step until the run's last global step, or until the guard stops it; the chief saves at either end."""
    settings, replica, ways, watchdog = context.settings, context.replica, context.replica.replication, context.watchdog
    metrics, last_step = context.metrics, context.settings.train_steps
    executions = {
        steps: session.make_callable(
            [execution.step, execution.loss, execution.accuracy], replica.batches.feeds, accept_options=True
        )
        for steps, execution in ways.executions.items()
    }
    tracer = Tracer(lambda: chief is not None and chief.profile.running)
    if settings.step_time_breakdown:
        executions = {steps: tracer.watch(steps, execution) for steps, execution in executions.items()}
    by_themselves = (
        1 if settings.sync_replicas or ways.collective or not context.cluster else len(context.cluster.replicas)
    )
    planner = ExecutionPlanner(settings, max(executions), by_themselves)
    agree = session.make_callable(ways.collective.agreed, [ways.collective.wanted]) if ways.collective else int

    replica.batches.begin(session)
    session.run(ways.join)
    step = int(session.run(replica.global_step))
    context.say(f"at step {step} of {last_step}")
    context.clock.tick(step)
    metrics.global_step = step
    now = time.monotonic()
    reported_step, reported_time, said_time = step, now, -math.inf
    updates = None
    if chief:
        watchdog.last_save = chief.save_at_last
        if ways.updates:
            callables = {steps: session.make_callable(update) for steps, update in ways.updates.items()}
            updates = UpdateLoop(session, callables, step, last_step)
    if step < last_step and (last_step - step) % settings.local_steps:
        raise ConfigurationError(
            f"local_steps: the run is at step {step}, from which rounds of {settings.local_steps} steps do not end at "
            f"train_steps {last_step}; choose others."
        )
    with updates or contextlib.nullcontext(), _monitored_collective(context, session, chief):
        while step < last_step and not watchdog.stopping:
            watchdog.progress()
            if by_themselves > 1 and time.monotonic() - now > STALE_SECONDS:
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
                chief.profile.before_call(step, steps * by_themselves)
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
                if step >= last_step or now - said_time >= BETWEEN_LINES:
                    said_time = now
                    context.say(str(progress))
                metrics.report(progress)
                if chief:
                    chief.report(progress)
            if chief:
                chief.watch_loss(step, float(loss))
                chief.profile.after_call(step)
                chief.save_if_due(step)
                chief.evaluate_if_due()
        if chief and watchdog.stopping:
            chief.save()
        elif chief:
            chief.save_the_end()
    if tracer.split:
        context.say(str(tracer.split))


@contextlib.contextmanager
def _monitored_collective(context: TaskContext, session: Any, chief: Chief | None) -> Iterator[None]:
    """Where replicas hold the parameters themselves: notice who is gone, and have the chief save its own then."""
    if not context.cluster or not context.replica.replication.collective:
        yield
        return

    def give_up() -> None:
        """Save in the place of the main thread, which is stuck in a call, and let it have an error."""
        if chief:
            chief.save_at_last()
        session.close()

    others = [task for task in context.cluster.replicas if task != context.cluster.task]
    addresses = {str(task): context.cluster.address(task) for task in others}
    monitor = PeerMonitor(addresses, context.watchdog.stalled_for, give_up)
    try:
        with monitor:
            yield
    except (*server.LOST, RuntimeError) as error:
        if monitor.found:  # whatever the closed session said
            raise tf.errors.UnavailableError(None, None, monitor.found) from error
        if chief and isinstance(error, server.LOST):
            chief.save()
        raise


def _lost(context: TaskContext, error: Exception) -> Exception:
    """What a replica of a circle is to raise for this error.

    TensorFlow's collective ops do not work again in a process in which one has failed. So a replica begins anew by
    itself, if it has got on in this life; else trying again is left to whoever counts.
    """
    sentence = f"another replica was lost ({server.brief(error)})"
    has_stepped = context.clock.own_seconds > 0
    return CollectiveLostError(sentence) if has_stepped else LostPeersError(f"{sentence} before the first step")


def _leave(context: TaskContext, cluster: Cluster, collective: CollectiveGroup, session: Any) -> None:
    """End together, when the chief has the run's result.

    Raises:
        LostPeersError, LostCircleError: somebody was lost before that.
    """
    seconds = server.LINGER_SECONDS if cluster.is_chief else context.settings.stall_seconds
    try:
        session.run(collective.leave, options=tf1.RunOptions(timeout_in_ms=int(1000 * seconds)))
    except server.LOST as error:
        if not cluster.is_chief:
            raise _lost(context, error) from error
    # Whoever has done this knows that all have done the above, and may go; it does not matter if it fails.
    with contextlib.suppress(*server.LOST):
        session.run(collective.leave, options=tf1.RunOptions(timeout_in_ms=int(1000 * server.LINGER_SECONDS)))


def _make_record(
    context: TaskContext, directory: TrainingDirectory, earlier: dict[str, Any], dataset: Dataset
) -> RunRecord:
    """The record of this run, which goes on from an earlier result.json."""
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
    return RunRecord(directory, facts, context.clock, earlier.get("last"), context.say, context.metrics)


def _write_result(
    context: TaskContext,
    directory: TrainingDirectory,
    checkpoint: str,
    record: RunRecord,
    evaluator: CheckpointEvaluator,
    was_done: bool,
) -> None:
    """Examine the run's last checkpoint, export the best (or that), and leave result.json.

    A run that was done before this process began keeps the result that it has.
    """
    score = evaluator.score(checkpoint)
    result = directory.read_result()
    is_done = was_done and result.get("state", "done") == "done"
    if not is_done or context.clock.own_seconds > 0 or result.get("global_step") != score.global_step:
        if directory.has_evaluator:  # it may come too late for these
            _offer(directory, evaluator)
            score = evaluator.score(checkpoint)
        record.examined(checkpoint, score, is_candidate=False)
        export = _export(context, directory, score, evaluator)
        result = record.write_done(checkpoint, score, str(export))
        shutil.rmtree(directory.candidate, ignore_errors=True)
    context.say(
        f"done: {result['global_step']} steps in {result['seconds']:.1f} s ({result['steps_per_second']:.1f} steps/s), "
        f"{describe_result(result)}, test loss {score.loss:.4f}, result in {directory.path / 'result.json'}"
    )
    if context.cluster:  # for whoever follows a cluster's logs
        context.say(to_line(result))


def _offer(directory: TrainingDirectory, evaluator: CheckpointEvaluator) -> None:
    """Let each checkpoint that is listed be the best."""
    for path in CheckpointList(directory.path, keep=1).paths:
        with contextlib.suppress(*UNREADABLE, OSError):
            best.offer(directory.best, path, evaluator.score(path))


def _export(context: TaskContext, directory: TrainingDirectory, score: Score, evaluator: CheckpointEvaluator) -> Path:
    """Export the best checkpoint or the last one, which the examiner has; the SavedModel's folder."""
    step, kept = score.global_step, best.read(directory.best)
    if context.settings.export == "best" and kept:
        try:
            evaluator.restore(kept.checkpoint)
            step = kept.score.global_step
        except UNREADABLE:
            context.say(f"the best checkpoint {kept.checkpoint} cannot be read: the last one is exported")
    export = directory.path / "export" / str(step)
    export.parent.mkdir(exist_ok=True)
    evaluator.export(export)
    return export
