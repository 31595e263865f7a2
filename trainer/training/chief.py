"""The chief's duties in a session.

The chief initializes or restores the variables, saves checkpoints, starts periodic evaluations, writes summaries and
profiles, and detects divergence.
"""

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from trainer.errors import ConfigurationError, DivergedError, RollBackError, SupersededError
from trainer.graph.checkpoints import CheckpointList, Saver, Snapshot, find, move, step_of
from trainer.graph.replica import Replica
from trainer.run_directory import best
from trainer.run_directory.evaluation import UNREADABLE
from trainer.run_directory.run_record import RunRecord
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.run_directory.volume import WriteFailures, reason, wait_for_room
from trainer.telemetry import report
from trainer.telemetry.profile import Profile
from trainer.telemetry.progress import Progress
from trainer.telemetry.summaries import SummaryWriter
from trainer.tensorflow import tf
from trainer.tensorflow_errors import brief
from trainer.tensorflow_types import Session
from trainer.training.background import Background
from trainer.training.callback import Callback
from trainer.training.context import TaskContext
from trainer.training.divergence import DivergenceDetector
from trainer.training.periodic_evaluation import PeriodicEvaluation

logger = logging.getLogger(__name__)

MAX_ROLL_BACKS = 8
"""Each roll-back halves the learning rate. A run that diverges after that has another fault."""
MIN_SAVE_SECONDS = 3.0
"""Minimum seconds between two checkpoints that `save_share` allows."""
RETRY_SHARE = 0.05
"""The share of the time that may be spent on attempts to save while the volume is full or read-only."""
CLAIM_SECONDS = 2.0
"""Seconds between two looks at who writes the training directory."""


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
        writing: Background,
        untrained_loss: float | None,
    ) -> None:
        """Lead a session. `writing` is the thread that writes checkpoints; it must be idle."""
        self._context, self._settings, self._metrics = context, context.settings, context.metrics
        self._directory, self._replica, self._session = directory, replica, session
        self._run_id = run_id
        self._saver: Saver = replica.saver
        self._record, self._evaluation, self._writing = record, evaluation, writing
        settings = context.settings
        self._checkpoints = CheckpointList(directory.path, settings.keep_checkpoints, settings.keep_checkpoint_hours)
        self._divergence: DivergenceDetector | None = DivergenceDetector(untrained_loss)
        self.checkpoint = ""
        """The checkpoint that was restored or saved last."""
        self._saved_step = self._tried_step = -1
        self._saved_time = self._checked_time = time.monotonic()
        self._saving_seconds = 0.0
        """How long the last attempt to save took, from the snapshot to the checkpoint's place in the list."""
        self._reported_not_finite = False
        self._failures = WriteFailures("the checkpoint")
        self._candidate_failures = WriteFailures("a checkpoint for the next evaluation")
        self._failure: Exception | None = None
        """Why the last checkpoint could not be written."""
        self._saving = threading.Lock()
        self._fetched = threading.Event()
        """Whether the last snapshot is in the memory of this process."""
        self._fetched.set()
        self._roll_backs = 0
        shutil.rmtree(directory.saving, ignore_errors=True)  # of a process that was killed
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
            self._record.count_absence()
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
        self._roll_backs = count
        try:
            with self._directory.divergences.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"global_step": step, "restored": path, "reason": str(diverged)}) + "\n")
        except OSError as error:
            logger.warning(f"{self._directory.divergences} cannot be written ({reason(error)})")

    def _count_roll_backs(self) -> int:
        file = self._directory.divergences
        return max(self._roll_backs, len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0)

    def _restore_or_initialize(self) -> None:
        kept = best.read(self._directory.best)
        listed = [*reversed(self._checkpoints.paths)]
        if kept:  # it may be the newest
            older = (index for index, path in enumerate(listed) if step_of(path) < step_of(kept.checkpoint))
            listed.insert(next(older, len(listed)), kept.checkpoint)
        others = [path for path in reversed(find(self._directory.path)) if path not in listed]
        checkpoints = [*listed, *others]
        if self._checkpoints.paths and not self._checkpoints.is_listed:
            logger.warning(f"{self._directory}/checkpoint is absent or damaged; continuing with the checkpoints found")
        for checkpoint in checkpoints:
            try:
                self._saver.restore(self._session, checkpoint)
            except UNREADABLE as error:
                logger.warning(f"the checkpoint {checkpoint} cannot be read ({brief(error)}); trying the previous one")
                continue
            self.checkpoint = checkpoint
            step, reached = int(self._session.run(self._replica.global_step)), self._metrics.global_step or 0
            self._saved_step = step if checkpoint in self._checkpoints.paths else -1
            restored = self._directory.public(checkpoint)
            again = f"; the steps from {step + 1} to {reached} are taken again" if reached > step else ""
            report.log(logger, f"restored {restored}{again}", restored=restored)
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
        """Check the loss; stop the profile, start to save a checkpoint or to evaluate if that is due.

        Raises:
            SupersededError: another chief has claimed the training directory.
            DivergedError: the run diverges, and `on_divergence` is "stop".
            RollBackError: the run diverges, and `on_divergence` is "restore".
        """
        if time.monotonic() - self._checked_time >= CLAIM_SECONDS:
            self._checked_time = time.monotonic()
            self._directory.check_writer()
        self._check_loss(step, loss)
        self._profile.after_execution(step)
        self._save_if_due(step)
        self._evaluate_if_due()

    def on_train_end(self, is_complete: bool) -> None:
        """Save the last checkpoint.

        Raises:
            DivergedError: the run is complete, and its parameters are not finite.
            StoreError: the run is complete, and the volume has no room for its last checkpoint.
        """
        if self.save() or not is_complete:
            return
        if self._failure:
            settings, pause = self._context.settings, self._context.watchdog.pause
            what = f"the last checkpoint in {self._directory}"
            wait_for_room(what, self._save_or_raise, settings.wait_seconds, pause)
        else:
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
        """Save a checkpoint of the current global step unless it exists, and wait for it; return whether it exists now.

        Do not save parameters that are not finite: the run can only continue from an earlier checkpoint.

        Raises:
            SupersededError: another chief has claimed the training directory.
        """
        self._context.watchdog.operation = "saving a checkpoint"
        with self._saving:  # `save_before_exit` may run while the main thread saves
            self._fetched.wait()
            step = int(self._session.run(self._replica.global_step))
            if step == self._tried_step:
                self._writing.wait()
            if step == self._saved_step:
                return True
            snapshot = self._take_snapshot()  # parameter servers do not exit while the thread writes an earlier one
            self._writing.wait()
            return self._write_checkpoint(snapshot, time.monotonic())

    def _save_or_raise(self) -> None:
        """Raise the error of a failed save."""
        if not self.save() and self._failure:
            raise self._failure

    def _start_to_save(self) -> None:
        """Save a checkpoint of the current global step in the thread."""
        with self._saving:
            began = self._saved_time = time.monotonic()
            self._directory.check_writer()
            if int(self._session.run(self._replica.global_step)) == self._saved_step:
                return
            snapshot = self._take_snapshot()
            self._fetched.clear()
            self._writing.start(lambda: self._in_thread(lambda: self._write_checkpoint(snapshot, began)))

    def _take_snapshot(self) -> Snapshot:
        self._saved_time = time.monotonic()
        snapshot = self._saver.snapshot(self._session)
        self._tried_step = snapshot.step
        return snapshot

    def _write_checkpoint(self, snapshot: Snapshot, began: float) -> bool:
        """Write a snapshot, and list it; return whether that worked.

        Raises:
            SupersededError: another chief has claimed the training directory.
            tf.errors.OpError, RuntimeError: the snapshot cannot be fetched, as a parameter server is lost.
        """
        self._failure = None
        try:
            return self._write_and_list(snapshot)
        finally:
            self._saving_seconds = time.monotonic() - began

    def _write_and_list(self, snapshot: Snapshot) -> bool:
        path = self._write(snapshot, self._directory.saving, self._failures)
        if path is None:
            return False
        try:
            self._directory.check_writer()
            path = move(path, self._directory.path)
            self._checkpoints.add(path)
        except OSError as error:
            self._failed(error, self._failures)
            return False
        self._failures.succeeded()
        self.checkpoint, self._saved_step = path, snapshot.step
        self._metrics.checkpoints += 1
        if self._saved_step < self._settings.train_steps or not self._record.is_done:
            self._record.write_running(self._saved_step)
        return True

    def _write(self, snapshot: Snapshot, folder: Path, failures: WriteFailures) -> str | None:
        """Write a snapshot to an empty folder, and return its path; None if it is not finite or cannot be written."""
        try:
            snapshot.fetch()
        finally:
            self._fetched.set()
        if not snapshot.is_finite:
            if not self._reported_not_finite:
                logger.warning(
                    f"the parameters are not finite at step {snapshot.step}: no checkpoint is saved; {self._remedy()}"
                )
            self._reported_not_finite = True
            return None
        self._directory.check_writer()
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(exist_ok=True)
            return snapshot.write(folder / self._directory.checkpoint_prefix.name)
        except (OSError, tf.errors.OpError) as error:
            shutil.rmtree(folder, ignore_errors=True)  # what was written may take the last room
            self._failed(error, failures)
            return None

    def _failed(self, error: Exception, failures: WriteFailures) -> None:
        if failures is self._failures:  # not for a candidate
            self._failure = error
        failures.failed(error)

    def _in_thread(self, write: Callable[[], object]) -> None:
        """Write beside training. The main thread finds the cause of an error by itself."""
        try:
            write()
        except SupersededError:
            pass
        except Exception as error:
            logger.warning(f"a checkpoint is not saved: {brief(error)}")

    def _evaluate_if_due(self) -> None:
        """Start the evaluation of a candidate if one is due and no evaluator runs."""
        evaluation = self._evaluation
        if not evaluation or not evaluation.is_due or self._writing.is_busy or self._directory.has_evaluator:
            return
        with self._saving:
            began = time.monotonic()
            self._directory.check_writer()
            snapshot = self._saver.snapshot(self._session)
            evaluation.await_candidate()
            self._fetched.clear()
            self._writing.start(lambda: self._in_thread(lambda: self._write_candidate(evaluation, snapshot, began)))

    def _write_candidate(self, evaluation: PeriodicEvaluation, snapshot: Snapshot, began: float) -> None:
        candidate = None
        try:
            candidate = self._write(snapshot, self._directory.candidate, self._candidate_failures)
        finally:
            if candidate:
                evaluation.start(candidate, time.monotonic() - began)
            else:
                evaluation.skip()

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
        try:
            self.save()
        except SupersededError as error:
            logger.error(str(error))
        except Exception as error:  # a parameter server is away
            logger.warning(f"no checkpoint is saved at the end: {brief(error)}")
        profiling.join()

    def _save_if_due(self, step: int) -> None:
        """Save a checkpoint when `save_steps` have passed, or the time that `save_seconds` and `save_share` allow."""
        every = self._settings.save_steps
        if every is not None and step // every > max(self._saved_step, self._tried_step, 0) // every:
            self._writing.wait()  # the user wants one at this step
            self._start_to_save()
        elif time.monotonic() - self._saved_time >= self._interval and not self._writing.is_busy:
            self._start_to_save()

    @property
    def _interval(self) -> float:
        """Seconds from one checkpoint to the next, or to the next attempt if the last one failed."""
        settings = self._settings
        if self._failure:
            return min(settings.save_seconds, max(MIN_SAVE_SECONDS, self._saving_seconds / RETRY_SHARE))
        if settings.save_steps or not settings.save_share:
            return settings.save_seconds
        return min(settings.save_seconds, max(MIN_SAVE_SECONDS, self._saving_seconds / settings.save_share))
