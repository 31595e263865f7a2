"""Whether the cluster's DNS knows the tasks: it is asked for the name of each one that runs, until it has answered.

`supervise` calls it from one thread. An answer may take many seconds, so each question has a thread of its own.
"""

import socket
import threading
import time
from collections.abc import Iterable

from trainer.supervisor.pods import Pod
from trainer.supervisor.run import Run

BETWEEN_QUESTIONS = 5.0
PATIENCE = 20.0
"""Seconds for a new name to be known everywhere: DNS servers remember for a while that there was none."""


class Names:
    """The names of a run's tasks."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: set[str] = set()
        self._hosts: dict[str, str] = {}
        self._asked_first: dict[str, float] = {}
        self._asked_last: dict[str, float] = {}

    def ask(self, pods: Iterable[Pod]) -> None:
        """Ask for those that run and are not known yet."""
        now = time.monotonic()
        for pod in pods:
            if not pod.running or pod.name in self._known or self._run.roles[pod.role].job:  # nobody looks for a client
                continue
            self._hosts[pod.name] = f"{pod.name}.{self._run.stateful_set(pod.role)}"
            self._asked_first.setdefault(pod.name, now)
            if now - self._asked_last.get(pod.name, 0) > BETWEEN_QUESTIONS:
                self._asked_last[pod.name] = now
                threading.Thread(target=self._ask, args=(pod.name,), daemon=True).start()

    def unknown(self) -> dict[str, str]:
        """By pod: the host names that DNS should know by now and does not."""
        now = time.monotonic()
        return {
            pod: self._hosts[pod]
            for pod, since in self._asked_first.items()
            if pod not in self._known and now - since > PATIENCE
        }

    def _ask(self, pod: str) -> None:
        try:
            socket.getaddrinfo(self._hosts[pod], None)
        except OSError:
            return
        self._known.add(pod)
