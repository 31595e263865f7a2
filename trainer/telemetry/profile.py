"""A TensorBoard profile of some global steps: which ops this process ran, on which thread or device, and when.

It is for looking at single ops; `trainer.telemetry.step_time` says in four numbers where the time goes.
"""

from collections.abc import Callable
from pathlib import Path

from trainer.config import StepRange
from trainer.tensorflow import tf

_PROBLEMS = (tf.errors.OpError, OSError)
"""What TensorFlow's profiler raises where it cannot start or cannot write."""


class Profile:
    """Profiles the calls that cover a range of global steps; training goes on whatever becomes of the profile."""

    def __init__(self, steps: StepRange | None, folder: Path, say: Callable[[str], None]) -> None:
        """Profiles are written to `folder`/plugins/profile, where TensorBoard looks for them; without `steps`, none."""
        self._steps, self._folder, self._say = steps, folder, say
        self.running = False
        """Whether ops are recorded now."""

    def before_call(self, step: int, ahead: int) -> None:
        """Begin where a call at this global step, during which some `ahead` of them pass, comes to the range."""
        if self._steps is None or self.running or step + ahead < self._steps.first:
            return
        if step >= self._steps.last:
            self._say(f"profile_steps: the run is past {self._steps} already, and nothing is profiled")
            self._steps = None
            return
        try:
            tf.profiler.experimental.start(str(self._folder))
        except _PROBLEMS as error:
            self._give_up(error)
            return
        self.running = True
        self._say(f"profiling from step {step}")

    def after_call(self, step: int) -> None:
        """End where a call that ended at this global step has left the range behind."""
        if self.running and self._steps and step >= self._steps.last:
            self.stop()

    def stop(self) -> None:
        """Write what has been recorded, if anything is."""
        if not self.running:
            return
        self.running, self._steps = False, None
        try:
            tf.profiler.experimental.stop()
        except _PROBLEMS as error:
            self._give_up(error)
            return
        self._say(f"the profile is in {self._folder / 'plugins' / 'profile'}: tensorboard --logdir {self._folder}")

    def _give_up(self, error: Exception) -> None:
        self._steps = None
        self._say(f"no profile: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
