"""Crashes of the supervisor: its Job replaces the pod, and the same crash again and again ends the Job. Pure.

A pod that ends by itself notes that. One that was killed cannot: the Job then has more failed pods than are noted.
"""

import dataclasses
import os
import traceback

from pydantic import TypeAdapter, ValidationError

from trainer.text import one_line, truncate

CRASHES = "distributed-tensorflow/crashes"
"""The annotation of the supervisor's Job with its crashes."""
LIMIT = 5
"""The same crash this many times ends the Job."""
RESET_SECONDS = 600.0
"""A crash after this time is counted anew: the supervisor works between two of them."""
LONGEST_REASON = 300
KILLED = "its pod was killed, for memory (supervisor.resources.limits.memory), by a signal, or with its node"


@dataclasses.dataclass(frozen=True)
class Crashes:
    """The last crashes, which have the same kind."""

    reason: str = ""
    kind: str = ""
    """The type and the place of the exception: its text may differ, as by an address; KILLED without an exception."""
    count: int = 0
    total: int = 0
    """Those of other kinds too."""
    failed: int = 0
    """How many failed pods of the Job are accounted for."""
    began: float = 0.0
    """When the last pod began, in seconds since 1970; 0 before the first one."""

    @property
    def too_many(self) -> bool:
        """Whether the Job ends."""
        return self.count >= LIMIT

    def __str__(self) -> str:
        sentence = f"the supervisor crashed: {self.reason} ({self.count} of at most {LIMIT} times)"
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


def begin(crashes: Crashes, failed: int, now: float) -> Crashes:
    """The crashes when another pod begins, with one more if the last pod was killed.

    Args:
        crashes: Those that are noted.
        failed: How many pods of the Job have failed.
        now: Seconds since 1970.
    """
    if crashes.began and failed > crashes.failed:
        crashes = _add(crashes, KILLED, KILLED, now - crashes.began)
    # The Job may count a pod that has noted its end a little later.
    return dataclasses.replace(crashes, failed=max(failed, crashes.failed), began=now)


def after(crashes: Crashes, error: Exception, now: float) -> Crashes:
    """The crashes with another one, of the present pod. `now` in seconds since 1970."""
    cause = error.__cause__ or error
    reason = truncate(one_line(f"{type(error).__name__}: {cause}"), LONGEST_REASON)
    frames = traceback.extract_tb(cause.__traceback__)
    place = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return _add(crashes, reason, f"{type(cause).__name__} {place}", now - crashes.began)


def _add(crashes: Crashes, reason: str, kind: str, seconds: float) -> Crashes:
    """The crashes with another one, of a supervisor that has run for some seconds."""
    is_same = kind == crashes.kind and seconds < RESET_SECONDS
    count = crashes.count + 1 if is_same else 1
    return dataclasses.replace(crashes, reason=reason, kind=kind, count=count, total=crashes.total + 1)
