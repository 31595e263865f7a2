"""The connection to the Kubernetes API, and the repetition of its calls while the API server is unavailable.

The client library is lightkube: it has a tenth of the size of the official Python client, and reads a service account's
token again when it has changed.
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import httpx2
import msgspec
from lightkube import ApiError, Client, ConfigError, KubeConfig
from lightkube.config import client_adapter

from trainer.errors import ConfigurationError

logger = logging.getLogger(__name__)

STOPPED = "the supervisor received a signal to stop"
WATCH_SECONDS = 240
UNAVAILABLE = (httpx2.HTTPError, json.JSONDecodeError, msgspec.DecodeError)
"""What calls raise while the API server is unavailable; the others if a proxy in front of it answers instead."""
_ABSENT = 404
_BUSY = (408, 409, 429)
"""Codes from 400 to 499 that are no refusal: the same request may succeed a second later."""
_SLOWEST_RETRY = 60.0
_REMINDER_SECONDS = 60.0
_Result = TypeVar("_Result")


class StoppedError(Exception):
    """The supervisor stops before the run ends. The run continues, and another supervisor takes over."""


@dataclass(frozen=True)
class Connection:
    """The clients of one API server."""

    client: Client
    raw: httpx2.Client
    """For what lightkube has no method."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the supervisor must stop: calls are no longer repeated."""
    _reported: dict[str, float] = field(default_factory=dict)
    """When each refusal was last reported."""

    def retry(self, call: Callable[[], _Result]) -> _Result:
        """Repeat a call until it succeeds: the API server may be unavailable, or refuse it, as without permissions.

        Raises:
            ApiError: the object is absent.
            StoppedError: the supervisor must stop.
        """
        backoff = Backoff(self)
        while True:
            try:
                return call()
            except ApiError as error:
                if error.status.code == _ABSENT:
                    raise
                backoff.wait(error)
            except UNAVAILABLE as error:
                backoff.wait(error)

    def attempt(self, call: Callable[[], object]) -> bool:
        """Make a call that the run does not need, and return whether it succeeded. It is not repeated."""
        try:
            call()
        except UNAVAILABLE:
            return False
        return True

    def attempt_in_pass(self, call: Callable[[], object]) -> bool:
        """Make a call that the next passes of a loop repeat, and return whether it succeeded; report a refusal."""
        try:
            call()
        except UNAVAILABLE as error:
            if isinstance(error, ApiError) and is_refusal(error):
                self.report(error)
            return False
        return True

    def report(self, error: ApiError) -> None:
        """Log a refusal, at most once a minute."""
        sentence, now = refusal(error), time.monotonic()
        if now - self._reported.get(sentence, -_REMINDER_SECONDS) >= _REMINDER_SECONDS:
            self._reported[sentence] = now
            logger.warning(sentence)


def refusal(error: ApiError) -> str:
    """The sentence about a refused request."""
    return f"the Kubernetes API refuses a request, which is repeated: {error.status.message}"


def is_refusal(error: ApiError) -> bool:
    """Whether the API server answers, and does not do what is asked, as without permissions."""
    code = error.status.code or 0
    return 400 <= code < 500 and code != _ABSENT and code not in _BUSY


class Backoff:
    """The pauses between the attempts of one call."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._seconds = 1.0

    def wait(self, error: Exception) -> None:
        """Wait before the next attempt.

        Raises:
            StoppedError: the supervisor must stop.
        """
        if isinstance(error, ApiError) and is_refusal(error):
            if self._seconds > 8:  # a server that has just started forbids all
                self._connection.report(error)
            self._seconds = min(2 * self._seconds, _SLOWEST_RETRY)
        else:
            self._seconds = 1.0
        if self._connection.stopping.wait(self._seconds):
            raise StoppedError(STOPPED)


def connect() -> Connection:
    """Connect with the pod's service account, or with KUBECONFIG outside a pod.

    Raises:
        ConfigurationError: neither exists.
    """
    try:
        config = KubeConfig.from_env().get()
    except ConfigError as error:
        raise ConfigurationError(
            f"no Kubernetes API found: {error}; run this in a pod with a service account, or set KUBECONFIG."
        ) from None
    if config is None:
        raise ConfigurationError("no Kubernetes API found: KUBECONFIG has no current context; set one.")
    client = Client(config, timeout=httpx2.Timeout(30))
    # By default lightkube waits on a watch without a limit, even if the server's machine has disappeared.
    client._client._watch_timeout = httpx2.Timeout(30, read=WATCH_SECONDS + 30)
    raw = client_adapter.Client(config, client_adapter.ConnectionParams(timeout=httpx2.Timeout(30)))
    return Connection(client, raw)
