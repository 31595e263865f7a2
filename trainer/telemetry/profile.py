"""A TensorBoard profile of a range of global steps: the ops of this process, with their time, thread and device."""

import logging
from pathlib import Path

from trainer.config import StepRange
from trainer.tensorflow import tf

logger = logging.getLogger(__name__)

_PROBLEMS = (tf.errors.OpError, OSError)
"""The errors of TensorFlow's profiler when it cannot start or write."""


class Profile:
    """Profiles the executions that cover a range of global steps. A failed profile does not stop training."""

    def __init__(self, steps: StepRange | None, folder: Path) -> None:
        """Write profiles to `folder`/plugins/profile, where TensorBoard finds them. Without `steps`, write none."""
        self._steps, self._folder = steps, folder
        self.running = False
        """Whether the profiler records now."""

    def before_execution(self, step: int, ahead: int) -> None:
        """Start the profiler if an execution that starts at `step` and takes about `ahead` steps reaches the range."""
        if self._steps is None or self.running or step + ahead < self._steps.first:
            return
        if step >= self._steps.last:
            logger.warning(f"profile_steps: the run is already past {self._steps}; no profile is written")
            self._steps = None
            return
        try:
            tf.profiler.experimental.start(str(self._folder))
        except _PROBLEMS as error:
            self._give_up(error)
            return
        self.running = True
        logger.info(f"profiling from step {step}")

    def after_execution(self, step: int) -> None:
        """Stop the profiler if an execution that ended at `step` has passed the range."""
        if self.running and self._steps and step >= self._steps.last:
            self.stop()

    def stop(self) -> None:
        """Stop the profiler, if it runs, and write the profile."""
        if not self.running:
            return
        self.running, self._steps = False, None
        try:
            tf.profiler.experimental.stop()
        except _PROBLEMS as error:
            self._give_up(error)
            return
        logger.info(f"the profile is in {self._folder / 'plugins' / 'profile'}: tensorboard --logdir {self._folder}")

    def _give_up(self, error: Exception) -> None:
        self._steps = None
        logger.warning(f"no profile: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
