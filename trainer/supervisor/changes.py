"""What reaches the supervisor's queue: results of its watches, and signals. Pure."""

import queue
from collections.abc import Sequence
from dataclasses import dataclass

from lightkube.resources.core_v1 import Event, Pod


@dataclass(frozen=True)
class PodsListed:
    """All pods of the run, at the start of a watch."""

    pods: Sequence[Pod]


@dataclass(frozen=True)
class PodChanged:
    """One pod was added, modified or deleted."""

    kind: str
    """The type of the watch event: ADDED, MODIFIED or DELETED."""
    pod: Pod


@dataclass(frozen=True)
class WarningReported:
    """A Warning event of the namespace."""

    event: Event


@dataclass(frozen=True)
class StopRequested:
    """SIGTERM or SIGINT arrived."""


@dataclass(frozen=True)
class WatchFailed:
    """A watch ended with an error that a retry does not solve. No further change follows."""

    error: Exception


Change = PodsListed | PodChanged | WarningReported | StopRequested | WatchFailed
Changes = queue.SimpleQueue[Change]
"""A SimpleQueue, because a signal handler may put into it while the same thread takes from it."""
