"""What the supervisor writes to the Kubernetes API, and what it reads once. `watches` and `task_logs` read the rest.

Writes: the scale of the run's StatefulSets and of TensorBoard, the service accounts of TensorBoard and of stages,
`suspend` of the Jobs of the client and of stages, `backoffLimit` and annotations of the supervisor's own Job, the data
of the ConfigMaps FULLNAME-run and FULLNAME-ended, and events. It deletes pods of tasks, to replace them. If the data is
watched, it creates and deletes the Jobs of stages.
"""

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, TypeVar, cast

from lightkube import ApiError
from lightkube.models.core_v1 import EventSource, ObjectReference
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.resources.apps_v1 import Deployment, StatefulSet
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Event, Pod, ServiceAccount
from lightkube.types import CascadeType, PatchType

from trainer.supervisor import stages
from trainer.supervisor.connection import STOPPED, Connection, StoppedError, is_refusal
from trainer.supervisor.crashes import CRASHES, Crashes, parse_crashes
from trainer.supervisor.ownership import Ownership, may_take_over
from trainer.supervisor.run import Run, Stage
from trainer.supervisor.scales import TENSORBOARD
from trainer.supervisor.watches import task_labels
from trainer.text import truncate

logger = logging.getLogger(__name__)

ENDLESS_RETRIES = 2**31 - 1
_ATTEMPTS = 5
_ABSENT_SECONDS = 5.0
_ABSENT_REMINDER_SECONDS = 60.0
COMPLETE = "it does not exist; complete the installation with `helm upgrade`"
"""The remedy if an object of the release is absent."""
_Result = TypeVar("_Result")


class KubernetesApi:
    """The calls that one run needs, in its namespace."""

    def __init__(self, run: Run, connection: Connection) -> None:
        self.run = run
        self._connection = connection
        self._client = connection.client
        self.ownership = Ownership(run, connection)
        self._notes: ConfigMap | None = None

    def _owned(self, call: Callable[[], object]) -> Callable[[], object]:
        """The call, which is made only if this supervisor owns the run: others feel what it writes."""

        def check_first() -> object:
            self.ownership.check()
            return call()

        return check_first

    def set_scale(self, component: str, replicas: int) -> None:
        """Set the replicas of a role or of TensorBoard. An absent object is no error: watches show its absence."""
        try:
            self._connection.retry(lambda: self._patch_scale(component, replicas))
        except ApiError as error:
            if error.status.code != 404:
                raise

    def try_scale(self, component: str, replicas: int) -> bool:
        """Set the replicas of a role or of TensorBoard, unless that is refused now; return whether they are set."""
        return self._connection.attempt_in_pass(self._owned(lambda: self._patch_scale(component, replicas)))

    def _patch_scale(self, component: str, replicas: int) -> None:
        role = self.run.roles.get(component)
        if role and role.job:
            self._patch_spec(role.job, suspend=replicas == 0)
            return
        kind = StatefulSet.Scale if role else Deployment.Scale
        name, change = f"{self.run.fullname}-{component}", {"spec": {"replicas": replicas}}
        self._client.patch(kind, name, change, patch_type=PatchType.MERGE)

    def _patch_spec(self, job: str, **fields: bool | int) -> None:
        self._client.patch(Job, job, {"spec": fields}, patch_type=PatchType.MERGE)

    def provide_tensorboard_account(self, name: str, annotations: Mapping[str, str]) -> bool:
        """Create TensorBoard's service account, or update its annotations; return whether that succeeded.

        It is deleted together with the notes.
        """
        return self._provide_account(name, self._notes_as_owner(), annotations)

    def _notes_as_owner(self) -> OwnerReference:
        notes = (self._notes or self._read("run")).metadata or ObjectMeta()
        return OwnerReference(apiVersion="v1", kind="ConfigMap", name=notes.name or "", uid=notes.uid or "")

    def provide_stage_account(self, job: str, uid: str) -> bool:
        """Create the service account of a stage's Job, without which it has no pods; return whether that succeeded.

        It is deleted with the Job.
        """
        return self._provide_account(job, OwnerReference(apiVersion="batch/v1", kind="Job", name=job, uid=uid), {})

    def _provide_account(self, name: str, owner: OwnerReference, annotations: Mapping[str, str]) -> bool:
        """Create a service account without permissions, or update its annotations. It is deleted with its owner."""
        labels, both = dict(self.run.labels), {**self.run.annotations, **annotations}
        metadata = ObjectMeta(name=name, labels=labels, annotations=both, ownerReferences=[owner])
        account = ServiceAccount(metadata=metadata, automountServiceAccountToken=False)

        def provide() -> None:
            try:
                self._client.create(account)
            except ApiError as error:
                if error.status.reason != "AlreadyExists":
                    raise
                if annotations:
                    change = {"metadata": {"annotations": dict(annotations)}}
                    self._client.patch(ServiceAccount, name, change, patch_type=PatchType.MERGE)

        return self._connection.attempt_in_pass(self._owned(provide))

    def try_to_suspend(self, job: str, suspend: bool) -> None:
        """Suspend or resume the Job of a stage, unless that is refused now."""
        self._connection.attempt_in_pass(self._owned(lambda: self._patch_spec(job, suspend=suspend)))

    def try_to_end_stage(self, job: str) -> None:
        """Let the Job of a stage that is skipped be complete without a pod, unless that is refused now."""
        self._connection.attempt_in_pass(self._owned(lambda: self._patch_spec(job, completions=0, parallelism=0)))

    def create_stage_job(self, stage: Stage) -> None:
        """Create the Job of a stage for the run's version of the data, unless that is refused now.

        It is deleted together with the notes.
        """
        manifest = dict(stage.manifest or {})
        metadata = manifest["metadata"]
        annotations = {**metadata.get("annotations", {}), stages.MADE_FOR: stages.made_for(self.run, stage)}
        manifest["metadata"] = {
            **metadata,
            "annotations": annotations,
            "ownerReferences": [self._notes_as_owner().to_dict()],
        }
        job = cast(Job, Job.from_dict(manifest))
        self._connection.attempt_in_pass(self._owned(lambda: self._client.create(job)))

    def delete_job(self, name: str) -> None:
        """Delete a Job and its pods, unless that is refused now."""
        self._connection.attempt_in_pass(
            self._owned(lambda: self._client.delete(Job, name, cascade=CascadeType.BACKGROUND))
        )

    def stage_pods(self, job: str) -> list[Pod]:
        """The pods of a stage's Job, the newest last."""
        labels: dict[str, Any] = {"batch.kubernetes.io/job-name": job}
        found = self._connection.retry(lambda: list(self._client.list(Pod, labels=labels)))
        return sorted(found, key=lambda pod: str(pod.metadata and pod.metadata.creationTimestamp))

    def has_tensorboard(self) -> bool:
        """Whether a pod of TensorBoard exists."""
        labels = task_labels(self.run) | {"app.kubernetes.io/component": TENSORBOARD}
        return bool(self._connection.retry(lambda: list(self._client.list(Pod, labels=labels))))

    def delete_pod(self, name: str) -> bool:
        """Remove a pod without waiting for its node, and return whether it is removed.

        The supervisor may not remove a pod of a role that the release no longer has.
        """
        return self._connection.attempt(self._owned(lambda: self._client.delete(Pod, name, grace_period=0)))

    def replace_pod(self, name: str, uid: str) -> bool:
        """Delete a pod, unless another one has its name by now, and return whether it is deleted."""
        address = f"/api/v1/namespaces/{self._client.namespace}/pods/{name}"
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        return self._connection.attempt(
            self._owned(lambda: self._connection.raw.request("DELETE", address, json=options).raise_for_status())
        )

    def read_notes(self) -> dict[str, str]:
        """The data of the ConfigMap FULLNAME-run."""
        self._notes = self._read("run")
        return self._notes.data or {}

    def may_own(self, is_superseded: bool) -> bool:
        """Whether this supervisor may take the run over, or owns it."""
        self._notes = self._read("run")
        return may_take_over(self.run, self._notes, is_superseded)

    def ended_predecessor(self) -> str:
        """The name of the older Job that the release wants again, if it has ended; else, or if unknown, empty.

        Raises:
            SupersededError: another supervisor owns the run.
        """
        found: list[str] = []
        self._connection.attempt(lambda: found.append(self.ownership.ended_predecessor()))
        return found[0] if found else ""

    def update_notes(self, update: Callable[[Mapping[str, str]], Mapping[str, str | None]]) -> None:
        """Update the data of the ConfigMap FULLNAME-run from its current data; None removes a key."""

        def write() -> None:
            found, self._notes = self._notes or self._read("run"), None
            version = found.metadata and found.metadata.resourceVersion
            # With the version, the API server refuses a concurrent change (409), and the call is repeated.
            patch = {"metadata": {"resourceVersion": version}, "data": dict(update(found.data or {}))}
            self._notes = self._client.patch(ConfigMap, f"{self.run.fullname}-run", patch, patch_type=PatchType.MERGE)

        self._await("run", write)

    def update_ended(self, update: Callable[[Mapping[str, str]], Mapping[str, str | None]]) -> None:
        """Update the data of the ConfigMap FULLNAME-ended, if this supervisor owns the run; None removes a key."""

        def write() -> None:
            found = self._get("ended")
            self.ownership.begin_pass()
            self.ownership.check()  # after the read: a later owner's write changes the version, and is not overwritten
            version = found.metadata and found.metadata.resourceVersion
            change = {"metadata": {"resourceVersion": version}, "data": dict(update(found.data or {}))}
            self._client.patch(ConfigMap, f"{self.run.fullname}-ended", change, patch_type=PatchType.MERGE)

        self._await("ended", write)

    def _get(self, word: str) -> ConfigMap:
        return self._client.get(ConfigMap, f"{self.run.fullname}-{word}")

    def _read(self, word: str) -> ConfigMap:
        return self._await(word, lambda: self._get(word))

    def _await(self, word: str, call: Callable[[], _Result]) -> _Result:
        """Repeat a call that needs a ConfigMap until the ConfigMap exists."""
        reported = 0.0
        while True:
            try:
                return self._connection.retry(call)
            except ApiError as error:
                if error.status.code != 404:
                    raise
            if time.monotonic() - reported > _ABSENT_REMINDER_SECONDS or not reported:
                reported = time.monotonic()
                logger.info(f"waiting for the ConfigMap {self.run.fullname}-{word}: {COMPLETE}")
            if self._connection.stopping.wait(_ABSENT_SECONDS):
                raise StoppedError(STOPPED)

    def retry_job(self) -> None:
        """Let the supervisor's Job replace its pod without end. An earlier pod of the Job may have done so."""
        for _ in range(_ATTEMPTS):
            if self._connection.attempt(lambda: self._patch_job({"spec": {"backoffLimit": ENDLESS_RETRIES}})):
                return
            if self._connection.stopping.wait(1):
                raise StoppedError(STOPPED)

    def end_with_release(self) -> None:
        """Let `helm uninstall` delete this Job, of which Helm may not know after an upgrade that failed."""

        def own() -> None:
            self._patch_job({"metadata": {"ownerReferences": [self._notes_as_owner().to_dict()]}})

        self._connection.attempt(own)

    def fail_job(self) -> None:
        """Make the next failure of the supervisor's pod the last one of its Job.

        If that is refused again and again, as after an upgrade that failed half-way, the next pod of the Job tries it.
        """
        refusals = 0

        def fail() -> None:
            nonlocal refusals
            try:
                status = self._client.get(Job, self.run.job).status
                failed = (status and status.failed) or 0
                # A lower limit would end the Job at once, and remove this pod with its log.
                self._patch_job({"spec": {"backoffLimit": failed}})
            except ApiError as error:
                refusals += is_refusal(error)
                if refusals < _ATTEMPTS:
                    raise
                logger.warning(
                    f"the Job {self.run.job} cannot be ended, so it starts the supervisor again: "
                    f"{error.status.message}; complete or roll back the last upgrade, or delete the Job"
                )

        self._connection.retry(fail)

    def annotate_job(self, annotations: Mapping[str, str | None]) -> bool:
        """Set annotations of the supervisor's Job, and return whether they are set; None removes one.

        After an upgrade that was refused half-way, the supervisor may not change its Job.
        """
        return self._connection.attempt(lambda: self._patch_job({"metadata": {"annotations": dict(annotations)}}))

    def crashes(self) -> tuple[Crashes, int]:
        """The noted crashes of this Job's pods, and how many of these have failed; none if they cannot be read."""
        found: list[Job] = []
        self._connection.attempt(lambda: found.append(self._client.get(Job, self.run.job)))
        metadata, status = (found and found[0].metadata) or ObjectMeta(), found and found[0].status
        return parse_crashes((metadata.annotations or {}).get(CRASHES, "")), (status and status.failed) or 0

    def note_crashes(self, crashes: Crashes) -> None:
        """Note the crashes of this Job's pods in its annotation, whether this supervisor owns the run or not."""
        self.annotate_job({CRASHES: json.dumps(dataclasses.asdict(crashes))})

    def record_crash(self, sentence: str) -> None:
        """Create an event for a crash, whether this supervisor owns the run or not."""
        self._connection.attempt(lambda: self._create_event("Warning", "SupervisorCrashed", sentence))

    def _patch_job(self, change: Mapping[str, Any]) -> None:
        self._client.patch(Job, self.run.job, dict(change), patch_type=PatchType.MERGE)

    def record_event(self, kind: str, reason: str, message: str) -> None:
        """Create an event for the supervisor's Job. Events are best effort, so a failure is ignored.

        Raises:
            SupersededError: another supervisor owns the run.
        """
        self._connection.attempt(self._owned(lambda: self._create_event(kind, reason, message)))

    def _create_event(self, kind: str, reason: str, message: str) -> None:
        now = datetime.now(timezone.utc)
        job = ObjectReference(
            apiVersion="batch/v1",
            kind="Job",
            name=self.run.job,
            namespace=self._client.namespace,
            uid=self.run.job_uid,
        )
        event = Event(
            metadata=ObjectMeta(generateName=f"{self.run.job}-", namespace=self._client.namespace),
            involvedObject=job,
            type=kind,
            reason=reason,
            message=truncate(message, 1000),
            source=EventSource(component="distributed-tensorflow"),
            firstTimestamp=now,
            lastTimestamp=now,
            count=1,
        )
        self._client.create(event)
