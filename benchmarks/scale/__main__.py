"""`python -m benchmarks.scale --workers 10 100 1000`: install runs on simulated nodes, and print a table.

For each number of workers a cluster is started. The run and the same pods without a supervisor, in plain StatefulSets,
are installed one after the other, in as many rounds as asked for. In the last round some pods are deleted, another
supervisor takes the run over, and the chief ends. Then a run in a queue of Kueue is admitted and evicted several times.
"""

import argparse
import compileall
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from lightkube import Client
from lightkube.resources.core_v1 import ConfigMap, Secret

from benchmarks.scale import cluster, queue, supervisor
from benchmarks.scale.supervisor import Supervisor, Usage
from hack.cluster import simulation
from hack.cluster.errors import ClusterError, UsageError
from hack.cluster.progress import step

RELEASE = "mnist"
DELETIONS = 20
NODES_EACH = 10
"""So many tasks of roles without GPUs share a node."""


@dataclass
class Measured:
    """The figures of one number of workers."""

    workers: int
    tasks: int = 0
    render: float = 0.0
    install: float = 0.0
    release: float = 0.0
    """kB of the release in the API."""
    largest: tuple[str, float] = ("", 0.0)
    """The largest object, and its kB."""
    running: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    started: Usage = field(default_factory=lambda: Usage(0.0, 0.0))
    requests: Mapping[str, int] = field(default_factory=dict)
    queries: float = 0.0
    deletion: float = 0.0
    taken_over: Usage = field(default_factory=lambda: Usage(0.0, 0.0))
    end: float = 0.0
    deleted: float = 0.0
    admitted: list[float] = field(default_factory=list)
    evicted: list[float] = field(default_factory=list)
    queued: Usage = field(default_factory=lambda: Usage(0.0, 0.0))
    """The supervisor's CPU time for each admission and eviction, and its peak after the last."""
    queued_requests: float = 0.0
    """The supervisor's requests for each task, admission and eviction."""


def measure(workers: int, rounds: int, admissions: int, folder: Path) -> Measured:
    """Measure a run with this number of workers, in a cluster of its own."""
    given = cluster.values(workers)
    found = Measured(workers, cluster.tasks(given))
    with simulation.running(), cluster.connect() as client:
        with step("nodes"):
            cluster.create_nodes(client, workers + 2 + found.tasks // NODES_EACH)
        found.render, manifests = cluster.render(RELEASE, given, folder)
        objects = [item for item in yaml.load_all(manifests, yaml.CSafeLoader) if item]
        sizes = [(len(json.dumps(item)) / 1000, f"{item['kind']} {item['metadata']['name']}") for item in objects]
        found.largest = (max(sizes)[1], max(sizes)[0])
        for number in range(rounds):
            with step(f"plain {number + 1}"):
                _plain(client, f"plain-{number}", given, found, folder)
            with step(f"run {number + 1}"):
                _run(client, f"run-{number}", given, found, folder, is_last=number == rounds - 1)
        if admissions:
            with step("queue"):
                _queue(client, "queue", given, found, folder, admissions)
    return found


def _plain(client: Client, namespace: str, given: Mapping[str, Any], found: Measured, folder: Path) -> None:
    began = time.monotonic()
    plain = {**given, "supervisor": {"enabled": False}}
    cluster.install(client, RELEASE, namespace, plain, folder)
    cluster.wait("all pods running", lambda: cluster.are_ready(client, namespace, found.tasks))
    found.plain.append(time.monotonic() - began)
    began = time.monotonic()
    simulation.helm("uninstall", RELEASE, f"--namespace={namespace}")
    cluster.wait("all pods gone", lambda: cluster.are_gone(client, namespace))
    found.deleted = time.monotonic() - began


def _run(
    client: Client, namespace: str, given: Mapping[str, Any], found: Measured, folder: Path, is_last: bool
) -> None:
    simulation.resolve_in(namespace)
    received, began = cluster.datagrams(), time.monotonic()
    found.install = cluster.install(client, RELEASE, namespace, given, folder)
    running = supervisor.start(client, RELEASE, namespace, folder)
    try:
        cluster.wait("all pods running", lambda: cluster.are_ready(client, namespace, found.tasks))
        found.running.append(time.monotonic() - began)
        cluster.wait("all names resolved", lambda: _notes(client, namespace).get("resolved"))
        found.started = running.usage()
        found.queries = (cluster.datagrams() - received) / 2 / found.tasks
        account = f"system:serviceaccount:{namespace}:{RELEASE}-supervisor"
        found.requests = cluster.requests(account)
        found.release = _release_size(client, namespace)
        if is_last:
            names = [f"{RELEASE}-worker-{index % found.workers}" for index in range(DELETIONS)]
            cluster.delete_pods(client, namespace, names, seconds=1.0)
            found.deletion = (running.usage().cpu - found.started.cpu) / DELETIONS
            running.stop()
            running = _take_over(client, namespace, folder, found)
        began = time.monotonic()
        cluster.end_task(client, namespace, f"{RELEASE}-chief-0", "chief")
        cluster.wait("the supervisor has ended", lambda: running.code() is not None)
        cluster.wait("all pods gone", lambda: cluster.are_gone(client, namespace))
        found.end = time.monotonic() - began
        if running.code():
            raise cluster.HungError(f"the supervisor ended with code {running.code()}: {folder}/{namespace}.log")
    finally:
        running.stop()
    simulation.helm("uninstall", RELEASE, f"--namespace={namespace}")


def _take_over(client: Client, namespace: str, folder: Path, found: Measured) -> Supervisor:
    before = _notes(client, namespace).get("supervisor")
    following = supervisor.start(client, RELEASE, namespace, folder)
    cluster.wait("another supervisor continues", lambda: _notes(client, namespace).get("supervisor") != before)
    time.sleep(15)  # it looks up all names once more
    found.taken_over = following.usage()
    return following


def _queue(
    client: Client, namespace: str, given: Mapping[str, Any], found: Measured, folder: Path, admissions: int
) -> None:
    account = f"system:serviceaccount:{namespace}:{RELEASE}-supervisor"
    simulation.resolve_in(namespace)
    queue.prepare(folder)
    cluster.install(client, RELEASE, namespace, {**given, **queue.VALUES}, folder)
    running = supervisor.start(client, RELEASE, namespace, folder)
    try:
        cluster.wait("the run is queued", lambda: queue.waits(client, RELEASE, namespace))
        before, requests = running.usage(), cluster.requests(account).total()
        for _ in range(admissions):
            began = time.monotonic()
            queue.admit(client, RELEASE, namespace, cluster.counts(given))
            cluster.wait("all pods running", lambda: cluster.are_ready(client, namespace, found.tasks))
            found.admitted.append(time.monotonic() - began)
            began = time.monotonic()
            queue.evict(client, RELEASE, namespace)
            cluster.wait("the quota is free", lambda: queue.waits(client, RELEASE, namespace))
            found.evicted.append(time.monotonic() - began)
        after = running.usage()
        found.queued = Usage((after.cpu - before.cpu) / admissions, after.peak)
        found.queued_requests = (cluster.requests(account).total() - requests) / admissions / found.tasks
    finally:
        running.stop()
    simulation.helm("uninstall", RELEASE, f"--namespace={namespace}")


def _notes(client: Client, namespace: str) -> dict[str, Any]:
    found = client.get(ConfigMap, f"{RELEASE}-run", namespace=namespace).data or {}
    return dict(json.loads(found.get("notes.json", "{}")))


def _release_size(client: Client, namespace: str) -> float:
    secret = client.get(Secret, f"sh.helm.release.v1.{RELEASE}.v1", namespace=namespace)
    return sum(map(len, (secret.data or {}).values())) / 1000


def table(columns: Sequence[Measured]) -> str:
    """The figures as a table in Markdown."""

    def verbs(found: Measured) -> str:
        return ", ".join(f"{verb} {count}" for verb, count in sorted(found.requests.items()))

    rows: list[tuple[str, Sequence[str]]] = [
        ("workers (4 GPUs each)", [f"{found.workers:,}" for found in columns]),
        ("---", ["---"] * len(columns)),
        ("tasks", [f"{found.tasks:,}" for found in columns]),
        ("`helm template`; `helm install`, s", [f"{found.render:.1f}; {found.install:.1f}" for found in columns]),
        ("release in the API, kB", [f"{found.release:.0f}" for found in columns]),
        ("largest object, kB", [f"{found.largest[1]:.0f} ({found.largest[0]})" for found in columns]),
        (
            "install to all Running, s: with the supervisor; without",
            [f"{statistics.median(found.running):.1f}; {statistics.median(found.plain):.1f}" for found in columns],
        ),
        ("the first, as times the second", [_ratios(found) for found in columns]),
        ("supervisor until then: CPU s; peak MiB", [_usage(found.started) for found in columns]),
        ("its requests by verb", [verbs(found) for found in columns]),
        ("kB that it has received", [f"{found.started.received:,.0f}" for found in columns]),
        ("its DNS queries for each task", [f"{found.queries:.1f}" for found in columns]),
        ("a deletion each second: its CPU s for each", [f"{found.deletion:.3f}" for found in columns]),
        ("another supervisor takes over: CPU s; peak MiB", [_usage(found.taken_over) for found in columns]),
        ("end to all pods gone, s: the chief ends; `helm uninstall` without it", [_ends(found) for found in columns]),
        ("in a queue, s: admitted to all Running; evicted to quota free", [_queued(found) for found in columns]),
        ("supervisor for both: CPU s; peak MiB; requests for each task", [_queue_costs(found) for found in columns]),
    ]
    return "\n".join(f"| {name} | {' | '.join(cells)} |" for name, cells in rows)


def _ratios(found: Measured) -> str:
    return ", ".join(f"{run / plain:.2f}" for run, plain in zip(found.running, found.plain, strict=True))


def _usage(usage: Usage) -> str:
    return f"{usage.cpu:.1f}; {usage.peak:.0f}"


def _ends(found: Measured) -> str:
    return f"{found.end:.1f}; {found.deleted:.1f}"


def _queued(found: Measured) -> str:
    if not found.admitted:
        return "–"
    return f"{statistics.median(found.admitted):.1f}; {statistics.median(found.evicted):.1f}"


def _queue_costs(found: Measured) -> str:
    return f"{_usage(found.queued)}; {found.queued_requests:.1f}" if found.admitted else "–"


def main() -> int:
    """Measure what the arguments ask for, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--admissions", type=int, default=2, help="how often a run in a queue of Kueue is admitted")
    arguments = parser.parse_args()
    if min(*arguments.workers, arguments.rounds) < 1:
        parser.error("--workers and --rounds: at least 1 is expected")
    if arguments.admissions < 0:
        parser.error("--admissions: at least 0 is expected")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the cluster ends with this process
    folder = Path(tempfile.mkdtemp(prefix="scale-"))
    compileall.compile_dir(supervisor.ROOT / "trainer", quiet=1)  # the supervisor's image has compiled modules too
    try:
        found = [measure(workers, arguments.rounds, arguments.admissions, folder) for workers in arguments.workers]
    except (ClusterError, UsageError, cluster.HungError) as error:
        print(f"scale: {error}", file=sys.stderr)
        return 1
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
