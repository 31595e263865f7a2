"""Crashes of the supervisor: its Job replaces the pod, and the same crash again and again ends the Job. Pure."""

import dataclasses

from pydantic import TypeAdapter, ValidationError

from trainer.text import one_line, truncate

CRASHES = "distributed-tensorflow/crashes"
"""The annotation of the supervisor's Job with its crashes."""
LIMIT = 5
"""The same crash this many times ends the Job."""
RESET_SECONDS = 600.0
"""A crash after this time is counted anew: the supervisor works between two of them."""
LONGEST_REASON = 300


@dataclasses.dataclass(frozen=True)
class Crashes:
    """The last crashes, which have the same reason."""

    reason: str = ""
    count: int = 0
    total: int = 0
    """Those with other reasons too."""

    @property
    def too_many(self) -> bool:
        """Whether the Job ends."""
        return self.count >= LIMIT

    def __str__(self) -> str:
        sentence = f"the supervisor crashed with {self.reason} ({self.count} of at most {LIMIT} times)"
        if self.too_many:
            return (
                f"{sentence} and is not started again; the tasks go on without a supervisor, and nothing ends or frees "
                "them: upgrade or roll back the release"
            )
        return f"{sentence}; another pod takes over, and the tasks go on meanwhile"


def parse_crashes(text: str) -> Crashes:
    """The crashes in the annotation; none if there are none or they cannot be read."""
    try:
        return TypeAdapter(Crashes).validate_json(text)
    except ValidationError:
        return Crashes()


def after(crashes: Crashes, error: Exception, seconds: float) -> Crashes:
    """The crashes with another one, of a supervisor that has run for some seconds."""
    reason = truncate(one_line(f"{type(error).__name__}: {error.__cause__ or error}"), LONGEST_REASON)
    is_same = reason == crashes.reason and seconds < RESET_SECONDS
    return Crashes(reason, crashes.count + 1 if is_same else 1, crashes.total + 1)
