"""The chief's duties in a session.

The chief initializes or restores the variables, starts saves and periodic evaluations, writes summaries and profiles,
and detects divergence.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from trainer.checkpoint import restore
from trainer.checkpoint.files import CALLBACKS, COURSE, FILES, TOTALS, newest_array
from trainer.checkpoint.manager import CheckpointManager
from trainer.checkpoint.volume import reason, retry_writing
from trainer.data.examples import Array
from trainer.data.files import write_atomically
from trainer.data.leases import UNKNOWN
from trainer.errors import ConfigurationError, DivergedError, RollBackError, SupersededError
from trainer.graph.replication.lease_table import UNLIMITED
from trainer.graph.totals import Totals
from trainer.shards.course import Course
from trainer.telemetry.profile import Profile
from trainer.telemetry.progress import Progress
from trainer.telemetry.summaries import SummaryWriter
from trainer.tensorflow.errors import brief
from trainer.tensorflow_types import Session
from trainer.training.callback import Callback
from trainer.training.callback_state import CallbackState, read_state
from trainer.training.fit_callbacks import FitCallbacks
from trainer.training.hook_gate import wait_for_others
from trainer.training.outcome import Outcome
from trainer.training.periodic_evaluation import WAIT_SECONDS
from trainer.training.run_context import RunContext
from trainer.training.watch.divergence import DivergenceDetector

logger = logging.getLogger(__name__)

CLAIM_SECONDS = 2.0
"""Seconds between two looks at who writes the training directory."""
LEAVING_SECONDS = 0.5
"""Seconds between two looks at whether a parameter server is told to end."""


class Chief(Callback):
    """The chief's part in one session. As a context manager it closes the summary file and stops the profile."""

    def __init__(self, run: RunContext, session: Session) -> None:
        """Lead a session. The thread `run.writing` must be idle."""
        self._run, self._session, self._replica = run, session, run.replica
        self._settings, self._watchdog = run.task.settings, run.task.watchdog
        self.checkpoints = CheckpointManager(run.saved(self._note_save), session)
        self._divergence: DivergenceDetector | None = DivergenceDetector(run.untrained_loss)
        self._checked_time = self._looked_time = time.monotonic()
        self._summaries = SummaryWriter(run.directory.train_summaries)
        self._profile = Profile(self._settings.profile_steps, run.directory.path)
        self._roll_back_factor = 1.0
        self._is_stopped = False
        """Whether an earlier process of the chief has ended the run on the parameter servers."""
        self._is_evaluating_epoch = self._has_changed = False
        self._course = Course(self._settings.train_steps)
        self._certain = UNKNOWN
        """The global step at which this session went on with what the parameter servers hold; UNKNOWN if it did not."""
        self._waited_at = 0
        """The global step of the last hooks for which the others waited."""
        self._sums: Array | None = None
        """Those of the epoch that ends, while it is saved."""
        self._has_saved_the_end = False
        """Whether the main thread has saved after its last step; then it closes the session."""

    def __enter__(self) -> "Chief":
        return self

    def __exit__(self, *error: object) -> None:
        if self._run.publication:
            self._run.publication.stop()
        self._profile.stop()
        self._summaries.close()

    def prepare(self, diverged: RollBackError | None = None) -> None:
        """Initialize or restore every variable, then let the other replicas start.

        Parameter servers that already hold all values stay unchanged: only the chief has restarted. In an asynchronous
        run so do those that are left when others are lost, unless that is the first one. If the run has just
        `diverged`, restore the best checkpoint and save it as the newest one.

        Raises:
            DivergedError: no checkpoint can be restored, or the run was rolled back too often.
            ConfigurationError: no existing checkpoint can be read, or the parameter servers hold another run.
        """
        self._watchdog.operation = "initializing or restoring the parameters"
        directory, replica = self._run.directory, self._replica
        if is_continued := bool(self._session.run(replica.is_ready)) or self._restore_lost():
            self._continue()
        elif not self.checkpoints.restore_newest():
            directory.divergences.unlink(missing_ok=True)
            self._session.run(replica.initialize)
        self._set_course(is_continued)
        roll_backs = restore.count_roll_backs(directory)
        if diverged:
            roll_backs = self.checkpoints.roll_back(diverged, replica.mode.local_steps)
        if replica.rate_scale is not None:
            self._roll_back_factor = 0.5**roll_backs
        if replica.is_over is not None and not self._is_stopped:
            self._session.run(replica.is_over.initializer)
        if replica.gate:
            self._session.run(replica.gate.variable.initializer)
        if replica.totals and diverged:
            self._session.run(replica.totals.reset)
        else:
            self._restore_callbacks(is_continued)
        if replica.rate_scale is not None:
            self._set_rate()
        self._session.run(replica.replication.lead)
        self._session.run(replica.mark_ready)
        step = int(self._session.run(replica.global_step))
        self._certain = step if is_continued else UNKNOWN
        if step < self._settings.train_steps:
            self._run.record.write_running(step)

    def _restore_lost(self) -> bool:
        """Restore what lost parameter servers held, if the others may keep what they have; return whether that worked.

        Only the first one knows which run it holds.
        """
        first, *others = self._session.run(self._replica.are_ready)
        if not first or not self._replica.mode.is_independent:
            return False
        is_own = self._session.run(self._replica.run_id).decode() == self._run.run_id
        lost = [number for number, is_ready in enumerate(others, start=1) if not is_ready]
        return is_own and self.checkpoints.restore_lost(lost)

    def _note_save(self, step: int) -> None:
        """Record the progress of a run that has a new checkpoint, perhaps in the thread that has written it."""
        if step < self._settings.train_steps or not self._run.record.is_done:
            self._run.record.write_running(step)

    def _set_course(self, is_continued: bool) -> None:
        """Determine the course of the run, from that which the parameter servers or the restored checkpoint have."""
        shared, saver = self._replica.course, self._replica.saver
        step = int(self._session.run(self._replica.global_step))
        before = shared.read(self._session) if is_continued else saver.course
        course, leases = self._run.course(before, step), self._replica.leases
        if leases:
            limit, files = self._limit(course), self._replica.files
            is_open = limit < UNLIMITED and (files is not None or self._replica.mode.is_independent)
            course = replace(course, is_open=is_open)
            if is_continued and (files or course.epochs == before.epochs):
                course = replace(course, is_open=course.is_open or before.is_open)
                leases.set_limit(self._session, limit)
            elif files:
                leases.reset_files(self._session, self._files_not_done(files.deal.examples, before, step), limit)
            else:
                leases.reset(self._session, step, limit)
        self._course = course
        saver.more_at = self._more_at
        shared.write(self._session, course)
        old, new = before.epochs, self._course.epochs
        if old and new and new != old:
            at, last_step = new.begun, self._course.last_step
            logger.info(
                f"an epoch has {new.steps} steps instead of {old.steps}: the run goes on in epoch {at.epoch + 1}, of "
                f"which {at.taken / new.examples:.0%} was taken, and its last step is {last_step}"
            )

    def _files_not_done(self, files: int, course: Course, step: int) -> npt.NDArray[np.int64]:
        """What the restored checkpoint has of that. An epoch that had another number of files begins anew.

        So does that at this global step of the checkpoint's course if it was saved without dealing files.
        """
        begun = files * (course.epochs.at(step).epoch if course.epochs else 0)
        before, *not_done = self._replica.saver.more.get(FILES, np.array([files, begun])).tolist()
        if before != files:
            epoch = not_done[0] // before
            logger.info(f"train_files() returns {files} files instead of {before}: epoch {epoch + 1} begins anew")
            not_done = [epoch * files]
        return np.array(not_done, np.int64)

    def _limit(self, course: Course) -> int:
        """The step at which no more leases are dealt, or the number of the file."""
        epochs, files = self._settings.epochs, self._replica.files
        if not epochs or (files and not self._run.ends_with_data):
            return UNLIMITED
        return epochs * files.deal.examples if files else course.last_step

    def _restore_callbacks(self, is_continued: bool) -> None:
        """Let the callbacks, and the sums of the epoch, go on from what the checkpoint has.

        The parameter servers of a run that `is_continued` have the sums. Callbacks of a run that was done before begin
        anew, as in another `fit`.
        """
        fit, totals, more = self._run.fit, self._replica.totals, self._replica.saver.more
        if not totals:
            return
        step = int(self._session.run(self._replica.global_step))
        if not fit or self._run.directory.read_result().get("state") == "done":
            self._session.run(totals.reset)
            if fit and self._course.epochs:  # or a restart would go on with the state at the end of that run
                ended = self._course.epochs.at(step).epoch - 1
                self._write_state(replace(fit.state(step), ended=ended))
            return
        after_epoch = read_state(self._run.directory.callbacks)
        if is_continued:
            newest = newest_array(self._run.directory.path, CALLBACKS)
            states = [after_epoch, None if newest is None else CallbackState.unpack(newest)]
            fit.restore(max((each for each in states if each), key=lambda each: each.step, default=None))
            if after_epoch and after_epoch.step == step:
                self._session.run(totals.reset)
            return
        state = CallbackState.unpack(more[CALLBACKS]) if CALLBACKS in more else None
        if state and after_epoch and after_epoch.step == step:
            state = after_epoch
        fit.restore(state)
        sums = more.get(TOTALS, totals.begun)
        if state is after_epoch or sums.shape != totals.begun.shape:
            sums = totals.begun
        self._session.run(totals.vector.initializer, {totals.vector.initial_value: sums})

    def _more_at(self) -> Callable[[int], dict[str, Array]]:
        """What tells the arrays of a checkpoint beside those of the model at a global step."""
        course_at, fit, totals = self._course_at(), self._run.fit, self._replica.totals
        files, leases = self._replica.files, self._replica.leases
        not_done = leases.read(self._session).of_files if files and leases else []
        sums = self._session.run(totals.value) if totals and self._sums is None else self._sums

        def more_at(step: int) -> dict[str, Array]:
            more: dict[str, Array] = {COURSE: course_at(step).array}
            if files:
                more[FILES] = np.array([files.deal.examples, *not_done], np.int64)
            if fit and sums is not None:
                more |= {CALLBACKS: fit.state(step).pack(), TOTALS: sums}
            return more

        return more_at

    def _course_at(self) -> Callable[[int], Course]:
        """What tells the course of a checkpoint at a global step: the examples that are taken until then."""
        course, epochs, deal, leases = self._course, self._course.epochs, self._replica.deal, self._replica.leases
        if not (epochs and deal and leases and epochs.per_step == deal.size * deal.batches):
            return lambda _: course
        table, own = leases.read(self._session), replace(deal, begun=epochs.begun)

        def course_at(step: int) -> Course:
            begun = table.position(own, self._replica.mode.devices, step, self._certain)
            return Course(course.last_step, replace(epochs, begun=begun))

        return course_at

    def _set_rate(self) -> None:
        """Multiply the learning rate by what roll-backs and callbacks want."""
        factor = self._roll_back_factor * (self._run.fit.rate_factor if self._run.fit else 1.0)
        scale = self._replica.rate_scale
        self._session.run(scale.initializer, {scale.initial_value: factor})

    def _continue(self) -> None:
        """Continue with what the parameter servers hold."""
        if self._session.run(self._replica.run_id).decode() != self._run.run_id:
            raise ConfigurationError(
                "ps_hosts: the parameter servers still hold a run of another model, data set or train_dir: "
                "restart them."
            )
        logger.info("the parameter servers already hold the run; continuing with it")
        self._is_stopped = self._replica.is_over is not None and bool(self._session.run(self._replica.is_over_now))
        self._run.record.count_absence()
        self._replica.saver.accept(self._session)

    @property
    def is_profiling(self) -> bool:
        return self._profile.running

    def on_train_begin(self) -> None:
        self._watchdog.save_before_exit = self.save_before_exit
        self.checkpoints.begin()
        if self._run.publication:
            self._run.publication.begin(self.checkpoints, self._run.writing)
        if self._run.fit:
            assert self._course.epochs  # noqa: S101 - or there would be no callbacks
            step = int(self._session.run(self._replica.global_step))
            self._follow(self._run.fit.begin(step, self._course.last_step, self._course.epochs, self._read_values()))
            if self._run.fit.owes_end and self._replica.totals:
                self._wait_for_epoch(self._run.fit, self._replica.totals, step)

    @property
    def is_evaluating_epoch(self) -> bool:
        return self._is_evaluating_epoch

    def take_changes(self) -> bool:
        found, self._has_changed = self._has_changed, False
        return found

    def _read_values(self) -> dict[str, Array]:
        """The parameters but for tables."""
        values = self._replica.dense_values
        return values.read(self._session) if values else {}

    def _follow(self, changes: Mapping[str, Array]) -> None:
        """Take over what callbacks have set."""
        if changes and self._replica.dense_values:
            self._replica.dense_values.add(self._session, changes)
            self._has_changed = True
            self.checkpoints.saved_step = -1  # the checkpoint of this step lacks them
        self._set_rate()

    def on_execution_due(self, step: int) -> None:
        fit, totals = self._run.fit, self._replica.totals
        if not fit:
            return
        with self._run.task.account.saving():
            if totals and fit.has_ended_epoch(step):  # with a step of another replica
                self._wait_for_epoch(fit, totals, step)
            if fit.has_batch_hooks and not fit.is_over:
                self._follow(fit.begin_batches(step))

    def on_execution_begin(self, step: int, steps: int) -> None:
        self._profile.before_execution(step, steps)

    @property
    def is_over(self) -> bool:
        return self._run.was_stopped or self._is_stopped or bool(self._run.fit and self._run.fit.is_over)

    def on_execution_end(self, outcome: Outcome) -> None:
        """Check the loss; stop the profile, start to save a checkpoint or to evaluate if that is due; end an epoch.

        Raises:
            SupersededError: another chief has claimed the training directory.
            DivergedError: the run diverges, and `on_divergence` is "stop".
            RollBackError: the run diverges, and `on_divergence` is "restore".
            ModelError: a callback failed, or the model failed on the held-out data.
        """
        with self._run.task.account.saving():
            self._end_execution(outcome)

    def _end_execution(self, outcome: Outcome) -> None:
        step = outcome.step
        if time.monotonic() - self._checked_time >= CLAIM_SECONDS:
            self._checked_time = time.monotonic()
            self._run.directory.check_writer()
        self._check_loss(step, outcome.loss)
        self._profile.after_execution(step)
        fit, totals = self._run.fit, self._replica.totals
        if fit:
            fit.add(outcome)
        hook_steps = self._replica.hook_steps
        if hook_steps and step % hook_steps == 0:
            self._wait_for_others(step)
        if fit and totals and fit.has_batch_hooks:
            vector = self._session.run(totals.value)
            values = self._read_values() if fit.hooks_need_values else {}
            self._follow(fit.end_batches(step, values, vector, totals))
        if fit and totals and fit.has_ended_epoch(step):
            self._wait_for_epoch(fit, totals, step)
        else:
            self.checkpoints.save_if_due(step)
            self._evaluate_if_due(step)
        if time.monotonic() - self._looked_time >= LEAVING_SECONDS and not self._watchdog.stopping:
            self._looked_time = time.monotonic()
            self.checkpoints.save_if_leaving()

    def _wait_for_epoch(self, fit: FitCallbacks, totals: Totals, step: int) -> None:
        """End an epoch while the others wait for it."""
        self._is_evaluating_epoch = True
        self._wait_for_others(step)
        self._end_epoch(fit, totals, step)
        self._is_evaluating_epoch = False

    def _wait_for_others(self, step: int) -> None:
        """Before hooks after this global step, let the others add what they have to the sums."""
        if step > self._waited_at:
            wait_for_others(self._replica, self._session, step, self._waited_at)
            self._waited_at = step

    def _end_epoch(self, fit: FitCallbacks, totals: Totals, step: int) -> None:
        """Save a checkpoint, evaluate it, and let the callbacks follow."""
        vector: npt.NDArray[np.float32] = self._session.run(totals.value)
        self._sums = vector
        if self.checkpoints.save_and_wait():
            self._sums = totals.begun
            self._call_hooks(fit, totals, step, vector)
        else:  # it has said why
            fit.skip_epoch(step)
        self._sums = None
        self._session.run(totals.begin_next, {totals.taken: vector})

    def _call_hooks(self, fit: FitCallbacks, totals: Totals, step: int, vector: npt.NDArray[np.float32]) -> None:
        """Evaluate the checkpoint that was just saved at an epoch's end, and let the callbacks follow."""
        self._watchdog.operation = "evaluating an epoch and its callbacks"
        self._watchdog.pause()
        raw = self._read_values() if fit.averages else None
        score, changes = fit.end_epoch(step, self.checkpoints.latest, vector, totals, raw)
        self._watchdog.progress()
        self._run.record.add_evaluation(self.checkpoints.latest, score, is_candidate=False)
        self._follow(changes)
        if changes:  # a parameter server that is lost now would lose them
            self.checkpoints.save_and_wait()
        self._write_state(fit.state(step))

    def _write_state(self, state: CallbackState) -> None:
        """Write the state of the callbacks after an epoch."""
        file = self._run.directory.callbacks
        try:
            write_atomically(file, state.pack().tobytes())
        except OSError as error:
            logger.warning(f"{file} cannot be written ({reason(error)}): a restart calls on_epoch_end() once more")

    def _end_callbacks(self, fit: FitCallbacks) -> None:
        """End the epoch within which the run ends, and let the callbacks follow."""
        lacks_end = fit.is_over or (self._settings.epochs and fit.lacks_epochs)
        if lacks_end and fit.is_within_epoch and self._replica.totals:
            self._end_epoch(fit, self._replica.totals, int(self._session.run(self._replica.global_step)))
        self._follow(fit.end(self._read_values()))

    def on_train_end(self, is_complete: bool) -> None:
        """Save the last checkpoint.

        Raises:
            DivergedError: the run is complete, and its parameters are not finite.
            StoreError: the run is complete, and the volume has no room for its last checkpoint.
            ModelError: a callback failed.
        """
        with self._run.task.account.saving():
            self._end_training(is_complete)

    def _end_training(self, is_complete: bool) -> None:
        fit, totals = self._run.fit, self._replica.totals
        if is_complete and fit and totals:
            step = int(self._session.run(self._replica.global_step))
            if fit.has_ended_epoch(step) and not fit.is_over:  # with a step of another replica
                self._wait_for_epoch(fit, totals, step)
            self._end_callbacks(fit)
        if self._run.publication:
            self._run.publication.stop()
        if self._run.publication and is_complete:
            self._run.publication.publish_last(self.checkpoints, self._run.writing.wait)
        self._has_saved_the_end = self.checkpoints.save_and_wait(may_merge=False)
        if self._has_saved_the_end or not is_complete:
            return
        if self.checkpoints.failure:
            what = f"the last checkpoint in {self._run.directory}"
            retry_writing(what, self._save_or_raise, self._settings.wait_seconds, self._watchdog.pause)
        else:
            raise DivergedError(f"the run has ended with parameters that are not finite; {self._run.remedy()}")

    def _save_or_raise(self) -> None:
        """Raise the error of a failed save."""
        if not self.checkpoints.save_and_wait(may_merge=False) and self.checkpoints.failure:
            raise self.checkpoints.failure

    def on_report(self, progress: Progress) -> None:
        """Write the training summaries of this step."""
        own = {"loss": progress.loss, "steps_per_second": progress.steps_per_second}
        self._summaries.write(progress.step, {**progress.metrics, **own})

    def save_before_exit(self) -> None:
        """Save a checkpoint and the profile so far. Called from another thread while the main thread is blocked."""
        profiling = threading.Thread(target=self._profile.stop, daemon=True)  # in parallel with the checkpoint
        profiling.start()
        try:
            if not self._has_saved_the_end:
                self.checkpoints.save_and_wait(may_merge=False)
        except SupersededError as error:
            logger.error(str(error))
        except Exception as error:  # a parameter server is away
            if not self._has_saved_the_end:  # by the main thread, for which this one has waited
                logger.warning(f"no checkpoint is saved at the end: {brief(error)}")
        profiling.join()

    def _evaluate_if_due(self, step: int) -> None:
        """Start the evaluation of a candidate if one is due and no evaluator runs."""
        evaluation, run = self._run.evaluation, self._run
        if evaluation is None:
            return
        if evaluation.is_late(step):
            self._watchdog.pause()
            evaluation.wait(WAIT_SECONDS)
            self._watchdog.progress()
        if evaluation.is_due(step) and not run.writing.is_busy and not run.directory.has_evaluator:
            self.checkpoints.save_candidate(evaluation)

    def _check_loss(self, step: int, loss: float) -> None:
        """Detect divergence from the loss of a batch, and report it once."""
        sentence = self._divergence and self._divergence.observe(step, loss)
        if not sentence:
            return
        self._divergence = None
        if self._settings.on_divergence == "restore":
            raise RollBackError(f"the run diverges: {sentence}", step)
        sentence = f"the run diverges: {sentence}; {self._run.remedy()}"
        if self._settings.on_divergence == "stop":
            raise DivergedError(sentence)
        logger.warning(f"warning: {sentence}")
