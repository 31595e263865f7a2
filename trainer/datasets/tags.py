"""Tags: names of versions, which may be moved and deleted."""

import re
from typing import Any

from trainer.errors import ConfigurationError
from trainer.storage import lance_dataset


def check_name(name: str) -> None:
    """Check the name of a tag.

    Raises:
        ConfigurationError: Lance does not allow it, or it is a number, as versions are.
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or name.isdigit() or not name.strip(".-_"):
        raise ConfigurationError(
            f"tag={name}: letters, digits, '.', '-' and '_' were expected, and not only digits, which are versions."
        )


def check_free(dataset: Any, uri: str, name: str) -> None:
    """Check that no version has this tag.

    Raises:
        ConfigurationError: one has.
    """
    found = dataset.tags.list().get(name)
    if found:
        raise ConfigurationError(
            f"tag={name}: version {found['version']} of {uri} has this tag; choose another, or move it with --force."
        )


def set_tag(dataset: Any, uri: str, name: str, version: int, moves: bool) -> None:
    """Give a version a tag.

    Raises:
        ConfigurationError: the name is wrong, the version does not exist, or another one has the tag and it must not be
            moved.
    """
    check_name(name)
    if not moves:
        check_free(dataset, uri, name)
    try:
        if moves and name in dataset.tags.list():
            dataset.tags.update(name, version)
        else:
            dataset.tags.create(name, version)
    except lance_dataset.ERRORS as error:
        raise ConfigurationError(
            f"version {version} of {uri} cannot get the tag {name}: {lance_dataset.brief(error)}."
        ) from None


def delete_tag(dataset: Any, uri: str, name: str) -> None:
    """Delete a tag. The version stays.

    Raises:
        ConfigurationError: there is no such tag.
    """
    if name not in dataset.tags.list():
        known = ", ".join(sorted(dataset.tags.list())) or "none"
        raise ConfigurationError(f"tag={name}: {uri} has no such tag; its tags are: {known}.")
    dataset.tags.delete(name)
