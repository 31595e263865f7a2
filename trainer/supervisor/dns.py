"""Whether the supervisor's pod can resolve the tasks' host names: look up each running task until it resolves.

That warns and decides nothing: a network policy may allow the tasks what it does not allow the supervisor.

`supervise` calls this from one thread. A lookup may take many seconds, so a few other threads do them.
"""

import queue
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from trainer.supervisor.pods import Pod
from trainer.supervisor.run import Run

LOOKUP_INTERVAL = 10.0
"""Between two lookups of a name, and before the first. The DNS learns a pod's name a moment after the pod has started.
A lookup before that fails, with two queries for each domain of the resolver's search list."""
GRACE_SECONDS = 20.0
"""Time for a new name to reach all DNS servers: they cache for a while that a name does not exist."""
THREADS = 8


@dataclass(frozen=True)
class Unresolved:
    """A host name that does not resolve although the grace period is over."""

    host: str
    since: float
    """When this supervisor first saw the pod run, in seconds since 1970."""


class DnsProbe:
    """Looks up the host names of a run's tasks. Its threads never end."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._hosts: dict[str, str] = {}
        self.forget()
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        for _ in range(THREADS):
            threading.Thread(target=self._look_up_forever, daemon=True).start()

    def forget(self) -> None:
        """Forget what has resolved: other pods follow."""
        self._resolved: set[str] = set()
        self._since: dict[str, float] = {}
        """By task, until its name has resolved."""
        self._next_lookup: dict[str, float] = {}

    def look_up(self, pods: Iterable[Pod]) -> None:
        """Look up the running pods whose names have not resolved yet."""
        now = time.time()
        for pod in pods:
            if self.has_resolved(pod):
                self._since.pop(pod.name, None)
                continue
            if not pod.running:
                continue
            self._hosts[pod.name] = f"{pod.name}.{self._run.stateful_set(pod.role)}"
            self._since.setdefault(pod.name, now)
            if now >= self._next_lookup.setdefault(pod.name, now + LOOKUP_INTERVAL):
                self._next_lookup[pod.name] = float("inf")  # until this lookup has ended
                self._wanted.put(pod.name)

    def has_resolved(self, pod: Pod) -> bool:
        """Whether the pod's name has resolved, or need not: no task connects to a client."""
        return pod.name in self._resolved or bool(self._run.roles[pod.role].job)

    def unresolved(self) -> dict[str, Unresolved]:
        """By task: the host names that do not resolve although the grace period is over."""
        now = time.time()
        return {
            pod: Unresolved(self._hosts[pod], since)
            for pod, since in self._since.items()
            if pod not in self._resolved and now - since > GRACE_SECONDS
        }

    def _look_up_forever(self) -> None:
        while True:
            pod = self._wanted.get()
            try:
                socket.getaddrinfo(self._hosts[pod], None)
                self._resolved.add(pod)
            except OSError:
                self._next_lookup[pod] = time.time() + LOOKUP_INTERVAL
