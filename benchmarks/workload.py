"""What a benchmark measures: a workload that several programs run, and the outcome of one run."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trainer.config import Settings

Mode = Literal["asynchronous", "synchronous"]


@dataclass(frozen=True)
class Workload:
    """`steps` global steps of the classic network on digits; a synchronous step takes one batch of each worker."""

    mode: Mode
    ps: int = 1
    workers: int = 2
    batch_size: int = 100
    hidden_units: int = 100
    steps: int = 3000

    @property
    def batches_per_step(self) -> int:
        """Batches per global step."""
        return self.workers if self.mode == "synchronous" else 1

    @property
    def timeout(self) -> float:
        """Seconds after which a run counts as hung; the slowest program takes at least 50 steps/s."""
        return 400 + self.steps / 50

    @property
    def flags(self) -> list[str]:
        """The flags that all programs accept."""
        return [
            f"--train_steps={self.steps}",
            f"--batch_size={self.batch_size}",
            f"--hidden_units={self.hidden_units}",
            f"--learning_rate={Settings().learning_rate}",
        ]


@dataclass(frozen=True)
class Outcome:
    """The measurements of one run of a program."""

    rate: float
    """Global steps per second in the steady part, which starts after a tenth of the steps."""
    memory: dict[str, float] = field(default_factory=dict)
    """Peak resident memory in MiB by role, of the largest process of each role."""
    accuracy: float | None = None
    """Final accuracy on the held-out split, if measured."""
    curve: list[tuple[float, int, float]] = field(default_factory=list)
    """Samples of (seconds since the first step, global step, test accuracy), if measured."""
    first_step: float | None = None
    """Seconds from the start of the run's processes to the first step of the curve."""
    best: float | None = None
    """Best accuracy on the held-out split during the run, the final one included, if the program evaluates."""


@dataclass(frozen=True)
class Run:
    """One run and its outcome, as a file of results stores it."""

    section: str
    program: str
    round: int
    """The interleaved round; the seed in sections that compare programs seed by seed."""
    workload: Workload
    outcome: Outcome

    def to_json(self) -> dict[str, Any]:
        """The run as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Run":
        """Inverse of `to_json`."""
        old_names = {"turn": "round", "work": "workload"}  # of files that earlier versions wrote
        content = {old_names.get(key, key): value for key, value in content.items()}
        return cls(**content | {"workload": Workload(**content["workload"]), "outcome": Outcome(**content["outcome"])})
