"""How replicas that train the same parameters work together.

Each way is one module with a function `build` that adds its ops to a replica's graph and returns a `Replication`;
`trainer.train` drives all of them alike and knows none of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Lesson:
    """What a batch teaches."""

    gradients: Sequence[Any]
    """float32 [n] of each part of the parameters."""
    loss: Any
    """float32 scalar."""
    accuracy: Any
    """float32 scalar."""


Learn = Callable[[Sequence[Any]], Lesson]
"""Adds the ops that learn from the next batch, at parameters given by their parts."""


@dataclass(frozen=True)
class Replication:
    """The ops by which one replica takes part."""

    step: Any
    """int64 scalar: running it takes one step of this replica and gives the global step after it."""
    loss: Any
    """float32 scalar: the loss of the step's batch, before its update."""
    accuracy: Any
    """float32 scalar: the accuracy on the step's batch, before its update."""
    join: Any
    """To be run once in each session before the first step."""
    lead: Any
    """To be run once by the chief in each session, when the variables have their values."""
    update: Any | None
    """int64 scalar that the chief runs in a loop beside its own steps; None where replicas update by themselves."""
