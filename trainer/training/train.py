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
from trainer.errors import ConfigurationError, LostCircleError, LostPeersError, RollBackError
from trainer.graph import devices
from trainer.graph.checkpoints import CheckpointList
from trainer.graph.pace import Pace, next_multiple
from trainer.graph.replica import Replica, build, describe_mode
from trainer.graph.replication import Circle
from trainer.models import find
from trainer.telemetry.metrics import Metrics
from trainer.telemetry.progress import Clock, Progress
from trainer.telemetry.result import describe as describe_result
from trainer.telemetry.result import to_line
from trainer.telemetry.tracing import Tracer
from trainer.tensorflow import tf, tf1
from trainer.training import best, server, session_errors
from trainer.training.chief import Chief
from trainer.training.evaluation import UNREADABLE, Examiner, Score
from trainer.training.guard import Guard
from trainer.training.lookout import Lookout
from trainer.training.periodic_evaluation import PeriodicEvaluation
from trainer.training.run_record import RunRecord
from trainer.training.threads import Threads, choose
from trainer.training.training_directory import TrainingDirectory, describe, new_path
from trainer.training.updates import Updates

STALE_SECONDS = 0.01
"""After so long, as for a checkpoint, other replicas may have taken the run on by more than what is known here."""

BETWEEN_LINES = 1.0
"""Seconds between two progress lines at least: in Kubernetes each passes five programs on its way to a log."""


@dataclass(frozen=True)
class Life:
    """What every phase of a replica's life needs to know."""

    settings: Settings
    cluster: Cluster | None
    replica: Replica
    guard: Guard
    clock: Clock
    say: Callable[[str], None]
    metrics: Metrics


def train(
    settings: Settings, cluster: Cluster | None, guard: Guard, say: Callable[[str], None], metrics: Metrics
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
    led_run = json.dumps([run, str(directory.path.resolve())]) if directory else ""
    replica = build(settings, cluster, model, parameters, dataset.train, devices.count_gpus(settings), led_run)
    threads = choose(settings, cluster.task.role if cluster else None)
    life = Life(settings, cluster, replica, guard, Clock(settings.train_steps), say, metrics)
    here = server.start(cluster, threads) if cluster else None

    circle = replica.replication.circle
    earlier = directory.read_result() if directory else {}
    was_done = earlier.get("state", "done") == "done" and earlier.get("global_step", 0) >= settings.train_steps
    record = _make_record(life, directory, earlier, dataset) if directory else None
    evaluation = None
    if record and not was_done:
        evaluation = PeriodicEvaluation(
            settings.eval_seconds,
            lambda: Examiner(model, parameters, dataset.test),
            lambda candidate, score: record.examined(candidate, score, is_candidate=True),
            say,
        )
    diverged: RollBackError | None = None
    while True:
        if cluster:
            try:
                _look_for_peers(
                    life, cluster, min(settings.wait_seconds, server.TELL_SECONDS if was_done else math.inf)
                )
            except LostPeersError:
                if not was_done:
                    raise
                say("the run was done before, and the others have ended")
                return True
        if guard.stopping:
            return False
        try:
            with contextlib.ExitStack() as stack:
                session = stack.enter_context(server.open_session(replica.graph, here, threads, "/job:ps"))
                chief = None
                if directory and record:
                    chief = stack.enter_context(
                        Chief(
                            *(settings, directory, replica, session, say, metrics, led_run, record, evaluation),
                            untrained_loss=math.log(dataset.classes),
                        )
                    )
                    chief.prepare(diverged)
                    if diverged and circle:
                        raise LostCircleError("the run was rolled back")
                    diverged = None
                elif circle:
                    session.run(replica.initialize)  # until the chief's values come
                elif cluster:
                    with metrics.waiting():
                        _wait_for_the_chief(life, cluster, session)
                _take_steps(life, session, chief)
                checkpoint = chief.checkpoint if chief else ""
                break
        except RollBackError as found:
            diverged = found
        except server.LOST as error:
            if cluster is None or not _is_loss(life, cluster, here, threads, error):
                raise
            if circle:
                if guard.stopping:
                    return False
                raise _lost(life, error) from error
            if time.monotonic() - life.clock.last_progress > settings.wait_seconds + settings.stall_seconds:
                raise LostPeersError(
                    f"the parameter servers answer, but no step succeeds: {server.brief(error)}"
                ) from error
            say(f"lost a parameter server ({server.brief(error)}); looking for it")
            with metrics.waiting():
                time.sleep(1)

    guard.last_save = None
    guard.pause()
    if guard.stopping:
        if directory and cluster is None:
            step = directory.newest_step()
            saved = "no checkpoint was saved; start again" if step is None else f"saved step {step}; continue"
            say(f"{saved} with the same command and --train_dir {directory.path}")
        return False
    if directory and record:
        if evaluation:
            evaluation.wait()  # what it writes is of a run that goes on
        with evaluation or contextlib.nullcontext(), Examiner(model, parameters, dataset.test) as examiner:
            _write_result(life, directory, checkpoint, record, examiner, was_done)
    if cluster and circle:
        with server.open_session(replica.graph, here, threads) as session:
            _leave(life, cluster, circle, session)
    elif cluster and directory:
        server.say_done(cluster, here, threads, say)
    return True


def _look_for_peers(life: Life, cluster: Cluster, seconds: float) -> None:
    """Wait for all that this replica needs before TensorFlow may look for it.

    Raises:
        LostPeersError: something is not there within `seconds`.
    """
    life.guard.pause()
    bounds = (seconds, life.say, lambda: life.guard.stopping)
    with life.metrics.waiting():
        peers.wait_for_own_name(cluster.address(cluster.task), *bounds)
        needed = cluster.replicas if life.replica.replication.circle else cluster.parameter_servers
        peers.wait_for({str(task): cluster.address(task) for task in needed}, *bounds)
    life.guard.progress()


def _is_loss(life: Life, cluster: Cluster, here: Any, threads: Threads, error: Exception) -> bool:
    """Whether this error of the session means that another task is lost, rather than that this one failed."""
    circle = life.replica.replication.circle
    needed = cluster.replicas if circle else cluster.parameter_servers

    def look() -> bool:
        """Whether a needed task does not answer, or parameter servers came back empty."""
        if any(peers.complaints([cluster.address(task) for task in needed if task != cluster.task])):
            return True
        if circle:
            return False
        try:
            with server.open_session(life.replica.graph, here, threads, "/job:ps") as session:
                return not session.run(life.replica.is_ready)
        except server.LOST:
            return True

    return session_errors.is_loss(error, cluster.task.device, look)


def _wait_for_the_chief(life: Life, cluster: Cluster, session: Any) -> None:
    """Wait until the chief has given every variable its value.

    Raises:
        LostPeersError: it has not within `wait_seconds`.
    """
    seconds = life.settings.wait_seconds
    address = cluster.address(cluster.chief_task)
    chief = f"the chief ({cluster.chief_task}) at {address}"
    deadline = time.monotonic() + seconds
    next_message = time.monotonic() + peers.BETWEEN_MESSAGES
    while not life.guard.stopping and not session.run(life.replica.is_ready):
        life.guard.progress()
        now = time.monotonic()
        if now >= min(deadline, next_message):
            reason = peers.complaint(address) or "it has not initialised the parameters yet"
            if now >= deadline:
                raise LostPeersError(
                    f"{chief} did not begin the run within {seconds:g} s: {reason}. Start it, or look at its log; "
                    "wait_seconds sets how long to wait."
                )
            life.say(f"waiting for {chief}: {reason}")
            next_message = now + peers.BETWEEN_MESSAGES
        time.sleep(0.1)


def _take_steps(life: Life, session: Any, chief: Chief | None) -> None:
    """Step until the run's last global step, or until the guard stops it; the chief saves at either end."""
    settings, replica, ways, guard = life.settings, life.replica, life.replica.replication, life.guard
    metrics, last_step = life.metrics, life.settings.train_steps
    calls = {
        steps: session.make_callable([call.step, call.loss, call.accuracy], replica.batches.feeds, accept_options=True)
        for steps, call in ways.calls.items()
    }
    tracer = Tracer(lambda: chief is not None and chief.profile.running)
    if settings.time_split:
        calls = {steps: tracer.watch(steps, call) for steps, call in calls.items()}
    by_themselves = 1 if settings.sync_replicas or ways.circle or not life.cluster else len(life.cluster.replicas)
    pace = Pace(settings, max(calls), by_themselves)
    agree = session.make_callable(ways.circle.agreed, [ways.circle.wanted]) if ways.circle else int

    replica.batches.begin(session)
    session.run(ways.join)
    step = int(session.run(replica.global_step))
    life.say(f"at step {step} of {last_step}")
    life.clock.tick(step)
    metrics.global_step = step
    now = time.monotonic()
    reported_step, reported_time, said_time = step, now, -math.inf
    updates = None
    if chief:
        guard.last_save = chief.save_at_last
        if ways.updates:
            callables = {steps: session.make_callable(update) for steps, update in ways.updates.items()}
            updates = Updates(session, callables, step, last_step)
    if step < last_step and (last_step - step) % settings.local_steps:
        raise ConfigurationError(
            f"local_steps: the run is at step {step}, from which rounds of {settings.local_steps} steps do not end at "
            f"train_steps {last_step}; choose others."
        )
    with updates or contextlib.nullcontext(), _in_its_circle(life, session, chief):
        while step < last_step and not guard.stopping:
            guard.progress()
            if by_themselves > 1 and time.monotonic() - now > STALE_SECONDS:
                step = int(session.run(replica.global_step))
                now = time.monotonic()
                continue
            steps = int(agree(pace.choose(step)))
            if steps not in calls:
                raise ConfigurationError(
                    f"steps_per_call: the chief takes {steps} steps in a call, and this replica {max(calls)}; "
                    "give all replicas the same settings."
                )
            if chief:
                chief.profile.before_call(step, steps * by_themselves)
            began = time.monotonic()
            measured, loss, accuracy = calls[steps](*replica.batches.take(steps))
            now = time.monotonic()
            pace.took(steps, now - began)
            step = int(measured)
            life.clock.tick(step)
            metrics.global_step = step
            metrics.examples += steps * settings.batch_size * replica.learners
            if step >= min(next_multiple(settings.report_steps, reported_step), last_step):
                rate = (step - reported_step) / (now - reported_time)
                progress = Progress(step, last_step, float(loss), float(accuracy), rate)
                reported_step, reported_time = step, now
                if step >= last_step or now - said_time >= BETWEEN_LINES:
                    said_time = now
                    life.say(str(progress))
                metrics.report(progress)
                if chief:
                    chief.report(progress)
            if chief:
                chief.watch_loss(step, float(loss))
                chief.profile.after_call(step)
                chief.save_if_due(step)
                chief.evaluate_if_due()
        if chief and guard.stopping:
            chief.save()
        elif chief:
            chief.save_the_end()
    if tracer.split:
        life.say(str(tracer.split))


@contextlib.contextmanager
def _in_its_circle(life: Life, session: Any, chief: Chief | None) -> Iterator[None]:
    """Where replicas hold the parameters themselves: notice who is gone, and have the chief save its own then."""
    if not life.cluster or not life.replica.replication.circle:
        yield
        return

    def give_up() -> None:
        """Save in the place of the main thread, which is stuck in a call, and let it have an error."""
        if chief:
            chief.save_at_last()
        session.close()

    others = [task for task in life.cluster.replicas if task != life.cluster.task]
    addresses = {str(task): life.cluster.address(task) for task in others}
    lookout = Lookout(addresses, life.guard.held_up, give_up)
    try:
        with lookout:
            yield
    except (*server.LOST, RuntimeError) as error:
        if lookout.found:  # whatever the closed session said
            raise tf.errors.UnavailableError(None, None, lookout.found) from error
        if chief and isinstance(error, server.LOST):
            chief.save()
        raise


def _lost(life: Life, error: Exception) -> Exception:
    """What a replica of a circle is to raise for this error.

    TensorFlow's collective ops do not work again in a process in which one has failed. So a replica begins anew by
    itself, if it has got on in this life; else trying again is left to whoever counts.
    """
    sentence = f"another replica was lost ({server.brief(error)})"
    has_stepped = life.clock.own_seconds > 0
    return LostCircleError(sentence) if has_stepped else LostPeersError(f"{sentence} before the first step")


def _leave(life: Life, cluster: Cluster, circle: Circle, session: Any) -> None:
    """End together, when the chief has the run's result.

    Raises:
        LostPeersError, LostCircleError: somebody was lost before that.
    """
    seconds = server.LINGER_SECONDS if cluster.is_chief else life.settings.stall_seconds
    try:
        session.run(circle.leave, options=tf1.RunOptions(timeout_in_ms=int(1000 * seconds)))
    except server.LOST as error:
        if not cluster.is_chief:
            raise _lost(life, error) from error
    # Whoever has done this knows that all have done the above, and may go; it does not matter if it fails.
    with contextlib.suppress(*server.LOST):
        session.run(circle.leave, options=tf1.RunOptions(timeout_in_ms=int(1000 * server.LINGER_SECONDS)))


def _make_record(life: Life, directory: TrainingDirectory, earlier: dict[str, Any], dataset: Dataset) -> RunRecord:
    """The record of this run, which goes on from an earlier result.json."""
    settings, cluster = life.settings, life.cluster
    facts = {
        "mode": describe_mode(settings, cluster),
        "workers": len(cluster.replicas) if cluster else life.replica.learners,
        "ps": len(cluster.ps) if cluster else 0,
        "model": settings.model,
        "dataset": dataset.name,
        "dataset_digest": dataset.digest,
        "train_dir": str(directory.path),
        "version": trainer.__version__,
    }
    life.clock.earlier = float(earlier.get("seconds", 0.0))
    return RunRecord(directory, facts, life.clock, earlier.get("last"), life.say, life.metrics)


def _write_result(
    life: Life, directory: TrainingDirectory, checkpoint: str, record: RunRecord, examiner: Examiner, was_done: bool
) -> None:
    """Examine the run's last checkpoint, export the best (or that), and leave result.json.

    A run that was done before this process began keeps the result that it has.
    """
    score = examiner.score(checkpoint)
    result = directory.read_result()
    is_done = was_done and result.get("state", "done") == "done"
    if not is_done or life.clock.own_seconds > 0 or result.get("global_step") != score.global_step:
        if directory.has_evaluator:  # it may come too late for these
            _offer(directory, examiner)
            score = examiner.score(checkpoint)
        record.examined(checkpoint, score, is_candidate=False)
        export = _export(life, directory, score, examiner)
        result = record.write_done(checkpoint, score, str(export))
        shutil.rmtree(directory.candidate, ignore_errors=True)
    life.say(
        f"done: {result['global_step']} steps in {result['seconds']:.1f} s ({result['steps_per_second']:.1f} steps/s), "
        f"{describe_result(result)}, test loss {score.loss:.4f}, result in {directory.path / 'result.json'}"
    )
    if life.cluster:  # for whoever follows a cluster's logs
        life.say(to_line(result))


def _offer(directory: TrainingDirectory, examiner: Examiner) -> None:
    """Let each checkpoint that is listed be the best."""
    for path in CheckpointList(directory.path, keep=1).paths:
        with contextlib.suppress(*UNREADABLE, OSError):
            best.offer(directory.best, path, examiner.score(path))


def _export(life: Life, directory: TrainingDirectory, score: Score, examiner: Examiner) -> Path:
    """Export the best checkpoint or the last one, which the examiner has; the SavedModel's folder."""
    step, kept = score.global_step, best.read(directory.best)
    if life.settings.export == "best" and kept:
        try:
            examiner.restore(kept.checkpoint)
            step = kept.score.global_step
        except UNREADABLE:
            life.say(f"the best checkpoint {kept.checkpoint} cannot be read: the last one is exported")
    export = directory.path / "export" / str(step)
    export.parent.mkdir(exist_ok=True)
    examiner.export(export)
    return export
