"""The record of an import: what made a version, kept in the transaction that made it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.datasets.statistics import Statistics

IMPORT = "trainer.import"
"""The property of a transaction that has the record."""
NOTE = "__lance_commit_message"
"""The property that has the note; Lance's own tools show it too."""


@dataclass(frozen=True)
class Record:
    """What an import did."""

    source: str
    kind: str
    mode: str
    skipped: int
    first_skipped: Sequence[str]
    trainer: str
    """The version of the trainer."""
    statistics: Statistics
    """Of the rows that the import added."""

    def to_text(self) -> str:
        """The record as JSON."""
        return json.dumps({**vars(self), "statistics": self.statistics.to_json()})


def parse(properties: Mapping[str, str] | None) -> Record | None:
    """The record in the properties of a transaction; None if an import of this program did not make it."""
    try:
        found: dict[str, Any] = json.loads((properties or {})[IMPORT])
        return Record(**{**found, "statistics": Statistics.from_json(found["statistics"])})
    except (LookupError, TypeError, ValueError):
        return None
