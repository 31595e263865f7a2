"""The score of a checkpoint on the held-out split, and by which metric two of them are compared."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["min", "max"]
LOSS = "loss"


@dataclass(frozen=True)
class Score:
    """The loss and the metrics of one checkpoint on the whole held-out split."""

    global_step: int
    loss: float
    metrics: Mapping[str, float]
    """By name, such as accuracy."""

    @property
    def is_finite(self) -> bool:
        """Whether the loss is finite."""
        return math.isfinite(self.loss)

    def to_json(self) -> dict[str, Any]:
        """The score in the form of result.json; a number that is not finite is null, as JSON has no NaN."""
        found = {**self.metrics, "loss": self.loss}
        rounded = {f"test_{name}": round(value, 4) if math.isfinite(value) else None for name, value in found.items()}
        return {"global_step": self.global_step, **rounded}

    def __str__(self) -> str:
        measured = "".join(f"test {name} {value:.4f}, " for name, value in self.metrics.items())
        return f"step {self.global_step}: {measured}test loss {self.loss:.4f}"


@dataclass(frozen=True)
class BestMetric:
    """A metric of the held-out split, and whether its largest or its smallest value is the best."""

    name: str = LOSS
    mode: Mode = "min"
    origin: str = ""
    """What has chosen it, for the log; empty if nothing has."""

    def key(self, loss: float, metrics: Mapping[str, float]) -> tuple[float, float]:
        """The sort key of a score, larger for the better one: by this metric, then by the loss."""
        value = loss if self.name == LOSS else metrics.get(self.name, math.nan)
        if math.isnan(value):
            return -math.inf, -loss
        return (value if self.mode == "max" else -value), -loss

    def __str__(self) -> str:
        kind = "largest" if self.mode == "max" else "smallest"
        return f"the {kind} {self.name} of the held-out split{f' ({self.origin})' if self.origin else ''}"
