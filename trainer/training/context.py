"""What all phases of a task share."""

from dataclasses import dataclass, field

from trainer.cluster.spec import Cluster
from trainer.config import Settings
from trainer.telemetry.goodput import Account
from trainer.telemetry.metrics import Metrics
from trainer.telemetry.progress import Clock
from trainer.training import threads
from trainer.training.threads import Threads
from trainer.training.watch.watchdog import Watchdog


@dataclass(frozen=True)
class TaskContext:
    """The settings of this task and the objects that observe it."""

    settings: Settings
    cluster: Cluster | None
    """The cluster and this task; None for a single process."""
    watchdog: Watchdog
    metrics: Metrics
    clock: Clock = field(init=False)
    account: Account = field(default_factory=Account)
    """What this task's time goes into."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "clock", Clock(self.settings.train_steps))

    @property
    def threads(self) -> Threads:
        """The thread pools of this task."""
        return threads.choose(self.settings, self.cluster.task.role if self.cluster else None)

    def is_stopping(self) -> bool:
        """Whether this task has received SIGTERM or SIGINT."""
        return self.watchdog.stopping
