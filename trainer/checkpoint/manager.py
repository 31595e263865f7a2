"""The checkpoints of one session: saved when one is due, and again after an attempt that failed; and restored.

A save begins with a snapshot between two executions; a thread then writes it beside training.
"""

import contextlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from trainer.checkpoint import best, restore, table_files
from trainer.checkpoint.background import Background
from trainer.checkpoint.files import CheckpointList, move
from trainer.checkpoint.saver import Saver, Snapshot
from trainer.checkpoint.volume import WriteFailures, reason
from trainer.config import Settings
from trainer.errors import ConfigurationError, DivergedError, RollBackError, SupersededError
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.telemetry import report
from trainer.telemetry.metrics import Metrics
from trainer.tensorflow import tf
from trainer.tensorflow.errors import UNREADABLE, brief
from trainer.tensorflow_types import Session, Tensor

logger = logging.getLogger(__name__)

Restored = TypeVar("Restored")

MIN_SAVE_SECONDS = 3.0
"""Minimum seconds between two checkpoints that `save_share` allows."""
RETRY_SHARE = 0.05
"""The share of the time that may be spent on attempts to save while the volume is full or read-only."""


class Candidates(Protocol):
    """What evaluates checkpoints outside of the list."""

    def await_candidate(self, step: int) -> None:
        """Expect `start` or `skip` for a candidate of this global step."""

    def start(self, candidate: str, saving: float) -> None:
        """Evaluate a candidate, which took `saving` seconds to save."""

    def skip(self) -> None:
        """Wait for the next candidate: none could be saved."""


@dataclass(frozen=True)
class SavedRun:
    """What the sessions of a run save and restore, and who is told."""

    saver: Saver
    global_step: Tensor
    directory: TrainingDirectory
    settings: Settings
    metrics: Metrics
    writing: Background
    """The thread that writes checkpoints. It outlives a session."""
    remedy: Callable[[], str]
    """What to do about a run that diverges, as the end of a sentence."""
    wait: Callable[[], None]
    """Called before a save that the caller waits for."""
    saved: Callable[[int], None]
    """Called with the global step of each checkpoint that is written, perhaps in another thread."""


class CheckpointManager:
    """The checkpoints of a session. Any thread may call `save_and_wait`, the main thread the other methods."""

    def __init__(self, run: SavedRun, session: Session) -> None:
        """The thread `run.writing` must be idle."""
        self._run, self._session, self._settings = run, session, run.settings
        self._directory, self._writing, self._saver = run.directory, run.writing, run.saver
        self._tables = run.saver.tables
        self._tables.forget()
        killed = [self._directory.saving, self._directory.publishing]
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
        """Whether the last snapshot is in the memory of this process: another one would take its place."""
        self._fetched.set()

    def begin(self) -> None:
        """Start to read the tables, which snapshots need, beside training."""
        if not self._tables.has_bases and not self._writing.is_busy:
            self._writing.start(lambda: self._in_thread(self._read_tables))

    def restore_lost(self, lost: Sequence[int]) -> bool:
        """Restore these shards alone from the newest checkpoint that can be read; return False if none can.

        The others keep what they have, and the run its global step.
        """
        step, found = self._global_step(), restore.newest_first(self._directory, self.checkpoints)
        path, _ = self._restore_first(found, lambda path: self._saver.restore_lost(self._session, path, lost, step))
        if path:
            names, public = ", ".join(map(str, lost)), self._directory.public(path)
            logger.info(f"ps {names} restored from {public}; the others keep what they have, and the run goes on")
        return bool(path)

    def restore_newest(self) -> bool:
        """Restore every variable from the newest checkpoint that can be read; return False if there is none.

        Raises:
            ConfigurationError: there are checkpoints, and none can be read.
        """
        directory, checkpoints = self._directory, self.checkpoints
        found = restore.newest_first(directory, checkpoints)
        if checkpoints.paths and not checkpoints.is_listed:
            logger.warning(f"{directory}/checkpoint is absent or damaged; continuing with the checkpoints found")
        path, kept = self._restore_first(found, lambda path: self._saver.restore(self._session, path))
        if path:
            step, reached = self._global_step(), self._run.metrics.global_step or 0
            again = f"; the steps from {step + 1} to {reached} are taken again" if reached > step else ""
            tables = f"; the tables on ps {', '.join(map(str, kept))} stay as they are" if kept else ""
            report.log(logger, f"restored {directory.public(path)}{again}{tables}", restored=directory.public(path))
            self.latest = path
            self.saved_step = step if path in checkpoints.paths else -1
            return True
        if found:
            differences = "; ".join(self._saver.differences(found[0]))
            why, weights = (f" ({differences})", restore.second_phase(directory)) if differences else ("", "")
            raise ConfigurationError(
                f"train_dir: none of the checkpoints in {directory} can be read{why}: choose another "
                f"train_dir{weights}, or empty this one to train from the start."
            )
        return False

    def _restore_first(self, found: Sequence[str], use: Callable[[str], Restored]) -> tuple[str, Restored | None]:
        """Restore the first of these checkpoints that can be read; return its path, or "", and the result of `use`."""
        for path in found:
            try:
                return path, use(path)
            except UNREADABLE as error:
                logger.warning(f"the checkpoint {path} cannot be read ({brief(error)}); trying the previous one")
        return "", None

    def roll_back(self, diverged: RollBackError, local_steps: int) -> int:
        """Restore the best checkpoint, or else the newest one that can be read, and save it at a later global step.

        Return how often the run has been rolled back.

        Args:
            diverged: Why.
            local_steps: The steps that a replica takes before it sends what it has learnt.

        Raises:
            DivergedError: there is none, or the run was rolled back MAX_ROLL_BACKS times.
        """
        count = restore.count_roll_backs(self._directory) + 1
        if count > restore.MAX_ROLL_BACKS:
            raise DivergedError(
                f"{diverged}, and it was rolled back {restore.MAX_ROLL_BACKS} times; {self._run.remedy()}"
            )
        # The global step never decreases: replicas drop contributions of earlier steps.
        step = max(self._global_step(), diverged.step) + local_steps
        step = min(step, self._settings.train_steps)
        kept = best.read(self._directory.best)
        for path in [*([kept.checkpoint] if kept else []), *reversed(self.checkpoints.paths)]:
            try:
                step = self._saver.roll_back(self._session, path, step)
                break
            except UNREADABLE as error:
                logger.warning(f"the checkpoint {path} cannot be read ({brief(error)})")
        else:
            raise DivergedError(f"{diverged}, and there is no checkpoint to restore; {self._run.remedy()}")
        logger.info(f"{diverged}: restored {path}; continuing at step {step} with 1/{2**count} of the learning rate")
        self.saved_step = -1
        self.save_and_wait()
        try:
            with self._directory.divergences.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"global_step": step, "restored": path, "reason": str(diverged)}) + "\n")
        except OSError as error:
            logger.warning(f"{self._directory.divergences} cannot be written ({reason(error)})")
        return count

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
            self._fetched.wait()
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

    def save_if_leaving(self) -> None:
        """Save if a parameter server is told to end, and let it end when what it has is in this process.

        Raises:
            SupersededError: another chief has claimed the training directory.
        """
        if self._saver.is_leaving is not None and self._session.run(self._saver.is_leaving):
            logger.info("a parameter server is told to end: saving what it has")
            self._writing.wait()
            self.save()
            self._fetched.wait()
            self._session.run(self._saver.let_leave)

    def save_and_wait(self, may_merge: bool = True) -> bool:
        """Save a checkpoint of the current global step unless it exists, and wait for it; return whether it exists now.

        `may_merge` allows new bases for its tables, which take longer than a task may have that ends.
        Do not save parameters that are not finite: the run can only continue from an earlier checkpoint.

        Raises:
            SupersededError: another chief has claimed the training directory.
            tf.errors.OpError, RuntimeError: a parameter server is lost, or the session is closed.
        """
        self._run.wait()
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

    def save_candidate(self, evaluation: Candidates) -> None:
        """Save a checkpoint outside of the list, beside training, and start its evaluation.

        Raises:
            SupersededError: another chief has claimed the training directory.
        """
        with self._saving:
            self._fetched.wait()
            began = time.monotonic()
            self._directory.check_writer()
            if not self._tables.has_bases:
                evaluation.skip()
                return
            snapshot = self._saver.snapshot(self._session)
            evaluation.await_candidate(snapshot.step)
            self._fetched.clear()
            self._writing.start(lambda: self._in_thread(lambda: self._finish_candidate(evaluation, snapshot, began)))

    def save_beside(self, folder: Path, use: Callable[[str, Snapshot], None]) -> bool:
        """Save a checkpoint outside of the list to a folder, beside training, and let it be used in the thread.

        Return whether that was begun, as `read_changes`.

        Raises:
            SupersededError: another chief has claimed the training directory.
        """
        return self._use_snapshot(None, lambda snapshot: use(self._write(snapshot, folder), snapshot))

    def read_changes(self, since: int, use: Callable[[Snapshot], None]) -> bool:
        """Take a snapshot with the rows that have changed in this period or later, and let it be used in a thread.

        Return whether that was begun: not while a checkpoint is written, or the tables are read.

        Raises:
            SupersededError: another chief has claimed the training directory.
        """
        return self._use_snapshot(since, use)

    def _use_snapshot(self, since: int | None, use: Callable[[Snapshot], None]) -> bool:
        with self._saving:
            if self._writing.is_busy or not self._tables.has_bases:
                return False
            self._fetched.wait()
            self._directory.check_writer()
            snapshot = self._saver.snapshot(self._session, since)
            self._fetched.clear()
            self._writing.start(lambda: self._in_thread(lambda: use(snapshot) if self._fetch(snapshot) else None))
            return True

    def _has_tables(self) -> bool:
        """Wait for the tables to be read, or read them; return whether that worked.

        Parameter servers do not exit before the snapshot that follows.
        """
        if self._tables.has_bases:
            return True
        self._session.run(self._saver.hold)
        self._writing.wait()
        if not self._tables.has_bases:
            self._read_tables()
        if not self._tables.has_bases:
            self._session.run(self._saver.release)
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
        return int(self._session.run(self._run.global_step))

    def _take_snapshot(self) -> Snapshot:
        self._saved_time = time.monotonic()
        snapshot = self._saver.snapshot(self._session)
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
        self._run.metrics.checkpoints += 1
        self._run.metrics.saved = time.time()
        self._run.saved(self.saved_step)
        return True

    def _finish_candidate(self, evaluation: Candidates, snapshot: Snapshot, began: float) -> None:
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
