"""Looks, while a replica is held up in a step, whether those are still there without whom it cannot go on.

TensorFlow tells of a lost replica only those who are receiving from it in a collective op. One that has received all,
and waits until its own part is fetched, would wait for whoever is gone until `stall_seconds`.

Gone is whose machine or pod refuses the connection, as one does while its task begins anew; a name server or a network
that fails for a while is no reason to give up.
"""

import itertools
import threading
from collections.abc import Callable, Mapping

from trainer.cluster import peers

STALLED_SECONDS = 1.0
"""Seconds without progress after which it looks; a replica that gets on looks at nobody."""
BETWEEN_LOOKS = 0.5
"""Seconds; one that begins anew listens to nobody for more than two of these."""
AT_A_LOOK = 8
"""The most that one look asks, as all replicas of a large circle may look at the same time."""


class PeerMonitor:
    """Acts once, in a thread of its own, when somebody is gone; a context manager that waits for the end of that."""

    def __init__(self, others: Mapping[str, str], stalled_for: Callable[[], float], act: Callable[[], None]) -> None:
        """Looks at the others' addresses ("HOST:PORT") by their names, when held up for so many seconds."""
        self._others, self._stalled_for, self._act = others, stalled_for, act
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lookout", daemon=True)
        self.found = ""
        """Who is gone."""

    def __enter__(self) -> "PeerMonitor":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        turns = itertools.cycle(self._others.items())
        while not self._over.wait(BETWEEN_LOOKS):
            if self._stalled_for() < STALLED_SECONDS:
                continue
            asked = dict(itertools.islice(turns, min(AT_A_LOOK, len(self._others))))
            probe_errors = zip(asked.items(), peers.probe_errors(list(asked.values())), strict=True)
            gone = [f"{name} at {address} is gone" for (name, address), why in probe_errors if why == peers.REFUSED]
            if gone and not self._over.is_set():
                self.found = gone[0]
                self._act()
                return
