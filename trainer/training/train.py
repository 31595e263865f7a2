"""The program of one replica (chief, worker or single process): connect, train, end.

`trainer.training.loop` takes the steps, `trainer.training.coordinator` waits for the other tasks, and
`trainer.training.chief_run` keeps the run: its directory, its evaluations and its result.
"""

import contextlib
import logging
from dataclasses import replace

from trainer.config import Settings
from trainer.errors import ConfigurationError, LostPeersError, RollBackError
from trainer.graph import devices
from trainer.graph.replica import Replica, build
from trainer.problem import data_version, unused_settings
from trainer.problem.problem import Problem
from trainer.problem.problem import load as load_problem
from trainer.tensorflow_types import Session
from trainer.training import batch_hooks, server
from trainer.training.callback import Callback
from trainer.training.chief_run import ChiefRun, ClaimedDirectory, claimed_directory
from trainer.training.context import TaskContext
from trainer.training.coordinator import Coordinator, make_coordinator
from trainer.training.loop import take_steps
from trainer.training.watch import stall_reporter

logger = logging.getLogger(__name__)


def train(context: TaskContext) -> bool:
    """Train as this task of the cluster, or alone; return True if the run is done, False if the watchdog stopped it.

    Raises:
        ConfigurationError: the settings do not fit the data, the training directory or the cluster.
        LostPeersError: other tasks did not respond in time.
        CollectiveLostError: the collective group lost a replica, or the run was rolled back.
        DivergedError: the run diverges and cannot continue.
        StoreError: the training directory is on an object store, which fails.
    """
    settings, cluster = context.settings, context.cluster
    problem = load_problem(settings, context.cluster)
    context, settings = replace(context, settings=problem.settings), problem.settings
    context.metrics.account = context.account
    leads = cluster is None or cluster.is_chief
    if leads and problem.dataset.plan:
        for line in problem.dataset.plan.lines:
            logger.info(line)
    if leads and problem.dataset.warning:
        logger.warning(problem.dataset.warning)
    if leads and problem.mode.has_rounds and problem.mode.replicas > 1 and settings.sync_replicas is None:
        logger.info(
            "the replicas train synchronously, the default for Keras models: sync_replicas=false does not wait for the "
            "slowest, but some models learn less by it, or nothing"
        )
    with claimed_directory(context, problem) if leads else contextlib.nullcontext() as claimed:
        if claimed:
            problem = claimed.problem
            context = replace(context, settings=problem.settings)
            logger.info(problem.summary)
            logger.info(f"the best checkpoint is that with {problem.best_metric}")
            for sentence in unused_settings.describe(problem.settings, problem.model):
                logger.warning(sentence)
        return _train(context, problem, claimed, settings)


def _train(context: TaskContext, problem: Problem, claimed: ClaimedDirectory | None, of_all: Settings) -> bool:
    """Train the problem. The settings `of_all` replicas do not depend on what the chief finds in its directory."""
    settings, cluster = context.settings, context.cluster
    gpus = devices.count_gpus(settings)
    replica = build(
        of_all,
        cluster,
        problem.model,
        problem.parameters,
        problem.dataset.train,
        gpus,
        claimed.run_id if claimed else "",
        problem.epochs if problem.fit.callbacks else None,
        _hook_steps(problem),
        problem.fit.shuffle,
    )
    for note in replica.notes if claimed else ():
        logger.info(note)
    if gpus > 1:
        logger.info(f"this task computes on {gpus} GPUs, with a batch on each")
        if cluster and (settings.epochs or problem.fit.callbacks) and settings.num_gpus is None:
            raise ConfigurationError(
                f"num_gpus: it is not set, but this task sees {gpus} GPUs, on which the steps of an epoch depend, and "
                f"a task does not see those of the others; set num_gpus={gpus} for all tasks."
            )
    own_server = server.start(cluster, context.threads)
    coordinator = make_coordinator(context, replica, own_server)
    run = ChiefRun(context, problem, claimed, replica) if claimed else None
    if coordinator.needed:
        stall_reporter.start(context.watchdog, coordinator.needed)

    is_over = False
    while not is_over:
        try:
            coordinator.wait_for_peers(run.wait_seconds if run else settings.wait_seconds)
        except LostPeersError:
            if run is None or not run.was_done:
                raise
            logger.info("the run was done before, and its other tasks do not answer")
            return True
        if context.is_stopping():
            return False
        try:
            with own_server.session(replica.graph, "/job:ps") as session:
                is_over = _train_in_session(context, problem, replica, session, coordinator, run)
        except server.LOST as error:
            context.account.lost()
            coordinator.recover(error)

    context.watchdog.save_before_exit = None
    context.watchdog.pause()
    if context.is_stopping():
        if run and cluster is None:
            logger.info(run.resume_hint())
        return False
    if run:
        with context.account.saving():
            run.finish()
    coordinator.leave()
    return True


def _hook_steps(problem: Problem) -> int | None:
    """The steps after which callbacks follow within an epoch: each, unless steps_per_execution says otherwise."""
    found = batch_hooks.interval(problem.fit.callbacks)
    return None if found == 1 and problem.settings.steps_per_execution else found


def _train_in_session(
    context: TaskContext,
    problem: Problem,
    replica: Replica,
    session: Session,
    coordinator: Coordinator,
    run: ChiefRun | None,
) -> bool:
    """Train in one session; return False if the run diverges and must be rolled back in the next session."""
    if run is None:
        coordinator.join(session, problem.epochs)
        if replica.mode.has_servers:
            data_version.check(problem.dataset.version, session.run(replica.run_id))
        take_steps(context, replica, session, coordinator, Callback())
        return True
    with run.chief(session) as chief:
        chief.prepare(run.diverged)
        if run.diverged:
            run.diverged = None
            coordinator.rolled_back()
        try:
            take_steps(context, replica, session, coordinator, chief)
        except RollBackError as diverged:
            context.account.lost()
            run.diverged = diverged
            return False
        run.checkpoint = chief.checkpoints.latest
        return True
