"""Notices the loss of another replica while a replica is blocked in a step.

TensorFlow reports a lost replica only to replicas that are receiving from it in a collective op. A replica that has
received everything, and waits for the others to fetch its own part, would wait until `stall_seconds`, and so would one
whose peer restarts between two ops.

The kernel of a peer closes its connections when its process ends, so a connection to each watched peer tells at once.
The chief watches all replicas, and all watch the chief: when it gives up, they notice that. Something between two tasks
may close an idle connection, too. Therefore a closed one means that the peer is lost if its address refuses the next
connection, or no step ends for a while after that. A lost machine closes nothing: every replica also probes the others
while it waits. A peer is lost when its machine or pod refuses the connection, or has not answered for as long as TCP
connections wait: those that received from it are closed by then, and the group is lost. A failure of DNS does not
count.
"""

import contextlib
import itertools
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from trainer.cluster import connections, peers

POLL_SECONDS = 0.1
"""How often the monitor looks at the connections. A step may last as long before a closed one counts."""
STALLED_SECONDS = 1.0
"""Seconds without progress after which the monitor starts to probe, or after which a closed connection counts."""
PROBE_INTERVAL_SECONDS = 0.5
MAX_PROBES = 8
"""Probes per interval. All replicas of a large collective group may probe at the same time."""


class PeerMonitor:
    """Calls `on_lost` once, in its own thread, when a peer is lost. A context manager that waits for that call."""

    def __init__(
        self,
        others: Mapping[str, str],
        watched: Mapping[str, str],
        stalled_for: Callable[[], float],
        on_lost: Callable[[], None],
    ) -> None:
        """Monitor the other replicas.

        Args:
            others: Addresses ("HOST:PORT") by task name.
            watched: Those of them to which a connection is kept.
            stalled_for: Returns the seconds without progress.
            on_lost: Called when a peer is lost.
        """
        self._others, self._watched = others, watched
        self._stalled_for, self._on_lost = stalled_for, on_lost
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
            probes, probed, lost = self._probes(), time.monotonic(), ""
            while not lost and not self._over.wait(POLL_SECONDS):
                lost = self._lost_connection(kept)
                if not lost and time.monotonic() - probed >= PROBE_INTERVAL_SECONDS:
                    lost, probed = next(probes), time.monotonic()
        if lost and not self._over.is_set():
            self.lost = lost
            self._on_lost()

    def _lost_connection(self, kept: "_Connections") -> str:
        """The sentence of a watched peer whose connection was closed, and that is lost; empty if there is none."""
        for name, closed in kept.closed().items():
            ago, stalled = time.monotonic() - closed, self._stalled_for()
            if stalled < POLL_SECONDS:  # it may also end
                continue
            error = peers.probe_error(self._watched[name])
            if error == peers.REFUSED or (ago >= STALLED_SECONDS and stalled >= ago):
                return f"{name} at {self._watched[name]} is gone"
            if error is None and stalled < ago:  # a step has ended since then
                kept.open(name)
        return ""

    def _probes(self) -> Iterator[str]:
        """Probe some of the others each time while there is no progress; yield the sentence of a lost one, or ""."""
        rotation = itertools.cycle(self._others.items())
        silent_since: dict[str, float] = {}
        while True:
            lost = ""
            if self._stalled_for() < STALLED_SECONDS:
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
    """A connection to each of some addresses, over which nothing is sent."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses
        self._selector = selectors.DefaultSelector()
        self._open: dict[socket.socket, str] = {}
        self._closed: dict[str, float] = {}
        for name in addresses:
            self.open(name)

    def open(self, name: str) -> None:
        """Connect to one of them. One that cannot be connected to is not watched."""
        self._closed.pop(name, None)
        with contextlib.suppress(OSError, UnicodeError):
            connection = peers.connect(self._addresses[name])
            self._open[connection] = name
            self._selector.register(connection, selectors.EVENT_READ, connection)

    def closed(self) -> Mapping[str, float]:
        """Those whose connection was closed, with the time of `time.monotonic` when that was seen."""
        for key, _ in self._selector.select(0):
            connection: socket.socket = key.data
            with contextlib.suppress(OSError):
                if connection.recv(4096):  # what else a gRPC server sends at the begin
                    continue
            self._selector.unregister(connection)
            connection.close()
            self._closed[self._open.pop(connection)] = time.monotonic()
        return dict(self._closed)

    def close(self) -> None:
        """Close all."""
        for connection in self._open:
            connection.close()
        self._selector.close()
