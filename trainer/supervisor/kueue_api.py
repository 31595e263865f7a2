"""What the supervisor reads and writes of Kueue: the run's Workload, flavors, and the gates of the tasks' pods."""

import concurrent.futures
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from lightkube import ApiError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.resources.apps_v1 import StatefulSet
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.resources.scheduling_v1 import PriorityClass
from lightkube.types import PatchType

from trainer.supervisor import kueue
from trainer.supervisor.changes import Changes, WorkloadObserved
from trainer.supervisor.connection import WATCH_SECONDS, Connection
from trainer.supervisor.kueue import Placement, Workload
from trainer.supervisor.ownership import Ownership
from trainer.supervisor.run import Run

WORKLOAD = create_namespaced_resource("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
FLAVOR = create_global_resource("kueue.x-k8s.io", "v1beta2", "ResourceFlavor", "resourceflavors")
_CALLS = 8
"""Pods that are changed at the same time."""


class UnreadableError(Exception):
    """An object of the cluster is absent, or the supervisor may not read it. The message says what to do."""

    def __init__(self, what: str, resource: str, reason: str) -> None:
        super().__init__(
            f"the supervisor cannot read {what} ({reason}): create it, or bind a ClusterRole that gets {resource}, "
            "as in docs/scheduling.md"
        )


def watch(run: Run, connection: Connection, changes: Changes) -> None:
    """Put each change of the run's Workload into the queue."""
    fields: dict[str, Any] = {"metadata.name": run.fullname}
    try:
        listed = connection.client.list(WORKLOAD, fields=fields)
        found = next((kueue.observe(each) for each in listed), None)
    except ApiError as error:
        if error.status.code == 404:  # Kueue has been removed
            changes.put(WorkloadObserved(None))
        raise
    changes.put(WorkloadObserved(found))
    for kind, each in connection.client.watch(
        WORKLOAD, fields=fields, resource_version=listed.resourceVersion, server_timeout=WATCH_SECONDS
    ):
        changes.put(WorkloadObserved(None if kind == "DELETED" else kueue.observe(each)))


class KueueApi:
    """The calls that one run needs. Each is repeated by the next passes of the loop if it is refused."""

    def __init__(self, run: Run, connection: Connection, ownership: Ownership) -> None:
        self._run, self._connection, self._client = run, connection, connection.client
        self._ownership = ownership

    def _attempt(self, call: Callable[[], object]) -> bool:
        """Make a call that the next passes repeat, if this supervisor owns the run; return whether it succeeded."""

        def check_first() -> None:
            self._ownership.check()
            call()

        return self._connection.attempt_in_pass(check_first)

    def create(self) -> bool:
        """Create the run's Workload, which is deleted together with the notes; return whether it is created.

        Raises:
            UnreadableError: the value of its priority class cannot be read.
        """
        return self._attempt(self._create)

    def _create(self) -> None:
        run = self._run
        labels: dict[str, Any] = {"app.kubernetes.io/name": run.chart}  # Argo CD may set the instance
        roles: dict[str, str] = {run.stateful_set(role): role for role in (run.gang.members if run.gang else ())}
        templates = {
            roles[each.metadata.name]: each.spec.template.to_dict()
            for each in self._client.list(StatefulSet, labels=labels)
            if each.metadata and each.spec and each.metadata.name in roles
        }
        if len(templates) < len(roles):  # an installation that was refused half-way
            return
        notes = self._client.get(ConfigMap, f"{run.fullname}-run").metadata
        uid = (notes and notes.uid) or ""
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": f"{run.fullname}-run", "uid": uid}
        name = kueue.priority_class(templates)
        priority = self._priority(name) if name else 0
        self._client.create(WORKLOAD(**kueue.manifest(run, templates, owner, priority)))

    def _priority(self, name: str) -> int:
        found = self._read(PriorityClass, name, f"the PriorityClass {name} of priorityClassName", "priorityclasses")
        return found.value or 0

    def _read(self, kind: Any, name: str, what: str, resource: str) -> Any:
        try:
            return self._client.get(kind, name)
        except ApiError as error:
            if error.status.code in (403, 404):
                raise UnreadableError(what, resource, str(error.status.message)) from None
            raise

    def delete(self) -> bool:
        """Delete the run's Workload, which frees its quota."""
        return self._attempt(lambda: self._client.delete(WORKLOAD, self._run.fullname))

    def set_conditions(
        self, workload: Workload, conditions: Mapping[str, tuple[bool, str, str]], *, frees_quota: bool = False
    ) -> bool:
        """Set conditions of the Workload: status, reason and message, by type; unless it has changed meanwhile."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
        changed = {
            kind: {
                "type": kind,
                "status": str(status),
                "reason": reason,
                "message": message,
                "lastTransitionTime": now,
            }
            for kind, (status, reason, message) in conditions.items()
        }
        status: dict[str, Any] = {"conditions": list({**workload.conditions, **changed}.values())}
        patch = {
            "metadata": {"resourceVersion": workload.version},
            "status": status | ({"admission": None} if frees_quota else {}),
        }
        return self._patch(WORKLOAD.Status, patch)

    def annotate(self, annotations: Mapping[str, str]) -> bool:
        """Set annotations of the Workload."""
        return self._patch(WORKLOAD, {"metadata": {"annotations": dict(annotations)}})

    def annotate_pod(self, name: str, annotations: Mapping[str, str]) -> bool:
        """Set annotations of the pod of a task."""
        change = {"metadata": {"annotations": dict(annotations)}}
        return self._attempt(lambda: self._client.patch(Pod, name, change, patch_type=PatchType.MERGE))

    def _patch(self, kind: Any, change: Mapping[str, Any]) -> bool:
        name = self._run.fullname
        return self._attempt(lambda: self._client.patch(kind, name, change, patch_type=PatchType.MERGE))

    def flavor(self, name: str) -> Placement:
        """What a flavor adds to pods.

        Raises:
            UnreadableError: the supervisor may not read it, or it does not exist.
        """
        what = f"the flavor {name}, which may choose nodes"
        return kueue.of_flavor(self._read(FLAVOR, name, what, "resourceflavors"))

    def open_gates(self, pods: Iterable[tuple[str, Placement]]) -> None:
        """Remove the scheduling gate of these pods, and add on which nodes they run."""

        def call(pod: str, placement: Placement) -> Callable[[], object]:
            return lambda: self._open_gate(pod, placement)

        with concurrent.futures.ThreadPoolExecutor(_CALLS) as pool:
            list(pool.map(self._attempt, [call(pod, placement) for pod, placement in pods]))

    def _open_gate(self, name: str, placement: Placement) -> None:
        spec: dict[str, Any] = {"schedulingGates": [{"$patch": "delete", "name": kueue.GATE}]}
        if placement.node_selector:
            spec["nodeSelector"] = dict(placement.node_selector)
        if placement.tolerations:
            # A patch replaces this list as a whole, and the API server refuses to remove one.
            fields: dict[str, Any] = {"metadata.name": name}
            found = next(iter(self._client.list(Pod, fields=fields)), None)
            if found is None:  # deleted meanwhile
                return
            present = [each.to_dict() for each in (found.spec and found.spec.tolerations) or []]
            spec["tolerations"] = [*present, *(each for each in placement.tolerations if each not in present)]
        metadata = {"labels": dict(placement.labels), "annotations": dict(placement.annotations)}
        self._client.patch(Pod, name, {"metadata": metadata, "spec": spec})
