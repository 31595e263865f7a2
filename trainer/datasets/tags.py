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


def tags_of(dataset: Any, uri: str) -> dict[str, int]:
    """The version of each tag.

    Raises:
        ConfigurationError: they cannot be read.
        StoreError: the store or the volume does not respond.
    """
    found = lance_dataset.reading(uri, dataset.tags.list)
    return {name: int(tag["version"]) for name, tag in found.items()}


def check_free(dataset: Any, uri: str, name: str) -> None:
    """Check that no version has this tag.

    Raises:
        ConfigurationError: one has, or the tags cannot be read.
        StoreError: the store or the volume does not respond.
    """
    found = tags_of(dataset, uri).get(name)
    if found:
        raise ConfigurationError(
            f"tag={name}: version {found} of {uri} has this tag; choose another, or move it with --force."
        )


def set_tag(dataset: Any, uri: str, name: str, version: int, moves: bool) -> None:
    """Give a version a tag.

    Raises:
        ConfigurationError: the name is wrong, the version does not exist, or another one has the tag and it must not be
            moved; or the tags cannot be read or written.
        StoreError: the store or the volume does not respond.
    """
    check_name(name)
    if not moves:
        check_free(dataset, uri, name)
    change = dataset.tags.update if moves and name in tags_of(dataset, uri) else dataset.tags.create
    try:
        change(name, version)
    except lance_dataset.ERRORS as error:
        raise lance_dataset.refusal(f"the tag {name} of {uri}", f"given to version {version}", error) from None


def delete_tag(dataset: Any, uri: str, name: str) -> None:
    """Delete a tag. The version stays.

    Raises:
        ConfigurationError: there is no such tag, or the tags cannot be read or written.
        StoreError: the store or the volume does not respond.
    """
    found = tags_of(dataset, uri)
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ConfigurationError(f"tag={name}: {uri} has no such tag; its tags are: {known}.")
    try:
        dataset.tags.delete(name)
    except lance_dataset.ERRORS as error:
        raise lance_dataset.refusal(f"the tag {name} of {uri}", "deleted", error) from None
