"""What an execution of a replica has led to."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The outcome of one execution."""

    steps: int
    """The steps that this replica has taken."""
    step: int
    """The global step after them."""
    loss: float
    """Of the last step's batch."""
    metrics: Mapping[str, float]
    """On that batch, by name."""
    seconds: float
    ended: float
    """The end of the execution, by the monotonic clock."""
