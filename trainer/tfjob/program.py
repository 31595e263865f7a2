"""What the images of a TFJob run, as the options of `trainer convert-tfjob` state it."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from trainer.cluster.spec import ALIASES, ROLES, Role
from trainer.errors import ConfigurationError


@dataclass(frozen=True)
class Program:
    """What an image runs."""

    entrypoint: Sequence[str]
    """The words that a container's command replaces: ENTRYPOINT in a Dockerfile."""

    arguments: Sequence[str] = ()
    """The words that a container's args replace: CMD in a Dockerfile."""


def parse_entrypoints(words: Iterable[str]) -> dict[Role, Program]:
    """The programs from `--entrypoint ROLE="WORD …"`, by role. Without a word the image has no entrypoint.

    Raises:
        ConfigurationError: an option has no valid role or no "=".
    """
    found: dict[Role, Program] = {}
    for word in words:
        name, separator, text = word.partition("=")
        role = to_role(name)
        try:
            entrypoint = shlex.split(text)
        except ValueError as error:
            raise ConfigurationError(f"--entrypoint: {word!r} cannot be split into words: {error}.") from None
        if role is None or not separator:
            expected = f'ROLE="WORD …", where ROLE is one of {", ".join(ROLES)},'
            raise ConfigurationError(f"--entrypoint: {word!r} was given; {expected} was expected.")
        if role in found:
            raise ConfigurationError(f"--entrypoint: two were given for {role}.")
        found[role] = Program(entrypoint)
    return found


def to_role(name: str) -> Role | None:
    """The role of a replica type. TFJob ignores its case."""
    role = ALIASES.get(name.lower(), name.lower())
    return next((known for known in get_args(Role) if known == role), None)
