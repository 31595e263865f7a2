"""Whether the cluster's DNS resolves the tasks' host names: look up each running task until its name resolves.

`supervise` calls this from one thread. A lookup may take many seconds, so each one has its own thread.
"""

import socket
import threading
import time
from collections.abc import Iterable

from trainer.supervisor.pods import Pod
from trainer.supervisor.run import Run

LOOKUP_INTERVAL = 5.0
GRACE_SECONDS = 20.0
"""Time for a new name to reach all DNS servers: they cache for a while that a name does not exist."""


class DnsProbe:
    """Looks up the host names of a run's tasks."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._resolved: set[str] = set()
        self._hosts: dict[str, str] = {}
        self._first_lookup: dict[str, float] = {}
        self._last_lookup: dict[str, float] = {}

    def look_up(self, pods: Iterable[Pod]) -> None:
        """Look up the running pods whose names have not resolved yet."""
        now = time.monotonic()
        for pod in pods:
            # No task connects to a client, so its name need not resolve.
            if not pod.running or pod.name in self._resolved or self._run.roles[pod.role].job:
                continue
            self._hosts[pod.name] = f"{pod.name}.{self._run.stateful_set(pod.role)}"
            self._first_lookup.setdefault(pod.name, now)
            if now - self._last_lookup.get(pod.name, 0) > LOOKUP_INTERVAL:
                self._last_lookup[pod.name] = now
                threading.Thread(target=self._look_up, args=(pod.name,), daemon=True).start()

    def unresolved(self) -> dict[str, str]:
        """By task: the host names that do not resolve although the grace period is over."""
        now = time.monotonic()
        return {
            pod: self._hosts[pod]
            for pod, since in self._first_lookup.items()
            if pod not in self._resolved and now - since > GRACE_SECONDS
        }

    def _look_up(self, pod: str) -> None:
        try:
            socket.getaddrinfo(self._hosts[pod], None)
        except OSError:
            return
        self._resolved.add(pod)
