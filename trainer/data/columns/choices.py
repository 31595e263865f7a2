"""What a user says about the columns of a table."""

from dataclasses import dataclass

TARGETS = ("target", "label", "y")
"""The names of a column of targets that is found without being named."""


@dataclass(frozen=True)
class Choices:
    """The settings about columns."""

    target: str | None = None
    """The column to predict."""
    inputs: tuple[str, ...] = ()
    """The columns of inputs; empty takes all others."""
    exclude: tuple[str, ...] = ()
    """Columns that are no inputs."""
    id: str | None = None
    """The column that identifies a row."""
    sample_weight: str | None = None
    """The column with the weight of a row in the loss."""
    regression: bool | None = None
    """Whether the target is a value, and not a class; None lets its values decide."""
    kind: str | None = None
    """csv, parquet or tfrecord, if the names of the files do not say it."""
    max_skipped: int = 10
    """The most rows that may be unusable."""
