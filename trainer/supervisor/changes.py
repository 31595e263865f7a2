"""What reaches the supervisor's queue: results of its watches, and signals. Pure."""

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lightkube.resources.core_v1 import Event

from trainer.supervisor.kueue import Workload
from trainer.supervisor.pods import Pod, Template
from trainer.supervisor.stages import StageJob


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
class ScalesObserved:
    """The current scales of the run's objects of one kind, at the start of a watch and after each change."""

    components: frozenset[str]
    """The components with an object of this kind: roles, or `tensorboard`."""
    scales: Mapping[str, int]
    """By component; without the components whose object does not exist."""
    templates: Mapping[str, Template] = field(default_factory=dict)
    """By role with a StatefulSet."""


@dataclass(frozen=True)
class StagesObserved:
    """The Jobs of the run's stages that exist, at the start of a watch and after each change."""

    jobs: Mapping[str, StageJob]
    """By the name of the stage."""


@dataclass(frozen=True)
class DataVersionFound:
    """The version of the data to train on, at each look at the dataset."""

    version: str


@dataclass(frozen=True)
class WarningReported:
    """A Warning event about an object of the run."""

    event: Event


@dataclass(frozen=True)
class StopRequested:
    """SIGTERM or SIGINT arrived."""


@dataclass(frozen=True)
class WatchFailed:
    """A watch ended with an error that a retry does not solve. No further change follows."""

    error: Exception


@dataclass(frozen=True)
class WorkloadObserved:
    """The Workload of a run in Kueue's queue, at the start of a watch and after each change; None if there is none."""

    workload: Workload | None


Observation = PodsListed | PodChanged | ScalesObserved | StagesObserved | DataVersionFound | WorkloadObserved
"""What a view of the cluster follows from."""
Change = Observation | WarningReported | StopRequested | WatchFailed
Changes = queue.SimpleQueue[Change]
"""A SimpleQueue, because a signal handler may put into it while the same thread takes from it."""
