"""How replicas that train the same parameters work together.

Each way is one module with a function `build` that adds its ops to a replica's graph and returns a `Replication`;
`trainer.training.train` drives all of them alike and knows none of them.

A run of a session takes several steps, which are unrolled in the graph: so Python and the session's own round trip are
paid once for all of them. Each step still reads the parameters after the one before has done its shard.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StepOutputs:
    """What one batch teaches."""

    gradients: Sequence[Any]
    """float32 [n] of each shard of the parameters."""
    loss: Any
    """float32 scalar."""
    accuracy: Any
    """float32 scalar."""


GradientFunction = Callable[[Sequence[Any], int], StepOutputs]
"""Adds the ops that learn from a call's batch of a number, at parameters given by their shards."""


@dataclass(frozen=True)
class Execution:
    """The ops of so many steps."""

    step: Any
    """int64 scalar: running it takes the steps and gives the global step after them."""
    loss: Any
    """float32 scalar: the loss of the last step's batch, before its update."""
    accuracy: Any
    """float32 scalar: the accuracy on the last step's batch, before its update."""


@dataclass(frozen=True)
class CollectiveGroup:
    """What replicas need that hold the parameters themselves, and so can take their steps only all together."""

    wanted: Any
    """int64 scalar placeholder: how many steps this replica would take in the next call."""
    agreed: Any
    """int64 scalar: what the chief wants, for all; a call of so many steps comes next."""
    leave: Any
    """To be run once by every replica after the run's last step; it is done when the chief runs it too."""


@dataclass(frozen=True)
class Replication:
    """The ops by which one replica takes part."""

    executions: Mapping[int, Execution]
    """By the number of steps that they take: the fewest that are possible, and the run's steps per call."""
    join: Any
    """To be run once in each session before the first step."""
    lead: Any
    """To be run once by the chief in each session, when the variables have their values."""
    updates: Mapping[int, Any]
    """int64 scalars that the chief runs in a loop beside its own steps, by the number of global steps that they make,
    each giving the global step after it; empty where replicas update by themselves."""
    collective: CollectiveGroup | None = None
    """None where parameters are held for all replicas, which come and go."""
