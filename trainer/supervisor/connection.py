"""The connection to the Kubernetes API, and the repetition of its calls while the API server is unavailable.

The client library is lightkube: it has a tenth of the size of the official Python client, and reads a service account's
token again when it has changed.
"""

import json
import logging
import threading
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
_RETRIED = (401, 403, 408, 409, 429)
"""Codes from 400 to 499 after which a call is repeated. A server that has just started forbids every request."""
_SLOWEST_RETRY = 60.0
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

    def retry(self, call: Callable[[], _Result]) -> _Result:
        """Repeat a call until it succeeds, while the API server is unavailable, or permissions are missing.

        Raises:
            ApiError: the server answers that the request is invalid, or that the object is absent.
            StoppedError: the supervisor must stop.
        """
        backoff = Backoff(self.stopping)
        while True:
            try:
                return call()
            except ApiError as error:
                code = error.status.code or 0
                if 400 <= code < 500 and code not in _RETRIED:
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


class Backoff:
    """The pauses between the attempts of one call. A refusal because permissions are missing is logged once."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._seconds = 1.0
        self._reported = ""

    def wait(self, error: Exception) -> None:
        """Wait before the next attempt.

        Raises:
            StoppedError: the supervisor must stop.
        """
        if isinstance(error, ApiError) and error.status.code in (401, 403):
            refusal = f"{error.status.message}"
            if self._seconds > 8 and refusal != self._reported:
                self._reported = refusal
                logger.warning(f"the Kubernetes API refuses a request, which is repeated: {refusal}")
            self._seconds = min(2 * self._seconds, _SLOWEST_RETRY)
        else:
            self._seconds = 1.0
        if self._stopping.wait(self._seconds):
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
