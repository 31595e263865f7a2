"""The supervisor's notes on a run, in the ConfigMap FULLNAME-run, from which a restarted supervisor continues.

Every task's pod mounts a second ConfigMap, FULLNAME-ended, which changes less often: it has the run's hash, and a key
for each task that has ended for good. `task.sh` reads it before it starts the command. Pure: strings in, values out.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from trainer.errors import ConfigurationError

State = Literal[
    "Queued", "Suspended", "Stopping", "Preparing", "Starting", "Running", "Finishing", "Succeeded", "Failed"
]
"""Stopping: all tasks end before those of a changed run start. Preparing: the stages before the training run. Queued:
until Kueue has admitted the run. Starting: until every object has the run's scale. Finishing: the stages after the
training run."""
StageState = Literal["waiting", "running", "done", "skipped", "failed"]


@dataclasses.dataclass(frozen=True)
class StageNotes:
    """The recorded state of a stage."""

    state: StageState = "waiting"
    digest: str = ""
    """That of its last success, in this run or an earlier one; empty if there is none."""
    started: float = 0.0
    """When it began in this run, in seconds since 1970; 0 before that."""


@dataclasses.dataclass(frozen=True)
class CountedRestarts:
    """The restarts of tasks."""

    restarts: int = 0
    """Restarts since the count was last reset."""
    incidents: int = 0
    """Incidents that count against the limit. The restarts of one incident have one cause."""
    incident_began: float = 0.0
    """The time of the first restart of the last incident, in seconds since 1970."""
    by_role: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """All restarts, including those that no longer count against the limit."""
    last: float = 0.0
    """The time of the last restart, in seconds since 1970."""
    seen: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By uid of a pod that exists: how many of its restarts are already counted."""
    of_all: int = 0
    """How often the failure policy has restarted all tasks."""


@dataclasses.dataclass(frozen=True)
class ElasticNotes:
    """The number of workers that is tried."""

    wanted: int = 0
    """The scale of the workers that a user has set; 0 for that of the values."""
    retry: float = 0.0
    """When an elastic run with too few workers tries more again, in seconds since 1970."""
    gap: float = 0.0
    """Seconds from the next failure of such a try to the one after it; 0 for the first."""


@dataclasses.dataclass(frozen=True)
class Notes:
    """The recorded state of a run. In an older supervisor's notes, unknown fields count as absent."""

    hash: str = ""
    definition: str = ""
    data_version: str = ""
    """The version of the data, if that is watched; empty otherwise."""
    attempt: int = 0
    supervisor: str = ""
    """The uid of the pod that supervises the run. A supervisor in another pod must not write."""
    job: str = ""
    """The name of that pod's Job."""
    state: State | Literal[""] = ""
    """Empty before the first start."""
    reason: str = ""
    started: float = 0.0
    """When the tasks were last started, in seconds since 1970."""
    begun: float = 0.0
    """When the run began to wait for tasks: before a queue admitted it, and after its first stages."""
    ended: float = 0.0
    """When the run ended, in seconds since 1970; 0 before that."""
    admitted: float = 0.0
    """When a pod first had no scheduling gates, in seconds since 1970; 0 before that, and again once the run has given
    its place back. The run's deadline counts from then on."""
    running: float = 0.0
    """When every task had started, in seconds since 1970; 0 before that."""
    replicas: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By role: the number of tasks in the values."""
    scales: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By role: the number of tasks that should exist. Users may change that of the workers."""
    elastic: ElasticNotes = dataclasses.field(default_factory=ElasticNotes)
    leader: str = ""
    """The uid of the leader's last pod that had a node; empty before. From then on its volume has a node too."""
    counted: CountedRestarts = dataclasses.field(default_factory=CountedRestarts)
    ungated: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """By uid of a pod that exists and had scheduling gates: when they were removed, in seconds since 1970; 0 before."""
    finished: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By task: the exit code with which it ended for good."""
    images: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """By role: the digest of the image of its first task, as sha256:…."""
    trained: str = ""
    """The definition of the run whose training has succeeded; empty before that."""
    training: str = ""
    """How that training ended."""
    stages: Mapping[str, StageNotes] = dataclasses.field(default_factory=dict)
    """By name."""
    after: str = ""
    """The digests of the stages after the training that belong to this run."""

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended."""
        return self.state in ("Succeeded", "Failed")


_ADAPTER = TypeAdapter(Notes)
"""Made once: that takes milliseconds, and each check of the owner reads notes."""


def parse(data: Mapping[str, str]) -> Notes:
    """The notes in a ConfigMap's data; empty notes if there are none yet.

    Raises:
        ConfigurationError: they cannot be read, as those of a later version of the supervisor.
    """
    try:
        return _ADAPTER.validate_json(data.get("notes.json") or "{}")
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigurationError(
            f"the ConfigMap NAME-run: notes.json cannot be read ({': '.join(filter(None, [where, problem['msg']]))}), "
            "so the run's tasks stay as they are: use the version of the chart that wrote it, or remove this key to "
            "start the run anew from its last checkpoint."
        ) from None


def to_data(notes: Notes, before: Mapping[str, str]) -> dict[str, str | None]:
    """The merge patch that makes the data of FULLNAME-run hold these notes; None removes a key.

    The stage that publishes the run reads the key image.ROLE, because a pod cannot know the digest of its own image.
    """
    text = json.dumps(dataclasses.asdict(notes), indent=1, sort_keys=True)
    images = {f"image.{role}": digest for role, digest in notes.images.items()}
    return {**dict.fromkeys(before), "notes.json": text, **images}


def to_ended(notes: Notes, waits: bool, before: Mapping[str, str]) -> dict[str, str | None]:
    """The merge patch that makes the data of FULLNAME-ended show the ended tasks; None removes a key.

    Args:
        notes: The notes.
        waits: Whether the tasks wait for stages before the training, or for a version of the data.
        before: The data before.
    """
    # A pod of a later run may still see these keys. The hash tells it that they belong to another run.
    ended = {task: f"{_identity(notes)} {code}" for task, code in notes.finished.items()}
    version = {"data_version": notes.data_version} if notes.data_version else {}
    return {**dict.fromkeys(before), "run": run_of_tasks(notes, waits), **version, **ended}


def run_of_tasks(notes: Notes, waits: bool) -> str:
    """The run whose tasks may start, as in their variable TASK_RUN; empty until what they wait for is there."""
    return "" if waits and notes.state in ("Suspended", "Stopping", "Preparing", "Queued") else _identity(notes)


def _identity(notes: Notes) -> str:
    return f"{notes.hash}.v{notes.data_version}" if notes.data_version else notes.hash
