"""A run in a queue of Kueue, whose part the measurement plays: the API without Kueue, admissions and evictions."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkube import Client
from lightkube.generic_resource import create_namespaced_resource
from lightkube.types import PatchType

from hack.cluster import simulation

CRDS = Path(simulation.__file__).with_name("kueue-crds.yaml")
WORKLOAD = create_namespaced_resource("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
VALUES = {"scheduling": {"gang": "kueue", "queue": "research"}}
"""The chart's values of a run in a queue."""
FLAVOR = """\
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: scale}
spec:
  tolerations: [{key: scale, operator: Exists}]
"""


def prepare(folder: Path) -> None:
    """Create Kueue's API, and a flavor that supervisors may read."""
    flavor = folder / "flavor.yaml"
    flavor.write_text(FLAVOR)
    simulation.kubectl("apply", f"--filename={CRDS}")
    simulation.kubectl("wait", "--for=condition=Established", "--timeout=60s", f"--filename={CRDS}")
    simulation.kubectl("get", "workloads.kueue.x-k8s.io")  # waits, as lightkube does not, while the API is initializing
    simulation.kubectl("apply", f"--filename={flavor}")
    reader = ["clusterrole", "queue-reader", "--verb=get", "--resource=resourceflavors.kueue.x-k8s.io"]
    simulation.kubectl("create", *reader)
    group = "--group=system:serviceaccounts"
    simulation.kubectl("create", "clusterrolebinding", "queue-reader", "--clusterrole=queue-reader", group)


def waits(client: Client, release: str, namespace: str) -> bool:
    """Whether the run's Workload waits for its admission."""
    fields: dict[str, Any] = {"metadata.name": release}
    found: Any = next(iter(client.list(WORKLOAD, namespace=namespace, fields=fields)), None)
    return found is not None and not (found.status or {}).get("admission")


def admit(client: Client, release: str, namespace: str, counts: Mapping[str, int]) -> None:
    """Admit the Workload, with so many tasks of each role."""
    assigned = [{"name": role, "count": count, "flavors": {"cpu": "scale"}} for role, count in counts.items()]
    admission = {"clusterQueue": "scale", "podSetAssignments": assigned}
    conditions = {"QuotaReserved": "True", "Admitted": "True", "Evicted": "False"}
    _set_status(client, release, namespace, conditions, admission=admission)


def evict(client: Client, release: str, namespace: str) -> None:
    """Evict the Workload, as for one with a higher priority."""
    _set_status(client, release, namespace, {"QuotaReserved": "True", "Admitted": "True", "Evicted": "True"})


def _set_status(client: Client, release: str, namespace: str, conditions: Mapping[str, str], **more: Any) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    common = {"reason": "Preempted", "message": "by the measurement", "lastTransitionTime": now}
    listed = [{"type": kind, "status": status, **common} for kind, status in conditions.items()]
    change = {"status": {"conditions": listed, **more}}
    client.patch(WORKLOAD.Status, release, change, namespace=namespace, patch_type=PatchType.MERGE)
