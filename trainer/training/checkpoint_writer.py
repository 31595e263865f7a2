"""Saves the checkpoints of one session: when one is due, and again after an attempt that failed.

A save begins with a snapshot between two executions; the thread `RunContext.writing` then writes it beside training.
"""

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from trainer.checkpoint import table_files
from trainer.checkpoint.files import CheckpointList, move
from trainer.checkpoint.saver import Snapshot
from trainer.checkpoint.table_saver import TableSaver
from trainer.checkpoint.volume import WriteFailures
from trainer.errors import SupersededError
from trainer.tensorflow import tf
from trainer.tensorflow.errors import brief
from trainer.tensorflow_types import Session
from trainer.training.periodic_evaluation import PeriodicEvaluation
from trainer.training.run_context import RunContext

logger = logging.getLogger(__name__)

MIN_SAVE_SECONDS = 3.0
"""Minimum seconds between two checkpoints that `save_share` allows."""
RETRY_SHARE = 0.05
"""The share of the time that may be spent on attempts to save while the volume is full or read-only."""


class CheckpointWriter:
    """Saves checkpoints of a session. Any thread may call `save_and_wait`, the main thread the other methods."""

    def __init__(self, run: RunContext, session: Session) -> None:
        """The thread `run.writing` must be idle."""
        self._run, self._session, self._settings = run, session, run.task.settings
        self._directory, self._writing, self._replica = run.directory, run.writing, run.replica
        self._tables: TableSaver = run.replica.saver.tables
        self._tables.forget()
        killed = [self._directory.saving]
        killed += [] if self._directory.has_evaluator else [self._directory.evaluating]
        for folder in killed:  # what a process has left that was killed
            shutil.rmtree(folder, ignore_errors=True)
        self._remove_unused()
        self.checkpoints = CheckpointList(
            self._directory.path, self._settings.keep_checkpoints, self._settings.keep_checkpoint_hours
        )
        self.latest = ""
        """The checkpoint that was restored or saved last."""
        self.saved_step = -1
        """The global step of the newest checkpoint in the list; -1 if the next save must write one."""
        self.failure: Exception | None = None
        """Why the last checkpoint could not be written."""
        self._tried_step = -1
        self._saved_time = time.monotonic()
        self._saving_seconds = 0.0
        """How long the last attempt to save took, from the snapshot to the checkpoint's place in the list."""
        self._reported_not_finite = False
        self._failures = WriteFailures("the checkpoint")
        self._candidate_failures = WriteFailures("a checkpoint for the next evaluation")
        self._saving = threading.Lock()
        self._fetched = threading.Event()
        """Whether the last snapshot is in the memory of this process."""
        self._fetched.set()

    def begin(self) -> None:
        """Start to read the tables, which snapshots need, beside training."""
        if not self._tables.has_bases and not self._writing.is_busy:
            self._writing.start(lambda: self._in_thread(self._read_tables))

    def save_if_due(self, step: int) -> None:
        """Start to save when `save_steps` have passed, or the time that `save_seconds` and `save_share` allow."""
        every = self._settings.save_steps
        if every is not None and step // every > max(self.saved_step, self._tried_step, 0) // every:
            self._writing.wait()  # the user wants one at this step
            self.save()
        elif time.monotonic() - self._saved_time >= self._interval and not self._writing.is_busy:
            self.save()

    def save(self) -> None:
        """Save a checkpoint of the current global step unless it exists, beside training.

        Raises:
            SupersededError: another chief has claimed the training directory.
        """
        with self._saving:
            began = self._saved_time = time.monotonic()
            self._directory.check_writer()
            step = self._global_step()
            if step == self.saved_step:
                return
            if not self._tables.has_bases:
                self._tried_step = step
                self.begin()
                return
            snapshot = self._take_snapshot()
            self._fetched.clear()
            self._writing.start(lambda: self._in_thread(lambda: self._finish_save(snapshot, began)))

    def save_and_wait(self, may_merge: bool = True) -> bool:
        """Save a checkpoint of the current global step unless it exists, and wait for it; return whether it exists now.

        `may_merge` allows new bases for its tables, which take longer than a task may have that ends.
        Do not save parameters that are not finite: the run can only continue from an earlier checkpoint.

        Raises:
            SupersededError: another chief has claimed the training directory.
            tf.errors.OpError, RuntimeError: a parameter server is lost, or the session is closed.
        """
        self._run.task.watchdog.operation = "saving a checkpoint"
        with self._saving:  # the watchdog's thread may save while the main thread saves
            self._fetched.wait()
            step = self._global_step()
            if step == self._tried_step:
                self._writing.wait()
            if step == self.saved_step:
                return True
            if not self._has_tables():
                return False
            snapshot = self._take_snapshot()  # parameter servers do not exit while the thread writes an earlier one
            self._writing.wait()
            return self._finish_save(snapshot, time.monotonic(), may_merge)

    def save_candidate(self, evaluation: PeriodicEvaluation) -> None:
        """Save a checkpoint outside of the list, beside training, and start its evaluation.

        Raises:
            SupersededError: another chief has claimed the training directory.
        """
        with self._saving:
            began = time.monotonic()
            self._directory.check_writer()
            if not self._tables.has_bases:
                evaluation.skip()
                return
            snapshot = self._replica.saver.snapshot(self._session)
            evaluation.await_candidate(snapshot.step)
            self._fetched.clear()
            self._writing.start(lambda: self._in_thread(lambda: self._finish_candidate(evaluation, snapshot, began)))

    def _has_tables(self) -> bool:
        """Wait for the tables to be read, or read them; return whether that worked.

        Parameter servers do not exit before the snapshot that follows.
        """
        if self._tables.has_bases:
            return True
        self._session.run(self._replica.saver.hold)
        self._writing.wait()
        if not self._tables.has_bases:
            self._read_tables()
        if not self._tables.has_bases:
            self._session.run(self._replica.saver.release)
        return self._tables.has_bases

    def _read_tables(self) -> None:
        began = time.monotonic()
        try:
            self._tables.read_bases(self._session, self._directory.path)
        except OSError as error:
            self.failure = error
            self._failures.failed(error)
        finally:
            self._saving_seconds = time.monotonic() - began

    def _remove_unused(self) -> None:
        """Remove the tables that no checkpoint has."""
        self._directory.check_writer()
        with contextlib.suppress(OSError):
            table_files.remove_partial(self._directory.path)
            table_files.remove_unused(self._directory.path, self._tables.bases)

    def _global_step(self) -> int:
        return int(self._session.run(self._replica.global_step))

    def _take_snapshot(self) -> Snapshot:
        self._saved_time = time.monotonic()
        snapshot: Snapshot = self._replica.saver.snapshot(self._session)
        self._tried_step = snapshot.step
        return snapshot

    def _in_thread(self, write: Callable[[], object]) -> None:
        """Write beside training. The main thread finds the cause of an error by itself."""
        try:
            write()
        except SupersededError:
            pass
        except Exception as error:
            logger.warning(f"a checkpoint is not saved: {brief(error)}")

    def _finish_save(self, snapshot: Snapshot, began: float, may_merge: bool = True) -> bool:
        """Fetch a snapshot, write it, and list it; return whether that worked."""
        self.failure = None
        try:
            return self._fetch(snapshot) and self._write_and_list(snapshot, may_merge)
        finally:
            self._saving_seconds = time.monotonic() - began

    def _write_and_list(self, snapshot: Snapshot, may_merge: bool) -> bool:
        try:
            path = move(self._write(snapshot, self._directory.saving, may_merge), self._directory.path)
            self.checkpoints.add(path)
        except (OSError, tf.errors.OpError) as error:
            self.failure = error
            self._failures.failed(error)
            return False
        self._failures.succeeded()
        if self._tables.bases:
            self._remove_unused()
        self.latest, self.saved_step = path, snapshot.step
        self._run.task.metrics.checkpoints += 1
        self._run.task.metrics.saved = time.time()
        if self.saved_step < self._settings.train_steps or not self._run.record.is_done:
            self._run.record.write_running(self.saved_step)
        return True

    def _finish_candidate(self, evaluation: PeriodicEvaluation, snapshot: Snapshot, began: float) -> None:
        candidate = None
        try:
            if self._fetch(snapshot):
                candidate = self._write_candidate(snapshot)
        finally:
            if candidate:
                evaluation.start(candidate, time.monotonic() - began)
            else:
                evaluation.skip()

    def _write_candidate(self, snapshot: Snapshot) -> str | None:
        try:
            return self._write(snapshot, self._directory.candidate)
        except (OSError, tf.errors.OpError) as error:
            self._candidate_failures.failed(error)
            return None

    def _fetch(self, snapshot: Snapshot) -> bool:
        """Fetch a snapshot, which frees the parameter servers; return whether its parameters are finite."""
        try:
            snapshot.fetch()
        finally:
            self._fetched.set()
        is_finite = snapshot.is_finite
        if not is_finite and not self._reported_not_finite:
            self._reported_not_finite = True
            logger.warning(
                f"the parameters are not finite at step {snapshot.step}: no checkpoint is saved; {self._run.remedy()}"
            )
        return is_finite

    def _write(self, snapshot: Snapshot, folder: Path, may_merge: bool = True) -> str:
        """Write a snapshot to an empty folder, and return its path."""
        self._directory.check_writer()
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(exist_ok=True)
            path = snapshot.write(folder / self._directory.checkpoint_prefix.name, may_merge)
            self._directory.check_writer()
            return path
        except (OSError, tf.errors.OpError):
            shutil.rmtree(folder, ignore_errors=True)  # what was written may take the last room
            raise

    @property
    def _interval(self) -> float:
        """Seconds from one checkpoint to the next, or to the next attempt if the last one failed."""
        settings = self._settings
        if self.failure:
            return min(settings.save_seconds, max(MIN_SAVE_SECONDS, self._saving_seconds / RETRY_SHARE))
        if settings.save_steps or not settings.save_share:
            return settings.save_seconds
        return min(settings.save_seconds, max(MIN_SAVE_SECONDS, self._saving_seconds / settings.save_share))
