"""Object stores by their URIs, such as s3://bucket/runs/mnist. The only module that uses `obstore`.

Credentials, regions and endpoints come from the environment, as in the stores' own tools (`AWS_ACCESS_KEY_ID`,
`AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`, …), or from the identity of the machine or the pod.
"""

import contextlib
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from trainer.errors import ConfigurationError, StoreError
from trainer.text import CREDENTIALS, installation, truncate

SCHEMES = ("s3", "gs", "az")
CONDITIONAL = ".conditional"
"""The object that is created to see whether the store refuses to create it again."""
RETRY_SECONDS = 30
"""How long a failed request is repeated."""
_RETRY: Any = {
    "max_retries": 100,
    "retry_timeout": timedelta(seconds=RETRY_SECONDS),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2},
}
_CLIENT: Any = {
    "allow_http": True,
    # The default limits the whole request to 30 seconds, which is too short for a large checkpoint.
    "timeout": timedelta(days=1),
    "read_timeout": timedelta(minutes=2),
}
_IDENTITY = ("/latest/api/token", "/latest/meta-data/", "/computeMetadata/", "/metadata/identity")
"""Where `obstore` asks for the identity of the machine if the environment has no credentials."""


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
            StoreError: the store does not respond.
        """
        self.uri, self._setting = uri.rstrip("/"), setting
        if CREDENTIALS.match(uri):  # do not show it
            raise ConfigurationError(
                f"{setting}: the URI has a user, a password or a port; set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY "
                "and AWS_ENDPOINT_URL, or the variables of your store, instead."
            )
        try:
            parts = urlsplit(uri)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in SCHEMES or not parts.netloc:
            known = ", ".join(f"{scheme}://BUCKET/FOLDER" for scheme in SCHEMES)
            raise ConfigurationError(f"{setting}={uri}: a path or one of {known} was expected.")
        try:
            from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
            from obstore.store import from_url
        except ImportError:
            raise ConfigurationError(
                f"{setting}={uri}: the Python package obstore is not installed: run "
                f"{installation.command('tensorflow')}."
            ) from None
        self._errors: Any = (BaseError, OSError)
        self._absent: Any = (NotFoundError, FileNotFoundError)
        self._present: Any = (AlreadyExistsError, FileExistsError)
        try:
            self._store: Any = from_url(self.uri, client_options=_CLIENT, retry_config=_RETRY)
            next(iter(self._store.list()), None)
        except self._errors as error:
            raise self._refusal("read", error) from None

    def check_writable(self) -> None:
        """Write an object, and delete it.

        Raises:
            ConfigurationError: access is refused.
            StoreError: the store does not respond.
        """
        try:
            self._store.put(".writable", b"")
            self._store.delete(".writable")
        except self._errors as error:
            raise self._refusal("written", error) from None

    def has_conditional_writes(self) -> bool:
        """Whether the store refuses to create an object that exists; some ignore S3's header If-None-Match.

        Raises:
            ConfigurationError: access is refused.
            StoreError: the store does not respond.
        """
        try:
            self._store.put(CONDITIONAL, b"", mode="create")
            try:
                self._store.put(CONDITIONAL, b"", mode="create")
            finally:
                with contextlib.suppress(*self._errors):
                    self._store.delete(CONDITIONAL)
        except self._present:
            return True
        except self._errors as error:
            raise self._refusal("written", error) from None
        return False

    def names(self, folder: str | None = None) -> Iterator[str]:
        """The names of all objects, or of those in a folder, relative to the URI.

        Raises:
            StoreError: the request failed.
        """
        try:
            for chunk in self._store.list(folder):
                yield from (each["path"] for each in chunk)
        except self._errors as error:
            raise self._error("read", "", error) from error

    def download(self, name: str, file: Path) -> float:
        """Write an object to a file; return when it was written to the store, in seconds since the epoch.

        Raises:
            StoreError: the request failed.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            found = self._store.get(name)
            with file.open("wb") as target:
                for chunk in found.stream():
                    target.write(chunk)
        except self._errors as error:
            raise self._error("read", name, error) from error
        return float(found.meta["last_modified"].timestamp())

    def read(self, name: str) -> bytes | None:
        """Return the content of an object; None if it does not exist.

        Raises:
            StoreError: the request failed.
        """
        try:
            return bytes(self._store.get(name).bytes())
        except self._absent:
            return None
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

    def _refusal(self, what: str, error: Exception) -> ConfigurationError | StoreError:
        sentence = f"{self._setting}={self.uri}: it cannot be {what} ({reason(error)})"
        if may_recover(error):
            return StoreError(f"{sentence}; check the network and the store's endpoint.")
        return ConfigurationError(f"{sentence}; check the address and the credentials.")

    def _error(self, what: str, name: str, error: Exception) -> StoreError:
        return StoreError(f"{PurePosixPath(name)} of {self.uri} cannot be {what} ({reason(error)})")


def reason(error: Exception) -> str:
    """The cause in an error of `obstore` or Lance: the store's own answer, or the last part of a line."""
    text = str(error)
    if any(path in text for path in _IDENTITY):
        return "there are no credentials in the environment, and the machine has no identity"
    if answer := re.search("<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", text, re.DOTALL):
        return truncate(f"{answer[1]}: {answer[2]}".rstrip("."), 200)
    line = text.partition("\n")[0]
    return truncate(line.rpartition(" - ")[2] or type(error).__name__, 200)


def may_recover(error: Exception) -> bool:
    """Whether the store does not respond, or responds that it fails or is busy, and not that a feature is absent."""
    text = str(error)
    if any(path in text for path in _IDENTITY):
        return False
    if not (status := re.search(r"status code: (\d+)", text)):
        return "HTTP error" in text
    return status[1] in ("408", "429") or (status[1] >= "500" and status[1] != "501")
