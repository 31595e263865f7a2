"""The logs of the run's tasks, as the kubelet has them."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import httpx2

from trainer.supervisor.connection import Connection
from trainer.supervisor.pods import parse_parked
from trainer.telemetry import report
from trainer.text import one_line, truncate

_GONE = "unable to retrieve container logs for "
"""The start of the kubelet's answer for a container that is gone."""

SILENT_SECONDS = 120.0
"""How long a log that is followed may be silent: then it is asked for again, as the connection may be dead."""
LONGEST_CAUSE = 300
_TRACEBACK = "Traceback (most recent call last)"


def cause_in(lines: Sequence[str]) -> str:
    """Why a program ended, as its last lines say: what the trainer reports, or the last exception; else nothing."""
    cause = ""
    traced = reported = False
    for line in lines:
        reported = reported and not report.read(line, "started", dict[str, Any])
        ended = report.read(line, "ended", dict[str, Any])
        if ended and isinstance(ended.get("reason"), str):
            cause, reported = ended["reason"], True
        traced = traced or line.startswith(_TRACEBACK)
        if traced and re.match(r"[A-Za-z_][\w.]*(:|$)", line):  # not indented: the exception after its frames
            traced, cause = False, cause if reported else line
    return truncate(one_line(cause).rstrip("."), LONGEST_CAUSE)


class TaskLogs:
    """Reads logs by the name of a pod and the role of its task, which is the name of the task's container."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def tail(self, pod: str, role: str, lines: int) -> list[str]:
        """The last lines of a task before it terminated, or else of its running container; empty if there are none."""
        # Between two requests the container may restart and be parked. The log is then the previous container's.
        for previous in ("true", "false", "true"):
            text = self._read(pod, role, lines, previous)
            if text is not None and not text.startswith(_GONE) and not parse_parked(text):
                return text.splitlines()
        return []

    def tail_both(self, pod: str, role: str, lines: int) -> list[str]:
        """The last lines of the previous container, then of the current one; empty if there are none."""
        # In this order: if the container restarts between the two requests, its log is the previous one in the second.
        current = self._read(pod, role, lines, "false") or ""
        previous = self._read(pod, role, lines, "true") or ""
        return [*previous.splitlines(), *current.splitlines()]

    def last_line(self, pod: str, role: str) -> str:
        """The last line of the current container, which may be parked; empty if it has no output."""
        return self._read(pod, role, 1, "false") or ""

    def follow(self, pod: str, role: str) -> Iterator[str]:
        """The last line of a task's log and those from now on, until its container ends or it is silent for a while."""
        parameters = {"container": role, "follow": "true", "tailLines": "1"}
        # lightkube's log() waits without a limit, even if the node's machine has disappeared.
        limit = httpx2.Timeout(30, read=SILENT_SECONDS)
        try:
            with self._connection.raw.stream("GET", self._address(pod), params=parameters, timeout=limit) as answer:
                if answer.is_success:
                    yield from answer.iter_lines()
        except httpx2.HTTPError:
            return

    def _address(self, pod: str) -> str:
        return f"/api/v1/namespaces/{self._connection.client.namespace}/pods/{pod}/log"

    def _read(self, pod: str, role: str, lines: int, previous: str) -> str | None:
        """The last lines of a container, or of its previous instance; None if the API server does not return them."""
        # lightkube's log() cannot read the log of a container's previous instance.
        parameters = {"container": role, "tailLines": str(lines), "previous": previous}
        try:
            answer = self._connection.raw.get(self._address(pod), params=parameters)
        except httpx2.HTTPError:
            return None
        return answer.text if answer.is_success else None
