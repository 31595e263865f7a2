"""The supervisor of a run in the simulated cluster: a process with the rights of its service account."""

import json
import os
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Any

from lightkube import Client
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Pod

from benchmarks.scale.cluster import wait
from hack.cluster import simulation

ROOT = Path(__file__).parents[2]
LABELS: dict[str, Any] = {"app.kubernetes.io/component": "supervisor"}
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """What a supervisor has used so far."""

    cpu: float
    """Seconds."""
    peak: float
    """MiB of memory."""
    received: float = 0.0
    """kB that its present connections to the API server have brought, which last four minutes."""


class Supervisor:
    """A running supervisor."""

    def __init__(self, process: Popen[bytes]) -> None:
        self._process = process

    def usage(self) -> Usage:
        """What it has used so far."""
        proc = Path(f"/proc/{self._process.pid}")
        words = (proc / "stat").read_text().rpartition(")")[2].split()
        peak = next(line for line in (proc / "status").read_text().splitlines() if line.startswith("VmHWM"))
        return Usage((int(words[11]) + int(words[12])) / TICKS, int(peak.split()[1]) / 1024, self._received() / 1000)

    def _received(self) -> int:
        own = {os.readlink(each) for each in Path(f"/proc/{self._process.pid}/fd").iterdir()}
        sockets = ["ss", "--tcp", "--numeric", "--extended", "--info", "--oneline", "--no-header"]
        found = re.findall(r"ino:(\d+) .*bytes_received:(\d+)", simulation.SANDBOX.run(sockets))
        return sum(int(count) for inode, count in found if f"socket:[{inode}]" in own)

    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """End it, as an eviction would, and wait."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)


def start(client: Client, release: str, namespace: str, folder: Path) -> Supervisor:
    """Start the supervisor of a release as soon as Kubernetes has created its pod."""
    pods: list[Pod] = []

    def has_pod() -> bool:
        pods[:] = client.list(Pod, namespace=namespace, labels=LABELS)
        return bool(pods)

    wait("the supervisor's pod is there", has_pod)
    (job,) = client.list(Job, namespace=namespace, labels=LABELS)
    (settings,) = (item for item in client.list(ConfigMap, namespace=namespace) if "run.json" in (item.data or {}))
    run, kubeconfig, log = (folder / f"{namespace}.{suffix}" for suffix in ("run.json", "kubeconfig", "log"))
    run.write_text((settings.data or {})["run.json"])
    kubeconfig.write_text(json.dumps(_kubeconfig(release, namespace)))
    process = simulation.SANDBOX.child(
        [sys.executable, "-m", "trainer", "supervise", f"--run={run}"],
        log,
        {
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": str(ROOT),
            "JOB_UID": _uid(job),
            "POD_UID": f"{_uid(pods[0])}-{os.urandom(4).hex()}",
        },
    )
    return Supervisor(process)


def _uid(item: Job | Pod) -> str:
    return (item.metadata and item.metadata.uid) or ""


def _kubeconfig(release: str, namespace: str) -> dict[str, Any]:
    found = json.loads(simulation.KUBECONFIG.read_text())
    token = simulation.kubectl("create", "token", f"{release}-supervisor", f"--namespace={namespace}", "--duration=4h")
    found["users"] = [{"name": found["users"][0]["name"], "user": {"token": token.strip()}}]
    found["contexts"][0]["context"]["namespace"] = namespace
    return dict(found)
