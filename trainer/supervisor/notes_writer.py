"""Writes the notes to the cluster: at most every two seconds, because a thousand tasks may end in one."""

import dataclasses
import time
from collections.abc import Callable, Mapping

from trainer.supervisor.kubernetes_api import KubernetesApi
from trainer.supervisor.notes import Notes, run_of_tasks, to_data, to_ended
from trainer.supervisor.ownership import SupersededError, owns

INTERVAL = 2.0


class NotesWriter:
    """The notes of one supervisor, as they were last written."""

    def __init__(self, api: KubernetesApi, supervisor: str) -> None:
        self._api = api
        self._supervisor = supervisor
        self._written: Notes | None = None
        self._ended: tuple[str, Mapping[str, int]] | None = None
        self._at = 0.0

    def begin(self, begin: Callable[[Mapping[str, str]], Notes], take_over: bool) -> Notes:
        """Write the first notes of this supervisor, and return them.

        Args:
            begin: The notes that follow from the data that they replace. It is called again if these change meanwhile.
            take_over: Whether the data may be that of another supervisor, which stops at its next write.

        Raises:
            SupersededError: the data is that of another supervisor, and `take_over` is False.
        """
        return self._write(begin, take_over)

    def write(self, notes: Notes) -> Notes:
        """Write the notes if they have changed.

        Raises:
            SupersededError: another supervisor has taken over the run.
        """
        return self._write(lambda _: notes) if notes != self._written else notes

    def write_later(self, notes: Notes) -> Notes:
        """Write the notes if they have changed, and the last time was long enough ago.

        A changed state or scale is written at once, before the supervisor acts on it: the next supervisor would take a
        scale that is not in the notes for a user's wish.

        Raises:
            SupersededError: another supervisor has taken over the run.
        """
        before = self._written
        is_due = before is None or time.monotonic() - self._at >= INTERVAL
        acts = before is None or (notes.state, notes.scales) != (before.state, before.scales)
        return self.write(notes) if is_due or acts else notes

    def _write(self, after: Callable[[Mapping[str, str]], Notes], take_over: bool = False) -> Notes:
        notes = Notes()

        def update(data: Mapping[str, str]) -> dict[str, str | None]:
            nonlocal notes
            # During an upgrade two supervisors overlap for a moment. Only the later one may write.
            if not take_over and not owns(self._supervisor, data):
                raise SupersededError
            notes = dataclasses.replace(after(data), supervisor=self._supervisor, job=self._api.run.job)
            return to_data(notes, data)

        self._api.update_notes(update)
        waits = self._api.run.tasks_wait
        if (ended := (run_of_tasks(notes, waits), notes.finished)) != self._ended:
            self._api.update_ended(lambda data: to_ended(notes, waits, data))
            self._ended = ended
        self._written, self._at = notes, time.monotonic()
        return notes
