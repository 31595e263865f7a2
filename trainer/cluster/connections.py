"""Bounds how long this process's connections to other tasks wait for a host that does not answer.

Without a bound, a connection that is cut off waits for TCP's retransmission, whose interval doubles: after a cut of a
minute, the next attempt comes up to a minute after the network is back. A connection that only waits for a reply sends
nothing, and learns of the cut from the kernel's keepalive after two hours. An attempt to connect to the former address
of a pod waits for 20 seconds, and gRPC resolves a name at most every 30 seconds.

The last of these is an option of gRPC's channels, which TensorFlow reads from an environment variable. For the others a
thread looks for this process's sockets and sets the kernel's options on them: keepalive for connections with nothing to
send, TCP_USER_TIMEOUT for those with unacknowledged data, and TCP_SYNCNT for attempts to connect. (gRPC's own keepalive
would have every server end the connection, because TensorFlow's servers allow a ping only every five minutes.) When
the kernel closes a connection, gRPC fails its calls, and connects again at once and often, so the first step
follows soon after the network is back. The kernel of a process that is stopped or busy still acknowledges, so a slow
task keeps its connections.

Both sides set the options: a parameter server must cancel what a lost worker waits for, such as the next token of its
queue, which would otherwise take the token of the worker's next process.
"""

import os
import resource
import socket
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path

TIMEOUT_SECONDS = 10
"""A connection to a host that acknowledges nothing for this time is closed. Shorter cuts only delay its data."""
IDLE_SECONDS = 4
PROBE_SECONDS = 2
"""The kernel probes a connection that is idle for IDLE_SECONDS, and then every PROBE_SECONDS until an answer."""
SEARCH_SECONDS = 1.0
"""How often the thread looks for new connections."""

CHANNEL_OPTIONS = {"grpc.dns_min_time_between_resolutions_ms": 1000, "grpc.testing.fixed_reconnect_backoff_ms": 200}
"""Options of all channels of TensorFlow, unless the environment has others: a replaced pod has a new address, and one
that restarts is there soon. TensorFlow itself sets the second option, to 1000."""
MAX_FILES = 2**16
"""The limit of open files is raised to this one at most: it may be a thousand million."""
VARIABLE = "TF_GRPC_DEFAULT_OPTIONS"

_CONNECTED = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, (TIMEOUT_SECONDS - IDLE_SECONDS) // PROBE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * TIMEOUT_SECONDS),
)
_CONNECTING = ((socket.IPPROTO_TCP, socket.TCP_SYNCNT, 1),)
"""The kernel repeats the first packet after a second, and gives up two seconds later."""
_ESTABLISHED, _SYN_SENT = 1, 2


def configure() -> None:
    """Set the options of the channels that TensorFlow opens. Call this before it opens the first one.

    A task of a large run has more connections than the usual limit of open files, so raise that as far as is allowed.
    """
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if most == resource.RLIM_INFINITY else min(most, MAX_FILES)
    if files != resource.RLIM_INFINITY and files < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    given = [option for option in os.environ.get(VARIABLE, "").split(",") if option]
    names = [option.partition("=")[0] for option in given]
    given += [f"{name}={value}" for name, value in CHANNEL_OPTIONS.items() if name not in names]
    os.environ[VARIABLE] = ",".join(given)


def start(ports: Collection[int]) -> None:
    """Start the thread. It sets the options on connections from or to these ports until the process ends."""

    def search() -> None:
        while True:
            set_options(ports)
            time.sleep(SEARCH_SECONDS)

    threading.Thread(target=search, name="connections", daemon=True).start()


def set_options(ports: Collection[int]) -> int:
    """Set the options on this process's connections from or to these ports; return how many did not have them."""
    changed = 0
    connecting: Mapping[int, int] | None = None
    for name in os.listdir("/proc/self/fd"):
        # Another thread may close it at any time. A duplicate would keep the connection open, so use the number itself.
        try:
            found = socket.socket(fileno=int(name))
        except OSError:
            continue  # not a socket, or closed
        try:
            state = _state(found)
            if state == _ESTABLISHED and {found.getsockname()[1], found.getpeername()[1]} & set(ports):
                changed += _set(found, _CONNECTED)
            elif state == _SYN_SENT:
                connecting = _connecting() if connecting is None else connecting
                if connecting.get(os.fstat(found.fileno()).st_ino) in ports:
                    changed += _set(found, _CONNECTING)
        except OSError:
            continue  # closed
        finally:
            found.detach()
    return changed


def _state(found: socket.socket) -> int | None:
    """The state of a TCP connection; None for another socket."""
    if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
        return None
    return found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def _connecting() -> dict[int, int]:
    """The peers' ports of connections that are being established, by inode. The socket itself does not tell it yet."""
    found = {}
    for table in map(Path, ("/proc/self/net/tcp", "/proc/self/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else []:
            _, _, peer, state, *_, inode = line.split()[:10]
            if int(state, 16) == _SYN_SENT:
                found[int(inode)] = int(peer.rpartition(":")[2], 16)
    return found


def _set(found: socket.socket, options: Collection[tuple[int, int, int]]) -> bool:
    """Set the options unless the last one has its value; return whether they were set."""
    *_, (level, option, value) = options
    if found.getsockopt(level, option) == value:
        return False
    for level, option, value in options:
        found.setsockopt(level, option, value)
    return True
