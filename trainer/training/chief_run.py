"""The run that a chief or a single process leads, across its sessions: from its training directory to its result."""

import contextlib
import dataclasses
import json
import logging
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trainer
from trainer import config
from trainer.checkpoint import best
from trainer.checkpoint.background import Background
from trainer.checkpoint.files import CheckpointList, newest_course, step_of
from trainer.checkpoint.score import LOSS, Score
from trainer.checkpoint.volume import retry_writing
from trainer.data.files import write_atomically
from trainer.errors import ModelError, RollBackError, SupersededError
from trainer.evaluate.evaluation import CheckpointEvaluator
from trainer.graph.replica import Replica
from trainer.models.keras_model import KerasModel
from trainer.problem.problem import Problem
from trainer.run_directory.mirror import Mirror, make_directory
from trainer.run_directory.next_commands import next_commands
from trainer.run_directory.training_directory import TrainingDirectory, new_path
from trainer.run_directory.writer import make_writer
from trainer.storage.object_store import ObjectStore, is_uri
from trainer.telemetry import goodput, report, result
from trainer.tensorflow.errors import NOT_WRITTEN, UNREADABLE
from trainer.tensorflow_types import Session
from trainer.text import truncate
from trainer.training.chief import Chief
from trainer.training.classifier_pictures import ClassifierPictures, write_embedding
from trainer.training.context import TaskContext
from trainer.training.fit_callbacks import FitCallbacks
from trainer.training.periodic_evaluation import PeriodicEvaluation
from trainer.training.publication import Publication
from trainer.training.run_context import RunContext
from trainer.training.run_record import RunRecord

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
"""How long the chief of a run that was done waits for tasks that may have ended, or may start beside it."""


@dataclass(frozen=True)
class ClaimedDirectory:
    """A training directory that belongs to this run."""

    directory: TrainingDirectory
    run_id: str
    """Identifies the run on the parameter servers."""
    problem: Problem
    """The problem with the last step of the run, which depends on the epochs that it has taken before."""


@contextlib.contextmanager
def claimed_directory(context: TaskContext, problem: Problem) -> Iterator[ClaimedDirectory]:
    """Create the training directory unless it exists, and claim it for this run.

    One on an object store is copied into a temporary directory, and what changes there is copied back until the exit.

    Raises:
        ConfigurationError: it cannot be written, or it holds a run of another model or data set.
        StoreError: the object store does not respond, the last changes cannot be copied to it, or a volume is full.
        SupersededError: another chief has claimed it.
    """
    with contextlib.ExitStack() as stack:
        train_dir = context.settings.train_dir
        if is_uri(train_dir):
            store = ObjectStore(str(train_dir), "train_dir")
            store.check_writable()
            chief = make_writer(store.uri)
            directory = TrainingDirectory(make_directory(), store.uri, chief)
            mirror = stack.enter_context(Mirror(store, directory.path, context.is_stopping, chief))
            context.watchdog.push_before_exit = mirror.push
        else:
            path = Path(train_dir) if train_dir else new_path()
            directory = TrainingDirectory(path, writer=make_writer(str(path)))
        problem = problem.continued(*newest_course(directory.path))
        settings = dataclasses.replace(problem.settings, train_dir=str(directory))

        def claim() -> None:
            directory.create()
            directory.claim({**problem.identity, **problem.dataset.facts})
            write_atomically(directory.settings, config.to_yaml(settings).encode())

        changes, source = config.changes(directory.settings, settings), directory.read_claim().get("model")
        retry_writing(str(directory), claim, settings.wait_seconds, context.watchdog.pause)
        logger.info(f"training directory: {directory}")
        if source and source != problem.identity["model"]:
            now = problem.identity["model"]
            logger.info(f"the model's source has changed since the run began: {now} now, {source} before")
        if changes:
            logger.info(f"the run continues with other settings: {truncate(', '.join(changes), 500)}")
        kept = {key: each for key, each in problem.identity.items() if key != "model"}  # its source may change
        run_id = json.dumps([kept, directory.uri or str(directory.path.resolve())])
        yield ClaimedDirectory(directory, run_id, problem)


class ChiefRun:
    """The run of this chief. It continues the run that an earlier process has recorded in the directory."""

    def __init__(self, context: TaskContext, problem: Problem, claimed: ClaimedDirectory, replica: Replica) -> None:
        self._context, self._problem, self._replica = context, problem, replica
        self._directory = claimed.directory
        earlier = self._directory.read_result()
        has_all_steps = earlier.get("global_step", 0) >= context.settings.train_steps
        self.was_done = _is_done(earlier) and (has_all_steps or problem.was_stopped(earlier))
        """Whether an earlier process has finished the run."""
        context.clock.earlier = float(earlier.get("seconds", 0.0))
        self._record = RunRecord(
            self._directory,
            self._facts(),
            problem.best_metric,
            context.clock,
            earlier,
            context.metrics,
            context.account,
        )
        self._record.is_done = self.was_done
        self._fit = None if self.was_done else _make_callbacks(problem)
        self._evaluation = (
            None
            if self.was_done or self._fit
            else PeriodicEvaluation(
                context.settings.eval_seconds,
                context.settings.train_steps,
                self._make_evaluator,
                self._add_candidate,
            )
        )
        self._shared = RunContext(
            context,
            replica,
            claimed.directory,
            claimed.run_id,
            problem.course,
            self._record,
            self._evaluation,
            Background("checkpoint"),
            problem.model.untrained_loss,
            not problem.fit.steps_per_epoch,
            self.was_done and not has_all_steps,
            self._fit,
            problem.model.optimizer,
            self._make_publication(),
        )
        self._evaluator: CheckpointEvaluator | None = None
        """That of the candidates."""
        self._pictures = ClassifierPictures()
        self.checkpoint = ""
        """The last checkpoint of the run."""
        self.diverged: RollBackError | None = None
        """Why the next session must roll the run back."""

    def _facts(self) -> dict[str, Any]:
        """Return the keys of result.json that do not change during the run."""
        settings, cluster, dataset = self._context.settings, self._context.cluster, self._problem.dataset
        return {
            "mode": self._replica.mode.name,
            "workers": self._replica.mode.beginners if cluster else self._replica.mode.devices,
            "ps": len(cluster.ps) if cluster else 0,
            "model": settings.model,
            **dataset.description,
            "train_dir": str(self._directory),
            "version": trainer.__version__,
        }

    @property
    def wait_seconds(self) -> float:
        """How long to wait for the other tasks: after the end of the run they may have gone for good."""
        seconds = self._context.settings.wait_seconds
        return min(seconds, START_SECONDS) if self.was_done else seconds

    def _make_publication(self) -> Publication | None:
        """That of the model while it trains, if the settings want it."""
        seconds, optimizer = self._context.settings.publish_seconds, self._problem.model.optimizer
        if seconds is None or self.was_done:
            return None
        averaged = optimizer is not None and bool(optimizer.use_ema)
        return Publication(seconds, self._directory, self._problem.evaluator, self._export_facts(), averaged)

    def _make_evaluator(self) -> CheckpointEvaluator:
        self._evaluator = self._problem.evaluator()
        return self._evaluator

    def _add_candidate(self, candidate: str, score: Score) -> None:
        self._record.add_evaluation(candidate, score, is_candidate=True)
        if self._evaluator:
            self._pictures.write(self._record.summaries, self._evaluator, score.global_step)

    def chief(self, session: Session) -> Chief:
        """Return the chief's part in a session, after the last checkpoint of the previous session is written."""
        self._shared.writing.wait()
        return Chief(self._shared, session)

    def resume_hint(self) -> str:
        """Return what was saved, and how to continue with it."""
        step = self._directory.newest_step()
        saved = "no checkpoint was saved; start again" if step is None else f"saved step {step}; continue"
        return f"{saved} with the same command and --train_dir {shlex.quote(str(self._directory))}"

    def finish(self) -> None:
        """Evaluate the last checkpoint, export the best or the last one, and write result.json.

        A run that was done before this process started keeps its result.

        Raises:
            StoreError: the volume has no room for the result.
            SupersededError: another chief has claimed the training directory.
            ModelError: the model fails on the held-out data. The last checkpoint is exported all the same.
        """
        self._directory.check_writer()
        if self._evaluation:
            self._evaluation.wait()  # it writes the state "running" to result.json
        if self._shared.publication:
            self._shared.publication.end()
        with contextlib.ExitStack() as stack:
            if self._evaluation:
                stack.enter_context(self._evaluation)
            if self._fit:
                stack.enter_context(self._fit)
            evaluator = stack.enter_context(self._problem.evaluator())
            try:
                score = evaluator.score(self.checkpoint)
            except ModelError as error:
                self._write_failure(evaluator, error)
                raise
            found = self._directory.read_result()
            is_unchanged = (
                self.was_done
                and _is_done(found)
                and self._context.clock.own_seconds == 0
                and found.get("global_step") == score.global_step
            )
            if not is_unchanged:
                result_of = lambda: found.update(self._write_result(evaluator, score))  # noqa: E731
                what, settings = f"the result in {self._directory}", self._context.settings
                retry_writing(what, result_of, settings.wait_seconds, self._context.watchdog.pause)
        steps = f"{found['global_step']} steps in {found['seconds']:.1f} s ({found['steps_per_second']:.1f} steps/s)"
        path = self._directory.public(self._directory.path / "result.json")
        loss = "" if self._problem.best_metric.name == LOSS else f", test loss {score.loss:.4f}"
        sentence = f"done: {steps}, {result.describe(found)}{loss}, result in {path}"
        if is_unchanged:
            wanted = self._context.settings.train_steps
            remedy = "raise train_steps, or use another train_dir"
            before = f"all {wanted:,} steps were done before"
            if self._shared.was_stopped:
                before = f"a callback had ended the run before its {wanted:,} steps"
            sentence = f"nothing was trained: {before}; {remedy}. The run was {sentence}"
        if compared := result.against_baseline(found):
            logger.info(compared)
        if used := goodput.describe(goodput.read(found)):
            logger.info(used)
        report.log(logger, sentence, result=found)
        if not self._context.cluster:  # the launcher says it at the end of all tasks
            for command, purpose in next_commands(self._directory, found):
                logger.info(f"next: {command}   # {purpose}")

    def _write_result(self, evaluator: CheckpointEvaluator, score: Score) -> dict[str, Any]:
        if self._directory.has_evaluator:  # it may not evaluate these in time for the export
            for path in CheckpointList(self._directory.path, keep=1).paths:
                with contextlib.suppress(*UNREADABLE, OSError):
                    found = evaluator.score(path)
                    self._directory.check_writer()
                    self._record.offer(path, found)
            score = evaluator.score(self.checkpoint)
        self._record.add_evaluation(self.checkpoint, score, is_candidate=False)
        with _told("the pictures"):
            self._pictures.write(self._record.summaries, evaluator, score.global_step, is_last=True)
        export = self._export(evaluator, score)
        is_stopped = self._fit is not None and self._fit.is_over
        settings = self._context.settings
        stopped = {"stopped_before": settings.train_steps} if is_stopped else {}
        stopped |= {"stopped_before_epochs": settings.epochs} if is_stopped and settings.epochs else {}
        written = self._record.write_done(self.checkpoint, score, str(export), stopped)
        for folder in (self._directory.candidate, self._directory.saving, self._directory.publishing):
            shutil.rmtree(folder, ignore_errors=True)
        return written

    def _export(self, evaluator: CheckpointEvaluator, score: Score) -> Path:
        """Export the best checkpoint, or the last one, which the evaluator holds; return the SavedModel's folder."""
        step, kept = score.global_step, best.read(self._directory.best)
        if self._context.settings.export == "best" and kept:
            try:
                evaluator.restore(kept.checkpoint)
                step = kept.score.global_step
            except UNREADABLE:
                logger.warning(f"the best checkpoint {kept.checkpoint} cannot be read; exporting the last one")
        export = self._export_to(evaluator, step)
        with _told("the embedding"):
            write_embedding(self._directory.test_summaries, evaluator)
        return export

    def _export_to(self, evaluator: CheckpointEvaluator, step: int) -> Path:
        """Export what the evaluator holds; return the folder."""
        export = self._directory.exports / str(step)
        export.parent.mkdir(exist_ok=True)
        evaluator.export(export, self._export_facts())
        return export

    def _export_facts(self) -> dict[str, Any]:
        """The facts of an export."""
        dataset = self._problem.dataset
        plan = {"plan": dataset.plan.to_json()} if dataset.plan else {}
        return {**dataset.description, **plan, "model": self._context.settings.model}

    def _write_failure(self, evaluator: CheckpointEvaluator, error: ModelError) -> None:
        """Export the last checkpoint, which cannot be evaluated, and write that the run has failed."""
        evaluator.restore(self.checkpoint)
        step = step_of(self.checkpoint)
        export = self._export_to(evaluator, step)
        self._record.write_failed(step, str(error), str(export))
        logger.warning(f"the last checkpoint cannot be evaluated; it is exported to {self._directory.public(export)}")


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Log an error in what is written beside the result, and go on."""
    try:
        yield
    except (SupersededError, *NOT_WRITTEN):
        raise
    except Exception as error:
        logger.warning(f"{what} cannot be written: {type(error).__name__}: {error}")


def _make_callbacks(problem: Problem) -> FitCallbacks | None:
    """The callbacks of the model's file, if it has any."""
    model = problem.model
    if not problem.fit.callbacks or problem.epochs is None or not isinstance(model, KerasModel):
        return None
    return FitCallbacks(problem.settings.model, problem.fit.callbacks, model, problem.evaluator)


def _is_done(found: dict[str, Any]) -> bool:
    return bool(found.get("state", "done") == "done")
