"""What all sessions of one run share on its chief."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.checkpoint import best
from trainer.checkpoint.background import Background
from trainer.checkpoint.manager import SavedRun
from trainer.graph.replica import Replica
from trainer.run_directory.training_directory import TrainingDirectory
from trainer.shards.course import Course
from trainer.tensorflow.private import eager_mode
from trainer.training.context import TaskContext
from trainer.training.fit_callbacks import FitCallbacks
from trainer.training.periodic_evaluation import PeriodicEvaluation
from trainer.training.publication import Publication
from trainer.training.run_record import RunRecord


@dataclass(frozen=True)
class RunContext:
    """The task that leads the run, and the run's graph, directory, record and threads."""

    task: TaskContext
    replica: Replica
    directory: TrainingDirectory
    run_id: str
    """Identifies the run on the parameter servers."""
    course: Callable[[Course, int], Course]
    """The course from this global step on of a run that had another course until then."""
    record: RunRecord
    evaluation: PeriodicEvaluation | None
    """None if the run was done before, or is evaluated after each epoch."""
    writing: Background
    """The thread that writes checkpoints."""
    untrained_loss: float | None
    """The approximate loss of an untrained model, if it is known."""
    ends_with_data: bool = True
    """Whether an epoch is a pass over the data, not steps_per_epoch."""
    was_stopped: bool = False
    """Whether a callback had ended the run before this process."""
    fit: FitCallbacks | None = None
    """Keras's callbacks, if the model's file has any."""
    optimizer: Any = None
    """That of the model's compile(), if it has one."""
    publication: Publication | None = None
    """Of the model while it trains, if that is wanted."""

    def saved(self, note_save: Callable[[int], None]) -> SavedRun:
        """What the checkpoints of the run need. `note_save` is called with the global step of each one."""
        task, replica = self.task, self.replica

        def wait() -> None:
            task.watchdog.operation = "saving a checkpoint"

        own = (replica.saver, replica.global_step, self.directory, task.settings, task.metrics, self.writing)
        return SavedRun(*own, self.remedy, wait, note_save)

    def remedy(self) -> str:
        """What to do about a run that diverges, as the end of a sentence."""
        settings = self.task.settings
        kept = best.read(self.directory.best)
        checkpoint = f"the best checkpoint is {kept.checkpoint}" if kept else "no checkpoint has been evaluated yet"
        if self.optimizer is None:
            clip = "" if settings.global_clipnorm else ", or set global_clipnorm"
            return f"{checkpoint}; lower learning_rate ({settings.learning_rate:g}){clip}."
        clips = self.optimizer.global_clipnorm or self.optimizer.clipnorm or self.optimizer.clipvalue
        clip = "" if clips else ", or give it global_clipnorm"
        with eager_mode():
            rate = float(self.optimizer.learning_rate)
        name = type(self.optimizer).__name__
        return f"{checkpoint}; lower the learning_rate of {name} in the model's compile() ({rate:g}){clip}."
