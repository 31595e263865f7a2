"""What a replica does around its steps."""

from trainer.telemetry.progress import Progress
from trainer.training.outcome import Outcome


class Callback:
    """Follows the training loop of one session. This base class does nothing, as on a replica that is not the chief."""

    @property
    def is_profiling(self) -> bool:
        """Whether TensorFlow's profiler records now."""
        return False

    def on_train_begin(self) -> None:
        """Called before the first step."""

    def on_execution_due(self, step: int) -> None:
        """Called at this global step, before the replicas agree on the next execution."""

    def on_execution_begin(self, step: int, steps: int) -> None:
        """Called at this global step, before an execution that advances it by about `steps`."""

    def on_report(self, progress: Progress) -> None:
        """Called every `report_steps`, between an execution and its `on_execution_end`."""

    def on_execution_end(self, outcome: Outcome) -> None:
        """Called after an execution."""

    @property
    def is_over(self) -> bool:
        """Whether the run ends now, before its last step."""
        return False

    @property
    def is_evaluating_epoch(self) -> bool:
        """Whether an epoch is evaluated now, for which the rounds of synchronous training wait."""
        return False

    def take_changes(self) -> bool:
        """Whether parameters were changed since the last call, other than by steps."""
        return False

    def on_train_end(self, is_complete: bool) -> None:
        """Called after the last step of the run, or when the watchdog stops this task before it."""

    def save_before_exit(self) -> None:
        """Save what would be lost. Called from another thread while the main thread is blocked."""
