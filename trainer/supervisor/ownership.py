"""Which supervisor of a run may change the cluster. At most one may, although a release can have several Jobs of them.

An upgrade that fails leaves the Job of the old supervisor beside the new one. The chart names the Job that the newest
release wants, in an annotation of the ConfigMap FULLNAME-run. Its supervisor takes the run over: it notes its pod there
as the owner. An owner looks at these notes before each write that others feel. Another supervisor waits, and does not
end: a rollback may want it again, and Helm does not start a Job again that is complete. Of two pods of one Job, as
after a node was cut off and is back, the one that began later owns the run, and the other one ends.

A rollback may also want a Job again that has ended. The owner then suspends the run before it goes.
"""

from collections.abc import Mapping
from typing import Any

from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap

from trainer.errors import ConfigurationError
from trainer.supervisor.connection import Connection, StoppedError
from trainer.supervisor.notes import Notes, parse
from trainer.supervisor.run import Run

WANTED = "distributed-tensorflow/supervisor"
"""The annotation with the name of the Job that the newest release wants, from templates/supervisor/configmaps.yaml."""


class SupersededError(StoppedError):
    """Another supervisor has taken over the run."""

    def __init__(self) -> None:
        super().__init__("another supervisor has taken over the run")


class Ownership:
    """What one supervisor knows about the owner of its run."""

    def __init__(self, run: Run, connection: Connection) -> None:
        self._run, self._connection = run, connection
        self._is_confirmed = False

    def begin_pass(self) -> None:
        """Forget what is known: the next write looks again."""
        self._is_confirmed = False

    def check(self) -> None:
        """Check that this supervisor owns the run: once a pass, and only in a pass that writes.

        Raises:
            SupersededError: another supervisor owns it.
            lightkube.ApiError: the notes cannot be read, so nothing may be written.
        """
        if not self._is_confirmed:
            self._find_own()
            self._is_confirmed = True

    def ended_predecessor(self) -> str:
        """The name of the older Job that the release wants again, if it has ended; empty otherwise.

        Helm does not start it again, and a rollback deletes this supervisor's Job: nothing frees the tasks then.

        Raises:
            SupersededError: another supervisor owns the run.
            lightkube.ApiError: the notes or the Jobs cannot be read.
        """
        wanted = _wanted_job(self._find_own())
        other = self._job(wanted) if wanted not in (None, self._run.job) else None
        if other is None or not _has_ended(other):
            return ""
        own = self._job(self._run.job)
        # A younger one has ended without taking the run over: this supervisor keeps it.
        is_older = own is None or _created(other) < _created(own)
        return wanted or "" if is_older else ""

    def _find_own(self) -> ConfigMap:
        """The ConfigMap with the notes, which are this supervisor's. Raises as `check`."""
        found = self._connection.client.get(ConfigMap, f"{self._run.fullname}-run")
        if not owns(self._run.supervisor, found.data or {}):
            raise SupersededError
        return found

    def _job(self, name: str | None) -> Job | None:
        fields: dict[str, Any] = {"metadata.name": name}  # a list, because the Role may not name this Job
        return next(iter(self._connection.client.list(Job, fields=fields)), None)


def owns(supervisor: str, data: Mapping[str, str]) -> bool:
    """Whether the notes in this data are those of the supervisor in the pod with this uid."""
    return _owner(data).supervisor == supervisor


def may_take_over(run: Run, found: ConfigMap, is_superseded: bool) -> bool:
    """Whether a supervisor may become the owner, or is it.

    An upgrade that fails early names a Job that it has not created. The present Job then keeps the run.

    Args:
        run: The run, with the supervisor's Job.
        found: The ConfigMap FULLNAME-run.
        is_superseded: Whether another supervisor has taken the run over from this one.

    Raises:
        StoppedError: a newer pod of the same Job has taken the run over: this one would only take it back.
    """
    owner = _owner(found.data or {})
    if is_superseded and owner.job == run.job and owner.supervisor != run.supervisor:
        raise StoppedError(f"the Job {run.job} has a newer pod, which supervises the run")
    wanted = _wanted_job(found)
    if wanted is None:  # somebody has created this ConfigMap anew: the first to come owns the run
        return not is_superseded
    return run.job in (wanted, owner.job)


def _wanted_job(found: ConfigMap) -> str | None:
    return ((found.metadata and found.metadata.annotations) or {}).get(WANTED)


def _has_ended(job: Job) -> bool:
    conditions = (job.status and job.status.conditions) or []
    return any(each.type in ("Complete", "Failed") and each.status == "True" for each in conditions)


def _created(job: Job) -> float:
    return job.metadata.creationTimestamp.timestamp() if job.metadata and job.metadata.creationTimestamp else 0.0


def _owner(data: Mapping[str, str]) -> Notes:
    try:
        return parse(data)
    except ConfigurationError:  # they are those of a later version
        return Notes(supervisor="unknown")
