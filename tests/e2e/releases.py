"""A release of the chart on a real cluster, operated with helm and kubectl, for the tests in `tests/e2e`."""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.e2e import api

ROOT = Path(__file__).parents[2]
SUPERVISOR = "app.kubernetes.io/component=supervisor"
UNSUPERVISED: dict[str, Any] = {"supervisor": {"enabled": False}}
"""Values without a supervisor: a task that has ended is parked in its pod."""
CHEAP = {"common": {"resources": {"requests": {"cpu": "20m"}}}}
"""Values with which several releases fit on a node of two CPUs side by side."""
YIELDING = {"common": {"resources": {"requests": {"cpu": "2m"}}}}
"""Values of a run that goes on without end: it takes the CPUs that the tasks of another test leave."""
CHART = ROOT / "charts" / "distributed-tensorflow"


@dataclass(frozen=True)
class Release:
    """One release in one namespace."""

    name: str
    namespace: str
    folder: Path
    program: str = "helm"
    """Helm 3 or Helm 4."""

    @property
    def _supervisor(self) -> str:
        """The selector of the supervisor's Job and pods."""
        return f"{SUPERVISOR},app.kubernetes.io/instance={self.name}"

    def helm(self, *words: str, values: dict[str, Any] | None = None) -> str:
        """Run helm with these values; fails the test with helm's output if helm fails."""
        command = [self.program, "--namespace", self.namespace, *words]
        if words[0] in ("install", "upgrade"):
            cheap = self.folder / "cheap.yaml"
            cheap.write_text(yaml.safe_dump(CHEAP))
            command += ["--values", str(cheap)]
        if values:
            file = self.folder / "values.yaml"
            file.write_text(yaml.safe_dump(values))
            command += ["--values", str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def install(self, values: dict[str, Any] | None = None, *words: str) -> str:
        """Install the chart under this release's name."""
        return self.helm("install", self.name, str(CHART), *words, values=values)

    def upgrade(self, values: dict[str, Any] | None = None, *words: str) -> str:
        """Upgrade the release."""
        return self.helm("upgrade", self.name, str(CHART), *words, values=values)

    def kubectl(self, *words: str, text: str | None = None) -> str:
        """Run kubectl in the release's namespace; fails the test if kubectl fails."""
        done = self.try_kubectl(*words, text=text)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def try_kubectl(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl in the release's namespace."""
        command = ["kubectl", "--namespace", self.namespace, *words]
        return subprocess.run(command, input=text, capture_output=True, text=True)

    def get(self, kind: str, name: str = "", **selectors: str) -> Any:
        """Return an object, or the list of all objects that match selectors such as `labelSelector`."""
        return api.get(self.namespace, kind, name, **selectors)

    def tasks(self) -> dict[str, Any]:
        """The pods of the run's tasks, by name."""
        selector = (
            f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component in (chief, worker, ps, evaluator)"
        )
        return {pod["metadata"]["name"]: pod for pod in self.get("pods", labelSelector=selector)["items"]}

    def containers(self) -> dict[str, tuple[str, int]]:
        """Of each task whose container exists: the uid of its pod, and how often the container has restarted."""
        return {
            name: (pod["metadata"]["uid"], statuses[0]["restartCount"])
            for name, pod in self.tasks().items()
            if (statuses := pod["status"].get("containerStatuses"))
        }

    def deployment_is_available(self, word: str) -> bool:
        """Whether a Deployment of the release has an available pod."""
        return bool(self.get("deployment", f"{self.name}-{word}")["status"].get("availableReplicas"))

    def result(self) -> dict[str, Any]:
        """Read result.json in TensorBoard's pod; empty if it does not exist."""
        words = ["exec", f"deployment/{self.name}-tensorboard", "--", "cat", "/training/result.json"]
        done = self.try_kubectl(*words)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def wait_for_result(self, steps: int) -> dict[str, Any]:
        """Wait until the run is done with at least these global steps, and return its result."""
        found: dict[str, Any] = {}

        def is_done() -> bool:
            nonlocal found
            found = self.result()
            return found.get("state") == "done" and found["global_step"] >= steps

        wait(is_done, 400, self.describe)
        return found

    def wait_until_parked(self) -> None:
        """Wait until every task has ended with code 0 and is parked."""
        wait(lambda: all(exit_code(pod) == 0 and is_ready(pod) for pod in self.tasks().values()), 120, self.describe)

    def finish(self, condition: str = "complete") -> str:
        """Wait for a condition of the supervisor's Job, and return the supervisor's log."""
        jobs = ["wait", f"--for=condition={condition}", "job", f"--selector={self._supervisor}", "--timeout=400s"]
        done = self.try_kubectl(*jobs)
        assert done.returncode == 0, f"{self.supervisor_log()}\n{self.describe()}"
        return self.supervisor_log()

    def supervisor_log(self) -> str:
        """The log of the supervisor; empty if it has not started."""
        pods = self.get("pods", labelSelector=self._supervisor)["items"]
        return "".join(api.log(self.namespace, pod["metadata"]["name"]) for pod in pods)

    def notes(self) -> dict[str, Any]:
        """The supervisor's notes; empty before the first."""
        return dict(json.loads(self.get("configmap", f"{self.name}-run").get("data", {}).get("notes.json", "{}")))

    def scales(self) -> dict[str, int]:
        """The number of replicas of each StatefulSet, by name."""
        return {item["metadata"]["name"]: item["spec"]["replicas"] for item in self.get("statefulsets")["items"]}

    def log(self, pod: str) -> str:
        """The log of a task's previous and current container; empty if the task has not started."""
        current, previous = (api.log(self.namespace, pod, previous=which) for which in (False, True))
        # If the container restarts between the two calls, both return the log of the same container.
        return previous if previous.startswith(current) else previous + current

    def saved_log(self, task: str) -> str:
        """The log of a task, such as worker-0, in the training directory."""
        words = ["exec", f"deployment/{self.name}-tensorboard", "--", "cat", f"/training/logs/{task}.log"]
        return self.try_kubectl(*words).stdout

    @contextlib.contextmanager
    def forward(self, target: str, port: int) -> Iterator[str]:
        """The address of a port of a Service or a Deployment on this machine, through `kubectl port-forward`."""
        command = ["kubectl", "--namespace", self.namespace, "port-forward", target, f":{port}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarding:
            try:
                assert forwarding.stdout
                address = forwarding.stdout.readline().split()[2]  # "Forwarding from 127.0.0.1:PORT -> 5000"
                yield f"http://{address}"
            finally:
                forwarding.terminate()

    def describe(self) -> str:
        """The pods, events and logs, for the message of a failed test."""
        logs = [f"--- supervisor\n{self.supervisor_log()[-1500:]}"]
        logs += [f"--- {pod}\n{self.log(pod)[-1500:]}" for pod in self.tasks()]
        return "\n".join([self.kubectl("get", "pods"), self.kubectl("get", "events")[-3000:], *logs])


@contextlib.contextmanager
def advertised(resource: str, count: int) -> Iterator[None]:
    """Let the first node that takes all pods advertise so many of an extended resource."""
    nodes = api.get("", "nodes")["items"]
    node = next(node["metadata"]["name"] for node in nodes if not node["spec"].get("taints"))
    path = f"/status/capacity/{resource.replace('/', '~1')}"
    patch = ["kubectl", "patch", "node", node, "--subresource=status", "--type=json", "--patch"]

    def change(**operation: str) -> None:
        subprocess.run([*patch, json.dumps([{**operation, "path": path}])], check=True, capture_output=True)

    change(op="add", value=str(count))
    try:
        yield
    finally:
        change(op="remove")


def exit_code(pod: Any) -> int | None:
    """The exit code of a task's previous container."""
    statuses = pod["status"].get("containerStatuses", [])
    code = statuses[0].get("lastState", {}).get("terminated", {}).get("exitCode") if statuses else None
    return None if code is None else int(code)


def is_ready(pod: Any) -> bool:
    """Whether the pod's condition Ready is true."""
    conditions = {condition["type"]: condition["status"] for condition in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"


def wait(condition: Callable[[], Any], seconds: float, describe: Callable[[], str] = lambda: "") -> None:
    """Wait until the condition is true; fails the test with the text of `describe` after this many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s\n{describe()}"
        time.sleep(0.5)
