"""What the measurement does in the simulated cluster, and what it reads there."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
from lightkube import ApiError, Client, KubeConfig
from lightkube.models.core_v1 import NodeStatus
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import StatefulSet
from lightkube.resources.core_v1 import Namespace, Node, Pod
from lightkube.types import PatchType

from hack.cluster import simulation
from hack.cluster.waiting import until

CHART = Path(__file__).parents[2] / "charts" / "distributed-tensorflow"
GPUS = 4
LARGE = {"cpu": "96", "memory": "768Gi", "nvidia.com/gpu": str(GPUS)}
"""What a node with GPUs has."""
LIMIT = 600.0
"""Seconds after which something counts as hung."""
TASKS = {"app.kubernetes.io/component": ("chief", "worker", "ps", "evaluator")}


class HungError(Exception):
    """Something did not happen within the limit."""


def wait(what: str, condition: Callable[[], object]) -> None:
    """Wait until the condition is true.

    Raises:
        HungError: it is not within the limit.
    """
    if not until(lambda: bool(condition()), LIMIT):
        raise HungError(f"after {LIMIT:.0f} s: not {what}")


def connect() -> Client:
    """The client of the simulated cluster, with all permissions."""
    return Client(KubeConfig.from_file(simulation.KUBECONFIG), timeout=httpx2.Timeout(60))


def create_nodes(
    client: Client,
    count: int,
    prefix: str = "node",
    room: Mapping[str, str] = LARGE,
    labels: Callable[[int], Mapping[str, str]] = lambda index: {},
) -> None:
    """Create simulated nodes, and wait until they take pods.

    Args:
        client: That of the cluster.
        count: How many.
        prefix: Their names are PREFIX-0, PREFIX-1, and so on.
        room: What each has for its pods.
        labels: The labels of a node, by its number, beside that of its name.
    """
    capacity = {"pods": "110", **room}

    def create(index: int) -> None:
        name = f"{prefix}-{index}"
        named = {"kubernetes.io/hostname": name, **labels(index)}
        metadata = ObjectMeta(name=name, labels=named, annotations={"kwok.x-k8s.io/node": "fake"})
        node = Node(metadata=metadata, status=NodeStatus(capacity=capacity, allocatable=capacity))
        wait(f"{name} created", lambda: _is_created(client, node))

    create(0)  # msgspec analyses a type at first use, and Python crashes if two threads do so
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(create, range(1, count)))

    def take_pods() -> bool:
        # Kubernetes itself removes the taint of a new node when the node is Ready.
        return not any(node.spec and node.spec.taints for node in client.list(Node, chunk_size=500))

    wait("all nodes take pods", take_pods)


def _is_created(client: Client, node: Node) -> bool:
    """Create a node; False if the API server is too busy, with which it may create it nevertheless."""
    try:
        client.create(node)
    except ApiError as error:
        if error.status.code in (429, 504):
            return False
        if error.status.code != 409:
            raise
    return True


def values(workers: int) -> dict[str, Any]:
    """The chart's values of a run with this number of workers, and a ps for ten of them."""
    return {
        "image": {"registry": "registry.example.com/team"},
        "worker": {"replicas": workers, "gpus": GPUS},
        "ps": {"replicas": max(1, workers // 10)},
        "chief": {"replicas": 1},
        "evaluator": {"replicas": 1},
        "trainingDirectory": {"nfs": {"server": "nfs.example.com", "path": "/models"}},
        # No simulated node runs the supervisor: it is a process of the measurement.
        "supervisor": {"podSpec": {"nodeSelector": {"distributed-tensorflow/none": "yes"}}},
    }


def counts(given: Mapping[str, Any]) -> dict[str, int]:
    """The number of tasks of each role in a run with these values."""
    return {role: given[role]["replicas"] for role in TASKS["app.kubernetes.io/component"]}


def tasks(given: Mapping[str, Any]) -> int:
    """The number of tasks of a run with these values."""
    return sum(counts(given).values())


def install(client: Client, release: str, namespace: str, given: Mapping[str, Any], folder: Path) -> float:
    """Install a release in a new namespace, and return the seconds that this took."""
    client.create(Namespace(metadata=ObjectMeta(name=namespace)))
    file = folder / f"{namespace}.json"
    file.write_text(json.dumps(given))
    began = time.monotonic()
    simulation.helm("install", release, str(CHART), f"--namespace={namespace}", f"--values={file}")
    return time.monotonic() - began


def render(release: str, given: Mapping[str, Any], folder: Path) -> tuple[float, str]:
    """The seconds that `helm template` takes, and the manifests."""
    file = folder / "render.json"
    file.write_text(json.dumps(given))
    began = time.monotonic()
    text = simulation.helm("template", release, str(CHART), f"--values={file}")
    return time.monotonic() - began, text


def are_ready(client: Client, namespace: str, count: int) -> bool:
    """Whether all tasks are Running, by the status of their StatefulSets, which costs less than a list of all pods."""
    found = client.list(StatefulSet, namespace=namespace)
    return sum((item.status and item.status.readyReplicas) or 0 for item in found) == count


def are_gone(client: Client, namespace: str) -> bool:
    """Whether no pod of a task exists."""
    labels: Any = TASKS
    return not next(iter(client.list(Pod, namespace=namespace, labels=labels, chunk_size=1)), None)


def end_task(client: Client, namespace: str, name: str, role: str) -> None:
    """Let a task end with code 0: its container has ended, and is parked in the next one."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    container = {
        "name": role,
        "image": "simulated",
        "imageID": "",
        "ready": True,
        "restartCount": 1,
        "state": {"running": {"startedAt": now}},
        "lastState": {"terminated": ended},
    }
    change = {"status": {"containerStatuses": [container]}}
    client.patch(Pod.Status, name, change, namespace=namespace, patch_type=PatchType.STRATEGIC)


def delete_pods(client: Client, namespace: str, names: Sequence[str], seconds: float) -> None:
    """Delete pods one after another, with this time between two."""
    for name in names:
        client.delete(Pod, name, namespace=namespace)
        time.sleep(seconds)


def requests(account: str) -> Counter[str]:
    """The requests of a service account so far, by verb and resource."""
    found: Counter[str] = Counter()
    seen: set[str] = set()
    for line in simulation.AUDIT.read_text().splitlines():
        request = json.loads(line)
        if request["user"]["username"] != account or request["auditID"] in seen:
            continue
        seen.add(request["auditID"])
        found[request["verb"]] += 1
    return found


def datagrams() -> int:
    """The UDP datagrams that have arrived in the sandbox: two for each query of DNS, which nothing else there uses."""
    lines = simulation.SANDBOX.run(["cat", "/proc/net/snmp"]).splitlines()
    names, numbers = (line.split() for line in lines if line.startswith("Udp:"))
    return int(dict(zip(names, numbers, strict=True))["InDatagrams"])
