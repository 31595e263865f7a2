"""What one pass decides by: what the watches have shown, and what was read beside them."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from trainer.supervisor.dns import Unresolved
from trainer.supervisor.kueue import Placement, Workload
from trainer.supervisor.pods import Pod, Template
from trainer.supervisor.stages import StageJob


@dataclass
class Done:
    """What this supervisor has done, and no watch shows. The actor updates it."""

    accounts: set[str] = field(default_factory=set)
    """The service accounts that exist: TensorBoard's, and by the uid of a stage's Job."""
    replaced: set[str] = field(default_factory=set)
    """The uids of pods that were replaced before their task restarted."""
    published: int = 0
    """The time of a checkpoint that is published, in seconds since 1970."""
    published_at: float = 0.0
    """When it was."""
    unreadable: str = ""
    """Why there is no Workload: what the supervisor must read first."""


@dataclass(frozen=True)
class Placements:
    """What the pods of an admitted run get."""

    workload: str = ""
    """The uid of the Workload; empty if the flavors are not known."""
    by_role: Mapping[str, Placement] = field(default_factory=dict)
    problem: str = ""
    """Why the flavors are not known, with the remedy."""


@dataclass(frozen=True)
class Observed:
    """The observations of one pass. Times are in seconds since 1970."""

    pods: Mapping[str, Pod] = field(default_factory=dict)
    """The pods of tasks, also those of another run, by task; with what the log says of the end of their container."""
    tasks: Mapping[str, Pod] = field(default_factory=dict)
    """Those of this run."""
    steady: Set[str] = frozenset()
    """The tasks whose pods an earlier pass of the same state has looked at, and of which nothing follows until they
    change: of thousands, nearly all."""
    scales: Mapping[str, int] = field(default_factory=dict)
    """By component; without those whose object does not exist."""
    confirmed: Mapping[str, int] = field(default_factory=dict)
    """The scales of the pass before."""
    templates: Mapping[str, Template] = field(default_factory=dict)
    jobs: Mapping[str, StageJob] = field(default_factory=dict)
    """By the name of the stage."""
    workload: Workload | None = None
    workload_absent: float | None = None
    """Since when there is no Workload; None if there is one."""
    placements: Placements = Placements()
    flavors_unread: bool = False
    """Whether a flavor of an admission could not be read."""
    absent: Mapping[str, float] = field(default_factory=dict)
    """By task without a pod of this run: since when."""
    unresolved: Mapping[str, Unresolved] = field(default_factory=dict)
    """By task: host names that do not resolve."""
    warnings: Mapping[str, str] = field(default_factory=dict)
    """The last warning about each pod or its owner, by name."""
    stage_pods: Sequence[Pod] | None = None
    """The pods of the current stage, the newest last; None if it is not time to look."""
    tensorboard_left: bool = False
    """Whether TensorBoard has ended since the run has, so that it may start on another node."""
    predecessor: str = ""
    """The ended Job of the supervisor that the release wants again; empty if there is none."""
    saved: int = 0
    """When the leader saved its last checkpoint; 0 if it has not said so."""
    done: Done = field(default_factory=Done)

    @cached_property
    def unsteady(self) -> Mapping[str, Pod]:
        """The pods that this pass looks at, by task."""
        return {name: pod for name, pod in self.pods.items() if name not in self.steady}

    @cached_property
    def unsteady_tasks(self) -> Mapping[str, Pod]:
        """Those of this run."""
        return {name: pod for name, pod in self.unsteady.items() if name in self.tasks}
