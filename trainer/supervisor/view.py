"""What the watches have shown so far: the run's pods, and the scales of its objects. Pure."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer.supervisor.changes import (
    DataVersionFound,
    Observation,
    ScalesObserved,
    StagesObserved,
    WorkloadObserved,
)
from trainer.supervisor.kueue import Workload
from trainer.supervisor.pods import Pod, apply_change
from trainer.supervisor.stages import StageJob

WORKLOAD = "workload"
"""The name of the run's Workload among the components."""


@dataclass(frozen=True)
class View:
    """The observed state of the cluster."""

    components: frozenset[str]
    """The components that are watched: the roles, TensorBoard if the supervisor starts it, and a Workload of Kueue."""
    pods: Mapping[str, Pod] | None = None
    """By task; None before the first list."""
    scales: Mapping[str, int] = field(default_factory=dict)
    """By component; without those whose object does not exist."""
    listed: frozenset[str] = frozenset()
    """The components whose objects have been listed."""
    stages: Mapping[str, StageJob] | None = field(default_factory=dict)
    """The Jobs of stages, by the name of the stage; None before the first list."""
    workload: Workload | None = None
    """The run's place in Kueue's queue, if it has one."""
    data_version: str = ""
    """The version of the data to train on, if that is watched; empty before the first one."""

    @property
    def complete(self) -> bool:
        """Whether every watch has shown its first list."""
        return self.pods is not None and self.stages is not None and self.listed >= self.components

    def after(self, change: Observation) -> "View":
        """The view after a change."""
        if isinstance(change, DataVersionFound):
            return dataclasses.replace(self, data_version=change.version)
        if isinstance(change, StagesObserved):
            return dataclasses.replace(self, stages=change.jobs)
        if isinstance(change, WorkloadObserved):
            return dataclasses.replace(self, workload=change.workload, listed=self.listed | {WORKLOAD})
        if not isinstance(change, ScalesObserved):
            return dataclasses.replace(self, pods=apply_change(self.pods or {}, change))
        others = {name: scale for name, scale in self.scales.items() if name not in change.components}
        return dataclasses.replace(self, scales=others | {**change.scales}, listed=self.listed | change.components)
