"""Probes the other replicas while a replica is blocked in a step, to detect a lost one.

TensorFlow reports a lost replica only to replicas that are receiving from it in a collective op. A replica that has
received everything, and waits for the others to fetch its own part, would wait until `stall_seconds`.

A replica is lost when its machine or pod refuses the connection, as it does while the task restarts, or has not
answered for as long as TCP connections wait: those that received from it are closed by then, and the group is lost. A
failure of DNS does not count.
"""

import itertools
import threading
import time
from collections.abc import Callable, Mapping

from trainer.cluster import connections, peers

STALLED_SECONDS = 1.0
"""Seconds without progress after which the monitor starts to probe."""
PROBE_INTERVAL_SECONDS = 0.5
"""A restarting task refuses connections for more than two of these intervals."""
MAX_PROBES = 8
"""Probes per interval. All replicas of a large collective group may probe at the same time."""


class PeerMonitor:
    """Calls `on_lost` once, in its own thread, when a peer is lost. A context manager that waits for that call."""

    def __init__(
        self, others: Mapping[str, str], stalled_for: Callable[[], float], on_lost: Callable[[], None]
    ) -> None:
        """Monitor the other replicas.

        Args:
            others: Addresses ("HOST:PORT") by task name.
            stalled_for: Returns the seconds without progress.
            on_lost: Called when a peer is lost.
        """
        self._others, self._stalled_for, self._on_lost = others, stalled_for, on_lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peer-monitor", daemon=True)
        self.lost = ""
        """A sentence that names the lost peer; empty if none is lost."""

    def __enter__(self) -> "PeerMonitor":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        rotation = itertools.cycle(self._others.items())
        silent_since: dict[str, float] = {}
        while not self._over.wait(PROBE_INTERVAL_SECONDS):
            if self._stalled_for() < STALLED_SECONDS:
                silent_since.clear()
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
                    self.lost = f"{name} at {address} is gone"
                elif silent >= connections.TIMEOUT_SECONDS:
                    self.lost = f"{name} at {address} has not answered for {silent:.0f} s"
            if self.lost and not self._over.is_set():
                self._on_lost()
                return
