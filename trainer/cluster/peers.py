"""Probes of other tasks' addresses, before TensorFlow connects to them.

TensorFlow waits without a message, and repeats the lookup of a name that did not resolve at intervals that grow up to
two minutes. Therefore every wait for other tasks happens here, with a timeout and a message that names the address and
the reason. TensorFlow connects only after that, when the names resolve. At the loss of a connection it looks the name
up again by itself (`trainer.cluster.connections`).
"""

import errno
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from trainer.cluster import ports
from trainer.cluster.poll import poll_until
from trainer.errors import ConfigurationError

PROBE_SECONDS = 2.0
END_POLL_SECONDS = 0.1
REFUSED = "the connection is refused (nothing listens on this port yet)"
"""The probe error of an address whose machine or pod is up and whose process does not listen."""


CONNECTION_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How a client of gRPC begins: the preface of HTTP/2 and an empty SETTINGS frame (RFC 9113, section 3.4)."""
FRAME_HEADER, SETTINGS = 9, b"\4"
"""The bytes of a frame's header in HTTP/2, and the fourth of them in the first frame of a server."""
SETTINGS_RECEIVED = b"\0\0\0\4\1\0\0\0\0"
"""The frame without which the server ends the connection after a while."""
OTHER_PROGRAM = "another program answers there, and not a TensorFlow server"


class Unresolved(str):
    """The probe error of a name that does not resolve. It says nothing about the task: DNS may be away."""


def probe_error(address: str, must_answer: bool = False) -> str | None:
    """Return why an address ("HOST:PORT") does not accept connections now; None if it does.

    The kernel also accepts connections for a process that is stopped. With `must_answer`, its gRPC server must answer,
    too.
    """
    try:
        with _connected(address) as connection:
            return _server_error(connection) if must_answer else None
    except socket.gaierror as error:
        return Unresolved(f"the name {_parts(address)[0]} does not resolve ({error.strerror})")
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return f"no answer within {PROBE_SECONDS:g} s (wrong address, or a firewall or network policy drops packets)"
    except UnicodeError:
        return f"{_parts(address)[0]} is not a host name"
    except OSError as error:
        return f"{error.strerror or error}"


def connect(address: str) -> socket.socket:
    """Connect to the gRPC server at an address ("HOST:PORT"), which closes the connection when it ends.

    Raises:
        OSError, UnicodeError: it does not accept the connection, or the name does not resolve.
    """
    connection = _connected(address)
    try:
        if error := _server_error(connection):
            raise OSError(error)
        connection.sendall(SETTINGS_RECEIVED)
    except OSError:
        connection.close()
        raise
    return connection


def wait_for_end(address: str, seconds: float) -> None:
    """Wait at most so long until the program at an address ("HOST:PORT") ends."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            with connect(address) as connection:
                connection.settimeout(left)
                while connection.recv(4096):  # what else a gRPC server sends at the begin
                    pass
                return
        except (ConnectionError, socket.gaierror, UnicodeError):
            return
        except OSError:  # it does not answer, as it is stopped or far too busy
            time.sleep(END_POLL_SECONDS)


def _connected(address: str) -> socket.socket:
    return socket.create_connection(_parts(address), timeout=PROBE_SECONDS)


def _server_error(connection: socket.socket) -> str | None:
    try:
        connection.sendall(CONNECTION_PREFACE)
        answer = connection.recv(FRAME_HEADER)
        if not answer:
            return "it closes the connection"
        return None if answer[3:4] == SETTINGS else OTHER_PROGRAM
    except TimeoutError:
        return f"it accepts connections, but does not answer within {PROBE_SECONDS:g} s (stopped, or far too busy)"


def probe_errors(addresses: Sequence[str], must_answer: bool = False) -> list[str | None]:
    """Probe all addresses in parallel; return the probe error of each."""
    with ThreadPoolExecutor(max_workers=min(64, len(addresses) or 1)) as pool:
        return list(pool.map(partial(probe_error, must_answer=must_answer), addresses))


def wait_for(peers: Mapping[str, str], seconds: float, interrupted: Callable[[], bool]) -> None:
    """Wait until a TensorFlow server answers at every address, or the wait is interrupted.

    Args:
        peers: Addresses ("HOST:PORT") by task name.
        seconds: The timeout.
        interrupted: Returns whether to stop waiting without an error.

    Raises:
        LostPeersError: a task did not respond in time; the sentence names the task, its address and the reason.
    """

    def silent() -> dict[str, str]:
        reasons = zip(peers, probe_errors(list(peers.values()), must_answer=True), strict=True)
        return {name: reason for name, reason in reasons if reason}

    def expired(reasons: Mapping[str, str]) -> str:
        name, reason = next(iter(reasons.items()))
        others = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return (
            f"{name}{others} did not answer at {peers[name]} within {seconds:g} s: {reason}; "
            "start it, correct its address, or raise wait_seconds."
        )

    poll_until(
        silent,
        seconds,
        waiting=lambda reasons: [f"waiting for {name} at {peers[name]}: {why}" for name, why in reasons.items()],
        expired=expired,
        interrupted=interrupted,
    )


def wait_for_own_name(address: str, seconds: float, interrupted: Callable[[], bool]) -> None:
    """Wait until this task's own host name resolves: the DNS record of a new pod may lag, and peers resolve it once.

    Raises:
        LostPeersError: the name did not resolve in time.
    """
    host, _ = _parts(address)

    def unresolved() -> str:
        try:
            socket.getaddrinfo(host, None)
            return ""
        except (socket.gaierror, UnicodeError) as error:
            return getattr(error, "strerror", None) or "it is not a host name"

    poll_until(
        unresolved,
        seconds,
        waiting=lambda reason: [f"waiting for this task's own name {host} to resolve: {reason}"],
        expired=lambda reason: (
            f"this task's own name {host} does not resolve ({reason}) after {seconds:g} s, "
            "so no other task can find it: correct its address in the cluster."
        ),
        interrupted=interrupted,
        first_message=0.0,
    )


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
