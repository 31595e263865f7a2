"""What the supervisor notes of a run in the ConfigMap STEM-run, so that one that comes after it knows.

A finished task is a key of its own, by the pod's name: each task's pod mounts the ConfigMap, and `task.sh` looks there
before it starts its command. Pure: strings in, values out.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Notes:
    """All that is remembered of a run."""

    hash: str = ""
    job: str = ""
    """The uid of the supervisor's Job that looks after it; a supervisor of another one must not write any more."""
    state: str = ""
    """Starting, Running, Succeeded or Failed; empty before the first start."""
    reason: str = ""
    started: float = 0.0
    """Seconds since 1970."""
    running: float = 0.0
    """When every task had started, in seconds since 1970; 0 before that."""
    replicas: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By role: what its scale was set to."""
    leader: str = ""
    """The uid of the last pod of the leader that had a node; empty before. Where it had one, its volume has one."""
    restarts: int = 0
    """Restarts that count against the limit."""
    restarts_by_role: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """All restarts, forgiven ones too."""
    restarted: float = 0.0
    """When the last of them was."""
    seen: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By a pod's uid: how many of its restarts are counted already."""
    finished: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By a pod's name: the code with which its task ended for good."""

    @property
    def over(self) -> bool:
        """Whether the run has its result."""
        return self.state in ("Succeeded", "Failed")


def parse(data: Mapping[str, str]) -> Notes:
    """The notes that a ConfigMap's data hold; what is not there, or cannot be read, is as if nothing were known."""
    try:
        known: dict[str, Any] = json.loads(data.get("notes.json", "{}"))
        names = {field.name for field in dataclasses.fields(Notes)}
        return Notes(**{name: value for name, value in known.items() if name in names})
    except (ValueError, TypeError, AttributeError):
        return Notes()


def to_data(notes: Notes, before: Mapping[str, str]) -> dict[str, str | None]:
    """The change of a ConfigMap's data, as a merge patch, that makes it hold these notes; None removes a key."""
    data: dict[str, str | None] = {key: None for key in before if key != "notes.json"}
    data["notes.json"] = json.dumps(dataclasses.asdict(notes), indent=1, sort_keys=True)
    # The hash tells a pod of a later run, which may still see these lines, that they are none of its business.
    data |= {pod: f"{notes.hash} {code}" for pod, code in notes.finished.items()}
    return data
