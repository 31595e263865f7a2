"""A run's progress, which tasks report to the launcher and the supervisor, and the training clock."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from trainer.telemetry import report

Step = Annotated[int, Field(ge=0, lt=2**63)]
LONGEST_SECONDS = 3e9
"""A century. A longer time has no date, and says only that the rate is near 0."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run, as seen by one of its replicas."""

    step: Step
    train_steps: Step
    loss: float
    """Of one training batch."""
    metrics: Mapping[str, float]
    """On that batch, by name, such as accuracy."""
    steps_per_second: float
    """Global steps per second since the previous report."""

    def __str__(self) -> str:
        return (
            f"step {min(self.step, self.train_steps)}/{self.train_steps}: loss {self.loss:.4f}, "
            + "".join(f"{name} {value:.3f}, " for name, value in self.metrics.items())
            + f"{self.steps_per_second:.1f} steps/s"
        )

    @property
    def seconds_left(self) -> float | None:
        """The remaining time at this rate, in seconds; None if the rate is nearly 0."""
        left = max(0, self.train_steps - self.step)
        seconds = left / self.steps_per_second if self.steps_per_second > 0 else LONGEST_SECONDS
        return seconds if seconds < LONGEST_SECONDS else None


def parse(line: str) -> Progress | None:
    """Return the progress in the report of a log line; None for any other line."""
    return report.read(line, "progress", Progress)


class Clock:
    """Measures a replica's training: the total time, and the rate in the steady state.

    The steady state excludes the first tenth of the steps, while other replicas still join.
    """

    def __init__(self, train_steps: int) -> None:
        self._train_steps = train_steps
        self.earlier = 0.0
        """Seconds of training of the same run by earlier processes."""
        self._first: tuple[float, int] | None = None
        self._steady: tuple[float, int] | None = None
        self._last = (0.0, 0)
        self.last_progress = time.monotonic()
        """The time of the last change of the global step, by the monotonic clock."""

    def tick(self, step: int) -> None:
        """Record that the global step is now `step`."""
        now = (time.monotonic(), step)
        if step != self._last[1]:
            self.last_progress = now[0]
        self._last = now
        if self._first is None:
            self._first = now
        first_step = self._first[1]
        if self._steady is None and step >= first_step + (self._train_steps - first_step) // 10:
            self._steady = now

    @property
    def seconds(self) -> float:
        """Seconds of the run's training, by this process and earlier ones."""
        return self.earlier + self.own_seconds

    @property
    def own_seconds(self) -> float:
        """Seconds from the first tick to the last."""
        return self._last[0] - self._first[0] if self._first else 0.0

    @property
    def steps_per_second(self) -> float:
        """Global steps per second in the steady state; 0 before it."""
        since, step = self._steady or self._last
        return (self._last[1] - step) / (self._last[0] - since) if self._last[0] > since else 0.0
