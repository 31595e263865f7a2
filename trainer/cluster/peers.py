"""Looking at other tasks before TensorFlow is handed over to them.

TensorFlow itself waits without a word and, once a name did not resolve, looks again only after a minute. So every wait
for others happens here, where it is bounded and says which address does not answer and why.
"""

import errno
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from trainer.cluster import ports
from trainer.errors import ConfigurationError, LostPeersError

PROBE_SECONDS = 2.0
BETWEEN_PROBES = 0.5
BETWEEN_MESSAGES = 5.0
REFUSED = "the connection is refused (nothing listens on this port yet)"
"""The complaint of an address whose machine or pod is there, and its process is not."""


def probe_error(address: str) -> str | None:
    """Why nobody can be reached at an address ("HOST:PORT") now; None where somebody listens."""
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
        return f"{host} is no host name"
    except OSError as error:
        return f"{error.strerror or error}"


def probe_errors(addresses: Sequence[str]) -> list[str | None]:
    """The complaint of each address, all probed at the same time."""
    with ThreadPoolExecutor(max_workers=min(64, len(addresses) or 1)) as pool:
        return list(pool.map(probe_error, addresses))


def wait_for(
    peers: Mapping[str, str], seconds: float, say: Callable[[str], None], interrupted: Callable[[], bool]
) -> None:
    """Wait until somebody listens at every address, or the wait is interrupted.

    Args:
        peers: Addresses ("HOST:PORT") by the name of their task.
        seconds: The longest wait.
        say: Takes a line every few seconds for each task that does not answer.
        interrupted: Whether to give up waiting without an error.

    Raises:
        LostPeersError: somebody did not answer in time; the sentence says who, where and why.
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
                f"{name}{others} did not answer at {peers[name]} within {seconds:g} s: {reason}. "
                "Start it, or correct its address; wait_seconds sets how long to wait."
            )
        if now >= next_message:
            for name, reason in silent.items():
                say(f"waiting for {name} at {peers[name]}: {reason}")
            next_message = now + BETWEEN_MESSAGES
        time.sleep(BETWEEN_PROBES)


def wait_for_own_name(
    address: str, seconds: float, say: Callable[[str], None], interrupted: Callable[[], bool]
) -> None:
    """Wait until this task's own host name resolves: a new pod's record may lag, and others look it up once.

    Raises:
        LostPeersError: it did not resolve in time.
    """
    host, _ = _parts(address)
    deadline = time.monotonic() + seconds
    next_message = time.monotonic()
    while not interrupted():
        try:
            socket.getaddrinfo(host, None)
            return
        except (socket.gaierror, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no host name"
        now = time.monotonic()
        if now >= deadline:
            raise LostPeersError(
                f"this task's own name {host} does not resolve ({reason}) after {seconds:g} s, "
                "so no other task could find it: correct its address in the cluster."
            )
        if now >= next_message:
            say(f"waiting for this task's own name {host} to resolve: {reason}")
            next_message = now + BETWEEN_MESSAGES
        time.sleep(BETWEEN_PROBES)


def check_port_is_free(address: str) -> None:
    """Make sure that this task can listen on its port; TensorFlow's own error would not say what is wrong.

    Raises:
        ConfigurationError: another process listens there, or this one may not.
    """
    _, port = _parts(address)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, ports.are_shared())
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
