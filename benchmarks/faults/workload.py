"""What a run under faults trains: the tasks, the mode, and how long."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Mode = Literal["asynchronous", "synchronous", "allreduce"]
MODES: tuple[Mode, ...] = ("asynchronous", "synchronous", "allreduce")
MODEL, LEDGER, TABLE = (Path(__file__).with_name(f"{name}_model.py") for name in ("timed", "ledger", "table"))
BATCH = 10
"""The examples of a batch of the ledger."""
STEP_SECONDS = 0.025
"""How long each step of the model takes, unless the machine is slower."""
SAVE_SECONDS = 10


@dataclass(frozen=True)
class Workload:
    """The tasks of a run and their settings."""

    mode: Mode = "asynchronous"
    ps: int = 1
    workers: int = 2
    chief: bool = False
    evaluator: bool = False
    nodes: int = 1
    """Nodes of the cluster. With two, the chief is on the second one while that responds."""
    seconds: int = 45
    """How long the run takes without a fault."""
    train_steps: int | None = None
    """Global steps, if `seconds` does not decide."""
    step_seconds: float = STEP_SECONDS
    epochs: int | None = None
    """The passes over the ledger's examples; None trains another model."""
    has_table: bool = False
    """Whether the model is a table."""
    seed: int = 0

    @property
    def steps(self) -> int:
        """The global steps of the run."""
        replicas = self.workers + self.chief if self.mode == "asynchronous" else 1
        return self.train_steps or int(self.seconds / self.step_seconds) * replicas

    @property
    def model(self) -> Path:
        """The model's file."""
        return LEDGER if self.epochs else TABLE if self.has_table else MODEL

    @property
    def examples(self) -> int:
        """Those of the ledger."""
        per_step = BATCH * (1 if self.mode == "asynchronous" else len(self.replicas))
        return self.steps * per_step // (self.epochs or 1)

    @property
    def environment(self) -> dict[str, str]:
        """What the model reads."""
        return {"STEP_SECONDS": str(self.step_seconds), "LEDGER": f"{self.examples} {self.epochs or 1}"}

    @property
    def leader(self) -> str:
        """The task that leads the run."""
        return "chief-0" if self.chief else "worker-0"

    @property
    def replicas(self) -> list[str]:
        """The tasks that take steps."""
        return [*(["chief-0"] if self.chief else []), *(f"worker-{index}" for index in range(self.workers))]

    @property
    def servers(self) -> list[str]:
        """The parameter servers."""
        return [f"ps-{index}" for index in range(self.ps)]

    @property
    def tasks(self) -> list[str]:
        """All tasks of the run."""
        return [*self.servers, *self.replicas, *(["evaluator-0"] if self.evaluator else [])]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the trainer, without the model's path and the directory."""
        modes: dict[Mode, dict[str, Any]] = {
            "asynchronous": {"sync_replicas": False},
            "synchronous": {"sync_replicas": True},
            "allreduce": {"strategy": "allreduce"},
        }
        length: dict[str, Any] = {"train_steps": self.steps}
        if self.epochs:
            length = {"epochs": self.epochs, "batch_size": BATCH, "staleness_aware": False}
        return {**length, "seed": self.seed, "save_seconds": SAVE_SECONDS, "report_steps": 1, **modes[self.mode]}

    def __str__(self) -> str:
        parts = [f"{self.ps} ps" if self.ps else "", "chief" if self.chief else ""]
        parts += [f"{self.workers} worker{'s' * (self.workers > 1)}", "evaluator" if self.evaluator else ""]
        parts += ["2 nodes" if self.nodes > 1 else ""]
        return ", ".join(part for part in parts if part)
