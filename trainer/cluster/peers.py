"""Probes of other tasks' addresses, before TensorFlow connects to them.

TensorFlow waits without a message, and retries a name that did not resolve only after a minute. Therefore every wait
for other tasks happens here, with a timeout and a message that names the address and the reason.
"""

import errno
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from trainer.cluster import ports
from trainer.errors import ConfigurationError, LostPeersError

PROBE_SECONDS = 2.0
PROBE_INTERVAL_SECONDS = 0.5
MESSAGE_INTERVAL_SECONDS = 5.0
REFUSED = "the connection is refused (nothing listens on this port yet)"
"""The probe error of an address whose machine or pod is up and whose process does not listen."""


def probe_error(address: str) -> str | None:
    """Return why an address ("HOST:PORT") does not accept connections now; None if it does."""
    host, port = _parts(address)
    try:
        with socket.create_connection((host, port), timeout=PROBE_SECONDS):
            return None
    except socket.gaierror as error:
        return f"the name {host} does not resolve ({error.strerror})"
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return f"no answer within {PROBE_SECONDS:g} s (wrong address, or a firewall or network policy drops packets)"
    except UnicodeError:
        return f"{host} is not a host name"
    except OSError as error:
        return f"{error.strerror or error}"


def probe_errors(addresses: Sequence[str]) -> list[str | None]:
    """Probe all addresses in parallel; return the probe error of each."""
    with ThreadPoolExecutor(max_workers=min(64, len(addresses) or 1)) as pool:
        return list(pool.map(probe_error, addresses))


def wait_for(
    peers: Mapping[str, str], seconds: float, log: Callable[[str], None], interrupted: Callable[[], bool]
) -> None:
    """Wait until every address accepts connections, or the wait is interrupted.

    Args:
        peers: Addresses ("HOST:PORT") by task name.
        seconds: The timeout.
        log: Takes a line every MESSAGE_INTERVAL_SECONDS for each task that does not respond.
        interrupted: Returns whether to stop waiting without an error.

    Raises:
        LostPeersError: a task did not respond in time; the sentence names the task, its address and the reason.
    """
    deadline = time.monotonic() + seconds
    next_message = time.monotonic() + 1.0
    while True:
        reasons = zip(peers, probe_errors(list(peers.values())), strict=True)
        silent = {name: reason for name, reason in reasons if reason}
        if not silent or interrupted():
            return
        now = time.monotonic()
        if now >= deadline:
            name, reason = next(iter(silent.items()))
            others = f" (and {len(silent) - 1} more)" if len(silent) > 1 else ""
            raise LostPeersError(
                f"{name}{others} did not answer at {peers[name]} within {seconds:g} s: {reason}; "
                "start it, correct its address, or raise wait_seconds."
            )
        if now >= next_message:
            for name, reason in silent.items():
                log(f"waiting for {name} at {peers[name]}: {reason}")
            next_message = now + MESSAGE_INTERVAL_SECONDS
        time.sleep(PROBE_INTERVAL_SECONDS)


def wait_for_own_name(
    address: str, seconds: float, log: Callable[[str], None], interrupted: Callable[[], bool]
) -> None:
    """Wait until this task's own host name resolves: the DNS record of a new pod may lag, and peers resolve it once.

    Raises:
        LostPeersError: the name did not resolve in time.
    """
    host, _ = _parts(address)
    deadline = time.monotonic() + seconds
    next_message = time.monotonic()
    while not interrupted():
        try:
            socket.getaddrinfo(host, None)
            return
        except (socket.gaierror, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not a host name"
        now = time.monotonic()
        if now >= deadline:
            raise LostPeersError(
                f"this task's own name {host} does not resolve ({reason}) after {seconds:g} s, "
                "so no other task can find it: correct its address in the cluster."
            )
        if now >= next_message:
            log(f"waiting for this task's own name {host} to resolve: {reason}")
            next_message = now + MESSAGE_INTERVAL_SECONDS
        time.sleep(PROBE_INTERVAL_SECONDS)


def check_port_is_free(address: str) -> None:
    """Check that this task can listen on its port. TensorFlow's own error does not name the reason.

    Raises:
        ConfigurationError: another process uses the port, or this process has no permission.
    """
    _, port = _parts(address)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, ports.are_shareable())
        try:
            probe.bind(("", port))
        except OSError as error:
            reason = "is used by another process" if error.errno == errno.EADDRINUSE else f"{error.strerror}"
            raise ConfigurationError(
                f"port {port} of this task's address {address} cannot be listened on: it {reason}; "
                "stop that process, or choose another port in the cluster's addresses."
            ) from None


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
