"""What a pass may request of the cluster, as values: `needed` says which, and `actor.py` makes the calls. Pure."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trainer.supervisor.kueue import Placement, Workload
from trainer.supervisor.pods import Pod
from trainer.supervisor.run import Stage

PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Action:
    """A change of one thing."""

    what: str
    """The thing: a component, the name of a Job, the uid of a pod. Requests of one thing follow one another."""


@dataclass(frozen=True)
class SetScale(Action):
    """Set the replicas of a component."""

    scale: int


@dataclass(frozen=True)
class RemovePod(Action):
    """Delete a pod: of a lost node, one that restarts sooner in a new pod, or one with outdated settings."""

    why: Literal["lost", "restarts", "outdated"]
    pod: Pod = dataclasses.field(compare=False)


@dataclass(frozen=True)
class OpenGate(Action):
    """Let a pod be scheduled."""

    pod: str
    placement: Placement = dataclasses.field(compare=False)


@dataclass(frozen=True)
class ChangeStageJob(Action):
    """Change the Job of a stage."""

    change: Literal["create", "delete", "end", "suspend", "resume"]
    stage: Stage = dataclasses.field(compare=False)


@dataclass(frozen=True)
class ProvideAccount(Action):
    """Create the service account of TensorBoard, or of a stage's Job, whose uid `what` is."""

    stage: Stage | None = None
    then: ChangeStageJob | None = None
    """What the Job needs next."""


@dataclass(frozen=True)
class ChangeWorkload(Action):
    """Create or delete the run's Workload."""

    change: Literal["create", "delete"]


@dataclass(frozen=True)
class SetConditions(Action):
    """Set conditions of the run's Workload: status, reason and message, by type."""

    workload: Workload = dataclasses.field(compare=False)
    conditions: Mapping[str, tuple[bool, str, str]] = dataclasses.field(compare=False)
    frees_quota: bool = False


@dataclass(frozen=True)
class PublishCheckpoint(Action):
    """Annotate the Workload and the leader's pod with the time of the last checkpoint, in seconds since 1970."""

    saved: int
    pod: str | None


class Sent:
    """The last action that was requested of each thing: it is requested again if it is not observed in time."""

    def __init__(self) -> None:
        self._sent: dict[str, tuple[Action, float]] = {}

    def is_due(self, action: Action, now: float) -> bool:
        """Whether to request an action, which then counts as requested. `now` in seconds since 1970."""
        before, at = self._sent.get(action.what, (None, 0.0))
        if before == action and now - at < PATIENCE_SECONDS:
            return False
        self._sent[action.what] = (action, now)
        return True
