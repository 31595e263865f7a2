"""What the chief alone does in a session: give the variables their values, save checkpoints, write curves, profile."""

import threading
import time
from collections.abc import Callable
from typing import Any

from trainer.config import Settings
from trainer.errors import ConfigurationError
from trainer.evaluation import UNREADABLE
from trainer.metrics import Metrics
from trainer.profile import Profile
from trainer.progress import Progress
from trainer.replica import Replica
from trainer.summaries import SummaryWriter
from trainer.tensorflow import tf1
from trainer.training_directory import TrainingDirectory


class Chief:
    """The chief's part in one session; a context manager that closes the curves' file and ends a profile."""

    def __init__(
        self,
        settings: Settings,
        directory: TrainingDirectory,
        replica: Replica,
        session: Any,
        say: Callable[[str], None],
        metrics: Metrics,
        run: str,
    ) -> None:
        self._settings, self._directory, self._replica, self._session = settings, directory, replica, session
        self._say, self._metrics, self._run = say, metrics, run
        self.checkpoint = ""
        """The checkpoint restored or saved last."""
        self._saved_step = -1
        self._saved_time = time.monotonic()
        self._saving = threading.Lock()
        self._summaries = SummaryWriter(directory.train_summaries)
        self.profile = Profile(settings.profile_steps, directory.path, say)

    def __enter__(self) -> "Chief":
        return self

    def __exit__(self, *error: object) -> None:
        self.profile.stop()
        self._summaries.close()

    def prepare(self) -> None:
        """See to it that every variable has a value, and let the others begin.

        Parameter servers that hold all values are taken as they are: then it was only the chief that was away.

        Raises:
            ConfigurationError: there are checkpoints, but none can be read; or the parameter servers hold another run.
        """
        state = tf1.train.get_checkpoint_state(str(self._directory.path))
        checkpoints = list(state.all_model_checkpoint_paths) if state else []
        self._replica.saver.recover_last_checkpoints(checkpoints)
        if self._session.run(self._replica.is_ready):
            if self._session.run(self._replica.led_run).decode() != self._run:
                raise ConfigurationError(
                    "ps_hosts: the parameter servers still hold a run of another model, data set or train_dir: "
                    "end them and start them again."
                )
            self._say("the parameter servers hold the run already; going on with it")
        else:
            self._restore_or_initialize(checkpoints)
        self._session.run(self._replica.replication.lead)
        self._session.run(self._replica.announce)

    def _restore_or_initialize(self, checkpoints: list[str]) -> None:
        for checkpoint in reversed(checkpoints):
            try:
                self._replica.saver.restore(self._session, checkpoint)
            except UNREADABLE as error:
                reason = str(error).splitlines()[0]
                self._say(f"the checkpoint {checkpoint} cannot be read ({reason}); trying the one before")
                continue
            self.checkpoint = checkpoint
            self._saved_step = int(self._session.run(self._replica.global_step))
            self._say(f"restored {checkpoint}")
            return
        if checkpoints:
            raise ConfigurationError(
                f"train_dir: none of the checkpoints in {self._directory.path} can be read: choose another train_dir, "
                "or empty this one to train from the start."
            )
        self._session.run(self._replica.initialize)

    def report(self, progress: Progress) -> None:
        """Add a point to each curve."""
        self._summaries.write(
            progress.step,
            loss=progress.loss,
            accuracy=progress.accuracy,
            steps_per_second=progress.steps_per_second,
        )

    def save(self) -> None:
        """Save a checkpoint of the global step now, unless there is one."""
        with self._saving:  # `save_at_last` may come while the main thread saves
            step = int(self._session.run(self._replica.global_step))
            if step != self._saved_step:
                self.checkpoint = self._replica.saver.save(
                    self._session, str(self._directory.checkpoint_prefix), global_step=step, write_meta_graph=False
                )
                self._metrics.checkpoints += 1
            self._saved_step, self._saved_time = step, time.monotonic()

    def save_at_last(self) -> None:
        """Save a checkpoint and what there is of a profile, in a thread other than the main one, which is away."""
        profiling = threading.Thread(target=self.profile.stop, daemon=True)  # neither waits for the other
        profiling.start()
        self.save()
        profiling.join()

    def save_if_due(self, step: int) -> None:
        """Save by step and by time, as the settings say."""
        every = self._settings.save_steps
        due_by_step = every is not None and step // every > max(self._saved_step, 0) // every
        if due_by_step or time.monotonic() - self._saved_time >= self._settings.save_seconds:
            self.save()
