"""A run in the throw-away cluster: a release of the chart in a namespace of its own."""

import contextlib
import json
import secrets
import signal
import subprocess
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

import trainer
from benchmarks.faults import node
from benchmarks.faults.cluster import SUPERVISOR, TENSORBOARD, FaultError, Line
from benchmarks.faults.launch import LogFile
from benchmarks.faults.workload import Workload
from hack.cluster.node import SECOND, TAINT

CHART = Path(__file__).parents[2] / "charts" / "distributed-tensorflow"
NAME = "mnist"
IMAGE = "distributed-tensorflow/trainer"
ASK_SECONDS = 2.0
"""How often the API server is asked whether the run has ended."""
EVICTED_SECONDS, NODE_LOSS_SECONDS = 5, 10
"""How soon the pods of a node that does not answer are deleted, and then removed by force."""
COMPONENT = "app.kubernetes.io/component"


class Release:
    """A release, installed with the model in a ConfigMap. It needs helm and kubectl on PATH."""

    def __init__(self, workload: Workload, folder: Path, tag: str = trainer.__version__) -> None:
        """Install the release into a new namespace, with images of this tag."""
        self.workload = workload
        self.namespace = f"faults-{secrets.token_hex(3)}"
        self._logs: dict[Path, LogFile] = {}
        self._directory: Path | None = None
        self._uids: dict[str, str] = {}
        self._code: int | None = None
        self._asked = 0.0
        if workload.nodes > 1:
            node.start_second(f"{IMAGE}:{tag}")
        self._run("kubectl", "create", "namespace", self.namespace)
        self.kubectl("create", "configmap", "timed-model", f"--from-file={workload.model}")
        file = folder / "values.yaml"
        file.write_text(json.dumps(_values(workload, tag)))
        self._run("helm", f"--namespace={self.namespace}", "install", NAME, str(CHART), f"--values={file}")

    @property
    def directory(self) -> Path:
        """The folder of the claim on the node."""
        if self._directory is None:
            claims = list(node.VOLUMES.glob(f"pvc-*_{self.namespace}_{NAME}-training"))
            self._directory = claims[0] if claims else None
        return self._directory or node.VOLUMES / "absent"

    def new_lines(self) -> list[Line]:
        """The lines that the node has from all containers of the release."""
        found = []
        for pod, path in node.pod_logs(self.namespace):
            task = _task_of_pod(pod)
            for text in self._logs.setdefault(path, LogFile(path)).new_lines():
                moment, _, rest = text.partition(" ")
                found.append(Line(_seconds(moment), task, rest.partition(" ")[2].partition(" ")[2], str(path)))
        return found

    def send_signal(self, tasks: Sequence[str], number: int) -> None:
        """Send a signal to the Python programs of these tasks' pods."""
        targets = [(task, process) for task in tasks for process in self._programs(task)]
        if missing := set(tasks) - {task for task, _ in targets}:
            raise FaultError(f"{', '.join(missing)} does not run")
        for _, process in targets:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def processes(self, task: str) -> list[int]:
        """The process ids of a task's program."""
        with contextlib.suppress(FaultError):
            return [process.pid for process in self._programs(task)]
        return []

    def _programs(self, task: str) -> list[psutil.Process]:
        return node.programs_of_pod(self._uid(task))

    def _uid(self, task: str) -> str:
        """The uid of a task's pod; the last known one while the API server is away."""
        with contextlib.suppress(FaultError):
            pods = json.loads(self.kubectl("get", "pods", "--output=json", "--request-timeout=5s"))["items"]
            pods.sort(key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
            self._uids |= {_task_of_pod(pod["metadata"]["name"]): pod["metadata"]["uid"] for pod in pods}
        if task not in self._uids:
            raise FaultError(f"{task} has no pod")
        return self._uids[task]

    def delete(self, tasks: Sequence[str], *, by_force: bool) -> None:
        """Delete the pods of these tasks, without a grace period if `by_force`; do not wait for their end."""
        words = ["--grace-period=0", "--force"] if by_force else []
        for task in tasks:
            if task in (SUPERVISOR, TENSORBOARD):
                self.kubectl("delete", "pod", f"--selector={COMPONENT}={task}", "--wait=false", *words)
        if names := [f"{NAME}-{task}" for task in tasks if task not in (SUPERVISOR, TENSORBOARD)]:
            self.kubectl("delete", "pod", *names, "--wait=false", *words)

    def node_of(self, task: str) -> str:
        """The name of the node on which a task runs."""
        return self.kubectl("get", "pod", f"{NAME}-{task}", "--output=jsonpath={.spec.nodeName}")

    def networks(self, tasks: Sequence[str]) -> list[int]:
        """A process in the network namespace of each of these tasks' pods."""
        return [node.network_of_pod(self._uid(task)) for task in tasks]

    def exit_code(self) -> int | None:
        """0 or 1 by the state in the supervisor's notes; None while the run lasts or the API server is away."""
        if self._code is None and time.monotonic() - self._asked > ASK_SECONDS:
            self._asked = time.monotonic()
            with contextlib.suppress(FaultError):
                self._code = {"Succeeded": 0, "Failed": 1}.get(str(self._notes().get("state")))
        return self._code

    def _notes(self) -> dict[str, Any]:
        found = json.loads(self.kubectl("get", "configmap", f"{NAME}-run", "--output=json", "--request-timeout=5s"))
        return dict(json.loads(found.get("data", {}).get("notes.json", "{}")))

    def restarts(self) -> int:
        """The restarts in the supervisor's notes; replaced pods are not among them."""
        return sum(self._notes().get("counted", {}).get("by_role", {}).values())

    def result(self) -> dict[str, Any]:
        """The content of result.json on the node."""
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self.directory / "result.json").read_text()))
        return {}

    def close(self) -> None:
        """Delete the namespace."""
        with contextlib.suppress(FaultError):
            self.send_signal([task for task in self.workload.tasks if self.processes(task)], signal.SIGCONT)
        with contextlib.suppress(FaultError):
            self._run("kubectl", "delete", "namespace", self.namespace, "--wait=false")

    def kubectl(self, *words: str) -> str:
        """Run kubectl in the namespace, and return its output.

        Raises:
            FaultError: kubectl fails.
        """
        return self._run("kubectl", f"--namespace={self.namespace}", *words)

    @staticmethod
    def _run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise FaultError(f"{' '.join(command[:4])} …: {done.stderr.strip()[-500:]}")
        return done.stdout


def _values(workload: Workload, tag: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "image": {"tag": tag},
        "supervisor": {"image": {"tag": tag}},
        "train": {**workload.settings, "model": f"/models/{workload.model.name}"},
        "ps": {"replicas": workload.ps},
        "worker": {"replicas": workload.workers},
        "chief": {"replicas": int(workload.chief)},
        "evaluator": {"replicas": int(workload.evaluator)},
        "run": {"backoffLimit": None},
        "common": {
            "env": [{"name": name, "value": value} for name, value in workload.environment.items()],
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
            "extraVolumes": [{"name": "model", "configMap": {"name": "timed-model"}}],
            "extraVolumeMounts": [{"name": "model", "mountPath": "/models"}],
        },
    }
    if workload.nodes > 1:
        for key, more in _on_two_nodes().items():
            values[key] = values.get(key, {}) | more
    return values


def _on_two_nodes() -> dict[str, Any]:
    """Values with which the chief is on the second node, and its replacement on the first one if that vanishes."""
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [SECOND.name]}]}
    evicted = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "tolerationSeconds": EVICTED_SECONDS}
    return {
        "run": {"nodeLossSeconds": NODE_LOSS_SECONDS},
        "trainingDirectory": {"accessModes": ["ReadWriteMany"], "storageClassName": "shared"},
        "chief": {
            "terminationGracePeriodSeconds": NODE_LOSS_SECONDS,
            "tolerations": [{"key": TAINT, "operator": "Exists"}, {"operator": "Exists", **evicted}],
            "affinity": {
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": here}]
                }
            },
        },
    }


def _task_of_pod(pod: str) -> str:
    name = pod.removeprefix(f"{NAME}-")
    for component, prefix in ((SUPERVISOR, "run-"), (TENSORBOARD, "tensorboard-")):
        if name.startswith(prefix):
            return component
    return name


def _seconds(moment: str) -> float:
    """The seconds since 1970 of a time of the container runtime, such as 2026-11-24T10:00:00.123456789Z."""
    try:
        whole, _, fraction = moment.rstrip("Z").partition(".")
        return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
    except ValueError:
        return time.time()
