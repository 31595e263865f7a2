"""What is measured: a piece of work that several programs do, and what came of one run of it."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trainer.config import Settings

Mode = Literal["asynchronous", "synchronous"]


@dataclass(frozen=True)
class Work:
    """So many global steps of the classic network on digits; a step of synchronous work has a batch of every worker."""

    mode: Mode
    ps: int = 1
    workers: int = 2
    batch_size: int = 100
    hidden_units: int = 100
    steps: int = 3000

    @property
    def batches_per_step(self) -> int:
        """How many batches a global step takes."""
        return self.workers if self.mode == "synchronous" else 1

    @property
    def patience(self) -> float:
        """Seconds after which a run is taken for hanging: the slowest program takes 50 steps a second and more."""
        return 400 + self.steps / 50

    @property
    def flags(self) -> list[str]:
        """The flags that all programs have."""
        return [
            f"--train_steps={self.steps}",
            f"--batch_size={self.batch_size}",
            f"--hidden_units={self.hidden_units}",
            f"--learning_rate={Settings().learning_rate}",
        ]


@dataclass(frozen=True)
class Outcome:
    """What one run of a program gave."""

    rate: float
    """Global steps per second over the steady part, after the first tenth."""
    memory: dict[str, float] = field(default_factory=dict)
    """Peak resident memory in MiB by role, of the largest process of each."""
    accuracy: float | None = None
    """On the held-out split at the end, where it was asked for."""
    curve: list[tuple[float, int, float]] = field(default_factory=list)
    """Seconds from the first step, global step and test accuracy then, where they were asked for."""
    first_step: float | None = None
    """Seconds from the start of the run's processes to the curve's first step."""
    best: float | None = None
    """The largest accuracy on the held-out split during the run, the end among it, where the program evaluates then."""


@dataclass(frozen=True)
class Run:
    """One run and what came of it, as a file of results keeps it."""

    section: str
    program: str
    turn: int
    """Programs that are compared run by turns; of learning and accuracy, the seed."""
    work: Work
    outcome: Outcome

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Run":
        """The run that `to_json` gave."""
        return cls(**{**content, "work": Work(**content["work"]), "outcome": Outcome(**content["outcome"])})
