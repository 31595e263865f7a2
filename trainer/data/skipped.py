"""The rows of a source that cannot be used: they are counted, the first are named, and too many end the program."""

import argparse
from dataclasses import dataclass, field

from trainer.errors import ConfigurationError
from trainer.text import truncate

NAMED = 5
"""How many are named."""
DEFAULT_LIMIT = 10


def parse_limit(text: str) -> int:
    """Read the value of --max_skipped, for argparse."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}, but a number from 0 was expected")
    return int(text)


@dataclass
class Skipped:
    """The rows that were skipped so far."""

    limit: int
    count: int = 0
    first: list[str] = field(default_factory=list)
    """The places of the first ones, each with the reason."""
    is_quiet: bool = False
    """Whether nothing is counted, because the rows are read a second time."""

    def add(self, place: str, reason: str) -> None:
        """Skip a row.

        Raises:
            ConfigurationError: more rows than the limit were skipped.
        """
        if self.is_quiet:
            return
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append(f"{place}: {truncate(reason, 100)}")
        if self.count > self.limit:
            raise ConfigurationError(
                f"max_skipped={self.limit}, but {self.count} rows cannot be used, the first ones {self}; correct them, "
                "or raise max_skipped."
            )

    def __str__(self) -> str:
        return "; ".join(self.first)
