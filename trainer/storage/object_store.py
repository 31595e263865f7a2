"""Object stores by their URIs, such as s3://bucket/runs/mnist. The only module that uses `obstore`.

Credentials, regions and endpoints come from the environment, as in the stores' own tools (`AWS_ACCESS_KEY_ID`,
`AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`, …), or from the identity of the machine or the pod.
"""

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from trainer.errors import ConfigurationError, StoreError
from trainer.text import truncate

SCHEMES = ("s3", "gs", "az")
RETRY_SECONDS = 30
"""How long a failed request is repeated."""


def is_uri(place: str | None) -> bool:
    """Whether this is a URI, and not a path."""
    return place is not None and "://" in place


class ObjectStore:
    """The objects below a URI."""

    def __init__(self, uri: str, setting: str) -> None:
        """Connect, and list some objects to check the address and the credentials.

        Args:
            uri: The address, such as s3://bucket/runs/mnist.
            setting: The setting that has it, for errors.

        Raises:
            ConfigurationError: the address is wrong, access is refused, or the package is not installed.
        """
        self.uri = uri.rstrip("/")
        parts = urlsplit(uri)
        if parts.scheme not in SCHEMES or not parts.netloc:
            known = ", ".join(f"{scheme}://BUCKET/FOLDER" for scheme in SCHEMES)
            raise ConfigurationError(f"{setting}={uri}: a path or one of {known} was expected.")
        try:
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError:
            raise ConfigurationError(
                f"{setting}={uri}: the Python package obstore is not installed: install the trainer with its extra "
                "objects, such as pip install 'distributed-tensorflow-trainer[objects]'."
            ) from None
        self._errors: Any = (BaseError, OSError)
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        try:
            self._store: Any = from_url(
                self.uri,
                client_options={"allow_http": endpoint.startswith("http://")},
                retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
            )
            next(iter(self._store.list()), None)
        except self._errors as error:
            raise ConfigurationError(
                f"{setting}={uri}: it cannot be read ({_reason(error)}); check the address and the credentials."
            ) from None

    def names(self) -> Iterator[str]:
        """The names of all objects, relative to the URI.

        Raises:
            StoreError: the request failed.
        """
        try:
            for chunk in self._store.list():
                yield from (each["path"] for each in chunk)
        except self._errors as error:
            raise self._error("read", "", error) from error

    def download(self, name: str, file: Path) -> None:
        """Write an object to a file.

        Raises:
            StoreError: the request failed.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with file.open("wb") as target:
                for chunk in self._store.get(name).stream():
                    target.write(chunk)
        except self._errors as error:
            raise self._error("read", name, error) from error

    def upload(self, name: str, content: Path | bytes) -> None:
        """Write an object from a file, or from bytes. Readers see all of it or nothing.

        Raises:
            FileNotFoundError: the file does not exist.
            StoreError: the request failed.
        """
        if isinstance(content, Path) and not content.exists():
            raise FileNotFoundError(content)
        try:
            self._store.put(name, content)
        except self._errors as error:
            raise self._error("written", name, error) from error

    def delete(self, name: str) -> None:
        """Delete an object.

        Raises:
            StoreError: the request failed.
        """
        try:
            self._store.delete(name)
        except self._errors as error:
            raise self._error("deleted", name, error) from error

    def _error(self, what: str, name: str, error: Exception) -> StoreError:
        return StoreError(f"{PurePosixPath(name)} of {self.uri} cannot be {what} ({_reason(error)})")


def _reason(error: Exception) -> str:
    """The part of an error of `obstore` that names the cause: the store's own answer, or the first line."""
    text = str(error)
    if answer := re.search("<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", text, re.DOTALL):
        return truncate(f"{answer[1]}: {answer[2]}".rstrip("."), 200)
    return truncate(text.partition("\n")[0] or type(error).__name__, 200)
