"""The chief's duties in a session.

The chief initializes or restores the variables, saves checkpoints, starts periodic evaluations, writes summaries and
profiles, and detects divergence.
"""

import json
import logging
import shutil
import threading
import time

from trainer.errors import ConfigurationError, DivergedError, RollBackError
from trainer.graph.checkpoints import CheckpointList, Saver
from trainer.graph.replica import Replica
from trainer.telemetry import report
from trainer.telemetry.profile import Profile
from trainer.telemetry.progress import Progress
from trainer.telemetry.summaries import SummaryWriter
from trainer.tensorflow import tf
from trainer.tensorflow_types import Session
from trainer.training import best
from trainer.training.callback import Callback
from trainer.training.context import TaskContext
from trainer.training.divergence import DivergenceDetector
from trainer.training.evaluation import UNREADABLE
from trainer.training.periodic_evaluation import PeriodicEvaluation
from trainer.training.run_record import RunRecord
from trainer.training.server import brief
from trainer.training.training_directory import TrainingDirectory

logger = logging.getLogger(__name__)

MAX_ROLL_BACKS = 8
"""Each roll-back halves the learning rate. A run that diverges after that has another fault."""


class Chief(Callback):
    """The chief's part in one session. As a context manager it closes the summary file and stops the profile."""

    def __init__(
        self,
        context: TaskContext,
        directory: TrainingDirectory,
        replica: Replica,
        session: Session,
        run_id: str,
        record: RunRecord,
        evaluation: PeriodicEvaluation | None,
        untrained_loss: float | None,
    ) -> None:
        self._context, self._settings, self._metrics = context, context.settings, context.metrics
        self._directory, self._replica, self._session = directory, replica, session
        self._run_id = run_id
        self._saver: Saver = replica.saver
        self._record, self._evaluation = record, evaluation
        self._checkpoints = CheckpointList(directory.path, context.settings.keep_checkpoints)
        self._divergence: DivergenceDetector | None = DivergenceDetector(untrained_loss)
        self.checkpoint = ""
        """The checkpoint that was restored or saved last."""
        self._saved_step = self._tried_step = -1
        self._saved_time = time.monotonic()
        self._reported_not_finite = False
        self._saving = threading.Lock()
        self._summaries = SummaryWriter(directory.train_summaries)
        self._profile = Profile(context.settings.profile_steps, directory.path)

    def __enter__(self) -> "Chief":
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.stop()
        self._summaries.close()

    def prepare(self, diverged: RollBackError | None = None) -> None:
        """Initialize or restore every variable, then let the other replicas start.

        Parameter servers that already hold all values stay unchanged: only the chief has restarted. If the run has just
        `diverged`, restore the best checkpoint and save it as the newest one.

        Raises:
            DivergedError: no checkpoint can be restored, or the run was rolled back MAX_ROLL_BACKS times.
            ConfigurationError: no existing checkpoint can be read, or the parameter servers hold another run.
        """
        self._context.watchdog.operation = "initializing or restoring the parameters"
        if self._session.run(self._replica.is_ready):
            if self._session.run(self._replica.run_id).decode() != self._run_id:
                raise ConfigurationError(
                    "ps_hosts: the parameter servers still hold a run of another model, data set or train_dir: "
                    "restart them."
                )
            logger.info("the parameter servers already hold the run; continuing with it")
            self._saver.accept(self._session)
        else:
            self._restore_or_initialize()
        if diverged:
            self._roll_back(diverged)
        if self._replica.rate_scale is not None:
            scale = 0.5 ** self._count_roll_backs()
            self._session.run(self._replica.rate_scale.initializer, {self._replica.rate_scale.initial_value: scale})
        self._session.run(self._replica.replication.lead)
        self._session.run(self._replica.mark_ready)
        step = int(self._session.run(self._replica.global_step))
        if step < self._settings.train_steps:
            self._record.write_running(step)

    def _roll_back(self, diverged: RollBackError) -> None:
        count = self._count_roll_backs() + 1
        if count > MAX_ROLL_BACKS:
            raise DivergedError(f"{diverged}, and it was rolled back {MAX_ROLL_BACKS} times; {self._remedy()}")
        # The global step never decreases: replicas drop contributions of earlier steps.
        step = max(int(self._session.run(self._replica.global_step)), diverged.step) + self._settings.local_steps
        step = min(step, self._settings.train_steps)
        kept = best.read(self._directory.best)
        for path in [*([kept.checkpoint] if kept else []), *reversed(self._checkpoints.paths)]:
            try:
                step = self._saver.roll_back(self._session, path, step)
                break
            except UNREADABLE as error:
                logger.warning(f"the checkpoint {path} cannot be read ({brief(error)})")
        else:
            raise DivergedError(f"{diverged}, and there is no checkpoint to restore; {self._remedy()}")
        logger.info(f"{diverged}: restored {path}; continuing at step {step} with 1/{2**count} of the learning rate")
        self._saved_step = -1
        self.save()
        with self._directory.divergences.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"global_step": step, "restored": path, "reason": str(diverged)}) + "\n")

    def _count_roll_backs(self) -> int:
        file = self._directory.divergences
        return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0

    def _restore_or_initialize(self) -> None:
        kept = best.read(self._directory.best)
        checkpoints = [*reversed(self._checkpoints.paths), *([kept.checkpoint] if kept else [])]
        for checkpoint in checkpoints:
            try:
                self._saver.restore(self._session, checkpoint)
            except UNREADABLE as error:
                reason = brief(error)
                logger.warning(f"the checkpoint {checkpoint} cannot be read ({reason}); trying the previous one")
                continue
            self.checkpoint = checkpoint
            self._saved_step = int(self._session.run(self._replica.global_step))
            restored = self._directory.public(checkpoint)
            report.log(logger, f"restored {restored}", restored=restored)
            return
        if checkpoints:
            raise ConfigurationError(
                f"train_dir: none of the checkpoints in {self._directory} can be read: choose another train_dir, "
                "or empty this one to train from the start."
            )
        self._directory.divergences.unlink(missing_ok=True)
        self._session.run(self._replica.initialize)

    @property
    def is_profiling(self) -> bool:
        return self._profile.running

    def on_train_begin(self) -> None:
        self._context.watchdog.save_before_exit = self.save_before_exit

    def on_execution_begin(self, step: int, steps: int) -> None:
        self._profile.before_execution(step, steps)

    def on_execution_end(self, step: int, loss: float) -> None:
        """Check the loss; stop the profile, save a checkpoint and start an evaluation if they are due.

        Raises:
            DivergedError: the run diverges, and `on_divergence` is "stop".
            RollBackError: the run diverges, and `on_divergence` is "restore".
        """
        self._check_loss(step, loss)
        self._profile.after_execution(step)
        self._save_if_due(step)
        self._evaluate_if_due()

    def on_train_end(self, is_complete: bool) -> None:
        """Save the last checkpoint.

        Raises:
            DivergedError: the run is complete, and its parameters are not finite.
        """
        if not self.save() and is_complete:
            raise DivergedError(f"the run has ended with parameters that are not finite; {self._remedy()}")

    def on_report(self, progress: Progress) -> None:
        """Write the training summaries of this step."""
        self._summaries.write(
            progress.step,
            loss=progress.loss,
            **progress.metrics,
            steps_per_second=progress.steps_per_second,
        )

    def save(self) -> bool:
        """Save a checkpoint of the current global step unless it exists; return whether it exists now.

        Do not save parameters that are not finite: the run can only continue from an earlier checkpoint.
        """
        self._context.watchdog.operation = "saving a checkpoint"
        with self._saving:  # `save_before_exit` may run while the main thread saves
            step = int(self._session.run(self._replica.global_step))
            self._saved_time, self._tried_step = time.monotonic(), step
            if step == self._saved_step:
                return True
            if not self._saver.are_finite(self._session):
                if not self._reported_not_finite:
                    logger.warning(
                        f"the parameters are not finite at step {step}: no checkpoint is saved; {self._remedy()}"
                    )
                self._reported_not_finite = True
                return False
            self.checkpoint = self._saver.save(self._session, self._directory.checkpoint_prefix)
            self._checkpoints.add(self.checkpoint)
            self._saved_step = int(self.checkpoint.rpartition("-")[2])
            self._metrics.checkpoints += 1
        if self._saved_step < self._settings.train_steps:
            self._record.write_running(self._saved_step)
        return True

    def _evaluate_if_due(self) -> None:
        """Start the evaluation of a candidate if one is due and no evaluator runs."""
        if self._evaluation and self._evaluation.is_due and not self._directory.has_evaluator:
            self._evaluation.start(self._save_candidate)

    def _save_candidate(self) -> str | None:
        with self._saving:
            if not self._saver.are_finite(self._session):
                return None
            try:
                shutil.rmtree(self._directory.candidate, ignore_errors=True)
                self._directory.candidate.mkdir(exist_ok=True)
                return self._saver.save(self._session, self._directory.candidate / "model.ckpt")
            except (OSError, tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError) as error:
                logger.warning(f"cannot save a candidate for evaluation: {brief(error)}")
                return None

    def _check_loss(self, step: int, loss: float) -> None:
        """Detect divergence from the loss of a batch, and report it once."""
        sentence = self._divergence and self._divergence.observe(step, loss)
        if not sentence:
            return
        self._divergence = None
        if self._settings.on_divergence == "restore":
            raise RollBackError(f"the run diverges: {sentence}", step)
        sentence = f"the run diverges: {sentence}; {self._remedy()}"
        if self._settings.on_divergence == "stop":
            raise DivergedError(sentence)
        logger.warning(f"warning: {sentence}")

    def _remedy(self) -> str:
        settings = self._settings
        kept = best.read(self._directory.best)
        checkpoint = f"the best checkpoint is {kept.checkpoint}" if kept else "no checkpoint has been evaluated yet"
        clip = "" if settings.global_clipnorm else ", or set global_clipnorm"
        return f"{checkpoint}; lower learning_rate ({settings.learning_rate:g}){clip}."

    def save_before_exit(self) -> None:
        """Save a checkpoint and the profile so far. Called from another thread while the main thread is blocked."""
        profiling = threading.Thread(target=self._profile.stop, daemon=True)  # in parallel with the checkpoint
        profiling.start()
        self.save()
        profiling.join()

    def _save_if_due(self, step: int) -> None:
        """Save a checkpoint when `save_steps` or `save_seconds` have passed."""
        every = self._settings.save_steps
        due_by_step = every is not None and step // every > max(self._saved_step, self._tried_step, 0) // every
        if due_by_step or time.monotonic() - self._saved_time >= self._settings.save_seconds:
            self.save()
