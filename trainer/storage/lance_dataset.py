"""Lance datasets (https://lance.org) by their paths and URIs: opening them, their access, and their errors."""

import contextlib
import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from trainer.errors import ConfigurationError, StoreError
from trainer.storage.object_store import SCHEMES, ObjectStore, may_recover, reason
from trainer.text import enumerate_last, installation, truncate

logger = logging.getLogger(__name__)

ERRORS = (OSError, ValueError)
"""What pylance raises."""
RETRY_SECONDS = 120.0
"""How long a read is repeated while a store or a volume does not respond. Lance itself tries for some seconds."""
PAUSE_SECONDS = 2.0
_VOLUME_ERRORS = re.compile(r"\(os error (5|11|110|116)\)")
"""Errors of a volume that may pass: EIO, EAGAIN, ETIMEDOUT, ESTALE."""
_Result = TypeVar("_Result")


def reading(origin: str, read: Callable[[], _Result]) -> _Result:
    """Read, and repeat that while the store or the volume does not respond.

    Args:
        origin: The setting and the place, for errors.
        read: What calls Lance.

    Raises:
        ConfigurationError: the read is refused, or the data is absent or damaged: a retry does not help.
        StoreError: it has not succeeded for RETRY_SECONDS. A retry of the task may succeed.
    """
    deadline, is_reported = time.monotonic() + RETRY_SECONDS, False
    while True:
        try:
            return read()
        except ERRORS as error:
            sentence = f"{origin} cannot be read: {brief(error)}"
            if not (may_recover(error) or _VOLUME_ERRORS.search(str(error))):
                raise ConfigurationError(f"{sentence}.") from None
            if time.monotonic() > deadline:
                raise StoreError(f"{sentence}; start again when it responds.") from None
        if not is_reported:
            is_reported = True
            logger.warning(f"{sentence}; trying again for at most {RETRY_SECONDS:.0f} s")
        time.sleep(PAUSE_SECONDS)


def require(what: str) -> None:
    """Check that pylance is installed.

    Args:
        what: What needs it.

    Raises:
        ConfigurationError: it is not.
    """
    try:
        import lance  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigurationError(
            f"{what} needs the package pylance: use an image that has it, from `make build-images DATA=yes`, or "
            f"outside of images run {installation.command('data')}."
        ) from None
    # The launcher forks, and then executes another program.
    warnings.filterwarnings("ignore", "lance is not fork-safe", UserWarning)


def open_dataset(uri: str, version: str | None, origin: str) -> Any:
    """Open a version of a dataset.

    Args:
        uri: A path or a URI, such as s3://bucket/digits.lance.
        version: A version's number or a tag; None is the newest.
        origin: The setting and the URI, for errors.

    Raises:
        ConfigurationError: the dataset or its version does not exist, or cannot be read.
        StoreError: the store or the volume does not respond.
    """
    import lance

    number = int(version) if version and version.isdigit() else version
    at = "" if version is None else f" (version {version})"
    try:
        return reading(
            f"{origin}{at}", lambda: lance.dataset(uri, version=number, storage_options=storage_options(uri))
        )
    except (ConfigurationError, OverflowError) as error:
        sentence = str(error)
    raise ConfigurationError(_absence(uri, version, origin) or sentence)


def _absence(uri: str, version: str | None, origin: str) -> str:
    """A sentence on a dataset or a version that does not exist; empty if it exists, or if this is not known."""
    with contextlib.suppress(ConfigurationError, *ERRORS):
        found = find_dataset(uri)
        if found is None:
            return f"{origin}: there is no Lance dataset; name another place, or make one with trainer data import."
        numbers = [str(each["version"]) for each in found.versions()]
        tags = sorted(found.tags.list())
        if version is not None and version not in (*numbers, *tags):
            known = f"{enumerate_last(numbers, 'version', 'versions')} and {enumerate_last(tags, 'tag', 'tags')}"
            return f"{origin} has no version {version!r}: it has {known}; name one of these."
    return ""


def find_dataset(uri: str) -> Any | None:
    """Open the newest version of a dataset; None if there is none.

    Raises:
        ConfigurationError: the place cannot be read.
    """
    import lance

    try:
        return lance.dataset(uri, storage_options=storage_options(uri))
    except ERRORS as error:
        if "was not found" in str(error):
            return None
        raise ConfigurationError(f"{uri} cannot be read: {brief(error)}.") from None


def check_access(uri: str, setting: str) -> None:
    """Check the address and the credentials of a dataset on an object store.

    Raises:
        ConfigurationError: the address is wrong, or access is refused.
        StoreError: the store does not respond.
    """
    if _is_object_store(uri):
        ObjectStore(uri, setting)


def has_atomic_commits(uri: str) -> bool:
    """Whether two commits at the same time become two versions. On an object store this needs conditional writes.

    Raises:
        ConfigurationError: access is refused.
        StoreError: the store does not respond.
    """
    return not _is_object_store(uri) or ObjectStore(uri, "URI").has_conditional_writes()


def storage_options(uri: str) -> Mapping[str, str] | None:
    """The options with which Lance reaches a dataset; credentials are in the environment."""
    if not _is_object_store(uri):
        return None
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region and (os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")):
        region = "us-east-1"  # the default of S3's own clients; Lance has another
    return {"allow_http": "true", **({"aws_region": region} if region else {})}


def refusal(thing: str, what: str, error: Exception) -> ConfigurationError | StoreError:
    """The error that reports a failure of Lance while it does something."""
    sentence = f"{thing} cannot be {what}: {brief(error)}"
    if may_recover(error):
        return StoreError(f"{sentence}; repeat the command when the store responds.")
    return ConfigurationError(f"{sentence}; mend that, and repeat the command.")


def _is_object_store(uri: str) -> bool:
    return urlsplit(uri).scheme in SCHEMES


def brief(error: Exception) -> str:
    """The reason in an error of Lance, without a place in its source."""
    if "<Code>" in str(error):
        return reason(error)
    text = " ".join(str(error).split(", /home/")[0].split(", /rustc/")[0].split())
    return truncate(text.removeprefix("LanceError(IO): ").rstrip("."), 200)
