"""What a pass decides, before it acts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trainer.supervisor.notes import Notes
from trainer.supervisor.policy import Outcome, PendingTask
from trainer.supervisor.run import Stage


@dataclass(frozen=True)
class Report:
    """A sentence for the log."""

    sentence: str
    event: str = ""
    """The reason of an event that has the sentence too; empty for none."""
    kind: Literal["Normal", "Warning"] = "Normal"


@dataclass(frozen=True)
class Decision:
    """The notes that follow from what is observed, and what to report."""

    notes: Notes
    seen: Notes
    """The notes with what is observed alone."""
    reports: Sequence[Report] = ()
    waits_for: str = ""
    """What the run waits for, as a sentence that is repeated once a minute."""
    pending: Sequence[PendingTask] | None = None
    """The tasks that the run waits for; None in a state without tasks."""
    outcome: Outcome | None = None
    """How the training, or the stages, have ended, without what the logs say of it."""
    failed_stage: Stage | None = None
