"""Notices the loss of another replica while a replica is blocked in a step.

TensorFlow reports a lost replica only to replicas that are receiving from it in a collective op. A replica that has
received everything, and waits for the others to fetch its own part, would wait until `stall_seconds`, and so would one
whose peer restarts between two ops.

The kernel of a peer closes its connections when its process ends, so a connection to each watched peer tells at once.
The chief watches all replicas, and all watch the chief: when it gives up, they notice that. A peer whose connection was
closed is lost if its address refuses the next one. If it accepts that, another process may have taken the place of the
peer, or something between the two tasks has closed an idle connection; then steps go on to end.

A lost machine closes nothing: every replica also probes the others while it waits. A peer is lost when its machine or
pod refuses the connection, or has not answered for as long as TCP connections wait: those that received from it are
closed by then, and the group is lost. A failure of DNS does not count.
"""

import contextlib
import itertools
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from trainer.cluster import connections, peers

POLL_SECONDS = 0.1
"""How often the monitor looks at the connections. A step may last as long before a closed one counts."""
STALLED_SECONDS = 1.0
"""Seconds without progress after which the monitor starts to probe."""
USUAL_STEPS = 2
"""A peer whose connection was closed, and whose address answers, is lost after the time of so many steps without one,
at least STALLED_SECONDS."""
PROBE_INTERVAL_SECONDS = 0.5
MAX_PROBES = 8
"""Probes, and new connections, per interval. All replicas of a large collective group may probe at the same time."""


class Progress(Protocol):
    """The progress of this replica: what the monitor needs of the watchdog."""

    last_interval: float
    """The seconds between the last two steps."""

    def stalled_for(self) -> float:
        """Return the seconds since the last step."""


class PeerMonitor:
    """Calls `on_lost` once, in its own thread, when a peer is lost. A context manager that waits for that call."""

    def __init__(
        self,
        others: Mapping[str, str],
        watched: Mapping[str, str],
        progress: Progress,
        on_lost: Callable[[], None],
    ) -> None:
        """Monitor the other replicas.

        Args:
            others: Addresses ("HOST:PORT") by task name.
            watched: Those of them to which a connection is kept.
            progress: That of this replica.
            on_lost: Called when a peer is lost.
        """
        self._others, self._watched = others, watched
        self._progress, self._on_lost = progress, on_lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peer-monitor", daemon=True)
        self.lost = ""
        """A sentence that names the peer for whose loss `on_lost` was called; empty before."""

    def __enter__(self) -> "PeerMonitor":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        with contextlib.closing(_Connections(self._watched)) as kept:
            probes, probed, lost = self._probes(), 0.0, ""
            while not lost and not self._over.wait(POLL_SECONDS):
                lost = self._lost_connection(kept)
                if not lost and time.monotonic() - probed >= PROBE_INTERVAL_SECONDS:
                    kept.open_some()
                    lost, probed = next(probes), time.monotonic()
        if lost and not self._over.is_set():
            self.lost = lost
            self._on_lost()

    def _lost_connection(self, kept: "_Connections") -> str:
        """The sentence of a watched peer whose connection was closed, and that is lost; empty if there is none."""
        for name, closed in kept.closed().items():
            stalled = self._progress.stalled_for()
            ago, enough = time.monotonic() - closed, max(STALLED_SECONDS, USUAL_STEPS * self._progress.last_interval)
            if stalled < POLL_SECONDS:  # it may also end
                continue
            if min(stalled, ago) > enough or peers.probe_error(self._watched[name]) == peers.REFUSED:
                return f"{name} at {self._watched[name]} is gone"
            if ago - stalled > enough:
                kept.forget(name)
        return ""

    def _probes(self) -> Iterator[str]:
        """Probe some of the others each time while there is no progress; yield the sentence of a lost one, or ""."""
        rotation = itertools.cycle(self._others.items())
        silent_since: dict[str, float] = {}
        while True:
            lost = ""
            if self._progress.stalled_for() < STALLED_SECONDS:
                silent_since.clear()
                yield lost
                continue
            probed = dict(itertools.islice(rotation, min(MAX_PROBES, len(self._others))))
            began = time.monotonic()
            probe_errors = peers.probe_errors(list(probed.values()))
            for (name, address), error in zip(probed.items(), probe_errors, strict=True):
                if error is None or isinstance(error, peers.Unresolved):
                    silent_since.pop(name, None)
                    continue
                silent = time.monotonic() - silent_since.setdefault(name, began)
                if error == peers.REFUSED:
                    lost = f"{name} at {address} is gone"
                elif silent >= connections.TIMEOUT_SECONDS:
                    lost = f"{name} at {address} has not answered for {silent:.0f} s"
            yield lost


class _Connections:
    """Connections to some addresses, over which nothing is sent."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses
        self._selector = selectors.DefaultSelector()
        self._open: dict[socket.socket, str] = {}
        self._wanted = deque(addresses)
        self._closed: dict[str, float] = {}

    def open_some(self) -> None:
        """Connect to some of those to which there is no connection, if there are any."""
        if not self._wanted:
            return
        names = [self._wanted.popleft() for _ in range(min(MAX_PROBES, len(self._wanted)))]
        with ThreadPoolExecutor(max_workers=MAX_PROBES) as pool:
            for name, connection in zip(names, pool.map(self._connect, names), strict=True):
                if connection is None:
                    self._wanted.append(name)
                else:
                    self._open[connection] = name
                    self._selector.register(connection, selectors.EVENT_READ, connection)

    def _connect(self, name: str) -> socket.socket | None:
        try:
            return peers.connect(self._addresses[name])
        except (OSError, UnicodeError):
            return None

    def closed(self) -> Mapping[str, float]:
        """Those whose connection was closed, with the time of `time.monotonic` when that was seen first."""
        for key, _ in self._selector.select(0):
            connection: socket.socket = key.data
            with contextlib.suppress(OSError):
                if connection.recv(4096):  # what else a gRPC server sends at the begin
                    continue
            self._selector.unregister(connection)
            connection.close()
            name = self._open.pop(connection)
            self._closed.setdefault(name, time.monotonic())
            self._wanted.append(name)
        return dict(self._closed)

    def forget(self, name: str) -> None:
        """Forget that the connection to this one was closed."""
        self._closed.pop(name, None)

    def close(self) -> None:
        """Close all."""
        for connection in self._open:
            connection.close()
        self._selector.close()
