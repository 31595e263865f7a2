"""What all phases of a task share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from trainer.cluster.spec import Cluster
from trainer.config import Settings
from trainer.run_directory import volume
from trainer.telemetry.metrics import Metrics
from trainer.telemetry.progress import Clock
from trainer.training import threads
from trainer.training.threads import Threads
from trainer.training.watchdog import Watchdog


@dataclass(frozen=True)
class TaskContext:
    """The settings of this task and the objects that observe it."""

    settings: Settings
    cluster: Cluster | None
    """The cluster and this task; None for a single process."""
    watchdog: Watchdog
    metrics: Metrics
    clock: Clock = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "clock", Clock(self.settings.train_steps))

    @property
    def threads(self) -> Threads:
        """The thread pools of this task."""
        return threads.choose(self.settings, self.cluster.task.role if self.cluster else None)

    def wait_for_room(self, what: str, attempt: Callable[[], None]) -> None:
        """Repeat an attempt to write until it succeeds.

        Args:
            what: What is written, for the sentences.
            attempt: Raises one of `volume.ERRORS` if it fails.

        Raises:
            StoreError: it failed for `wait_seconds`.
        """
        volume.wait_for_room(what, attempt, self.settings.wait_seconds, self.watchdog.pause)

    def is_stopping(self) -> bool:
        """Whether this task has received SIGTERM or SIGINT."""
        return self.watchdog.stopping
