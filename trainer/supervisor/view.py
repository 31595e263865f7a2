"""What the watches have shown so far: the run's pods, and the scales of its objects."""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from trainer.supervisor.changes import (
    DataVersionFound,
    Observation,
    PodChanged,
    PodsListed,
    ScalesObserved,
    StagesObserved,
    WorkloadObserved,
)
from trainer.supervisor.kueue import Workload
from trainer.supervisor.pods import Pod, Template
from trainer.supervisor.stages import StageJob

WORKLOAD = "workload"
"""The name of the run's Workload among the components."""


@dataclass
class View:
    """The observed state of the cluster, which `apply` updates in place: a run may have thousands of pods."""

    components: frozenset[str]
    """The components that are watched: the roles, TensorBoard if the supervisor starts it, and a Workload of Kueue."""
    pods: dict[str, Pod] | None = None
    """By task; None before the first list."""
    scales: Mapping[str, int] = field(default_factory=dict)
    """By component; without those whose object does not exist."""
    templates: Mapping[str, Template] = field(default_factory=dict)
    """By role with a StatefulSet."""
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

    def apply(self, change: Observation) -> Collection[str]:
        """Update the view, and return the tasks whose pods have changed."""
        match change:
            case PodsListed(pods):
                return self._list(pods)
            case PodChanged(kind, pod):
                return self._change(kind, pod)
            case ScalesObserved(components, scales, templates):
                others = {name: scale for name, scale in self.scales.items() if name not in components}
                self.scales, self.listed = others | {**scales}, self.listed | components
                self.templates = {**self.templates, **templates}
            case StagesObserved(jobs):
                self.stages = jobs
            case WorkloadObserved(workload):
                self.workload, self.listed = workload, self.listed | {WORKLOAD}
            case DataVersionFound(version):
                self.data_version = version
        return ()

    def _list(self, pods: Collection[Pod]) -> Collection[str]:
        before = self.pods or {}
        self.pods = {pod.name: pod for pod in sorted(pods, key=lambda pod: pod.created)}
        return before.keys() | self.pods.keys()

    def _change(self, kind: str, pod: Pod) -> Collection[str]:
        pods = self.pods = {} if self.pods is None else self.pods
        current = pods.get(pod.name)
        if current and current.uid != pod.uid and current.created > pod.created:
            return ()  # an evicted pod of the client's Job still exists beside its replacement
        if current and current.uid == pod.uid and current.disrupted_at is not None:
            pod = dataclasses.replace(pod, disrupted_at=current.disrupted_at)
        if kind == "DELETED":
            pods.pop(pod.name, None)
        else:
            pods[pod.name] = pod
        return (pod.name,)
