"""A release of the chart on a real cluster: helm and kubectl, and what a run leaves. For the tests of `tests/e2e`."""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
SUPERVISOR = "app.kubernetes.io/component=supervisor"
ALONE: dict[str, Any] = {"supervisor": {"enabled": False}}
"""Values without the supervisor: tasks that have ended rest in their pods."""
CHART = ROOT / "charts" / "distributed-tensorflow"


@dataclass(frozen=True)
class Release:
    """One release in one namespace."""

    name: str
    namespace: str
    folder: Path

    def helm(self, *words: str, values: dict[str, Any] | None = None) -> str:
        """Run helm with these values; fails the test, with what helm said, when helm fails."""
        command = ["helm", "--namespace", self.namespace, *words]
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
        """Upgrade it."""
        return self.helm("upgrade", self.name, str(CHART), *words, values=values)

    def kubectl(self, *words: str, text: str | None = None) -> str:
        """Run kubectl in the release's namespace; fails the test when kubectl fails."""
        done = self.try_kubectl(*words, text=text)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def try_kubectl(self, *words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl in the release's namespace."""
        command = ["kubectl", "--namespace", self.namespace, *words]
        return subprocess.run(command, input=text, capture_output=True, text=True)

    def get(self, *words: str) -> Any:
        """An object, or a list of them, as kubectl gives it."""
        return json.loads(self.kubectl("get", *words, "--output=json"))

    def tasks(self) -> dict[str, Any]:
        """The pods of the run's tasks by name."""
        selector = (
            f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component in (chief, worker, ps, evaluator)"
        )
        return {pod["metadata"]["name"]: pod for pod in self.get("pods", f"--selector={selector}")["items"]}

    def result(self) -> dict[str, Any]:
        """result.json on the claim, read by way of TensorBoard's pod; empty while there is none."""
        words = ["exec", f"deployment/{self.name}-tensorboard", "--", "cat", "/training/result.json"]
        done = self.try_kubectl(*words)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def wait_for_result(self, steps: int) -> dict[str, Any]:
        """Wait until the run has come to these global steps, and return its result."""

        def is_done() -> bool:
            result = self.result()
            return result.get("state") == "done" and result["global_step"] >= steps

        wait(is_done, 180, self.describe)
        return self.result()

    def wait_until_all_rest(self) -> None:
        """Wait until every task has ended well and rests."""
        wait(lambda: all(exit_code(pod) == 0 and is_ready(pod) for pod in self.tasks().values()), 120, self.describe)

    def finish(self, condition: str = "complete") -> str:
        """Wait for the supervisor's Job, as a person would, and return what the supervisor said."""
        jobs = ["wait", f"--for=condition={condition}", "job", f"--selector={SUPERVISOR}", "--timeout=150s"]
        done = self.try_kubectl(*jobs)
        assert done.returncode == 0, f"{self.said()}\n{self.describe()}"
        return self.said()

    def said(self) -> str:
        """All that the supervisor said; nothing where it has not begun."""
        return self.try_kubectl("logs", f"--selector={SUPERVISOR}", "--tail=-1").stdout

    def scales(self) -> dict[str, int]:
        """How many tasks each StatefulSet has."""
        return {item["metadata"]["name"]: item["spec"]["replicas"] for item in self.get("statefulsets")["items"]}

    def log(self, pod: str) -> str:
        """All that a task said, before it ended and while it rests; nothing where it has not begun."""
        now, before = (self.try_kubectl("logs", *which, pod).stdout for which in ([], ["--previous"]))
        # Between the two the container may have been started again: then both are the same one's.
        return before if before.startswith(now) else before + now

    def kept_log(self, task: str) -> str:
        """What the training directory keeps of a task's log, such as worker-0's."""
        words = ["exec", f"deployment/{self.name}-tensorboard", "--", "cat", f"/training/logs/{task}.log"]
        return self.try_kubectl(*words).stdout

    def describe(self) -> str:
        """What a failed test shows."""
        logs = [f"--- {pod}\n{self.log(pod)[-1500:]}" for pod in self.tasks()]
        return "\n".join([self.kubectl("get", "pods"), self.kubectl("get", "events")[-3000:], *logs])


def exit_code(pod: Any) -> int | None:
    """The code with which a task's container ended the last time."""
    statuses = pod["status"].get("containerStatuses", [])
    code = statuses[0].get("lastState", {}).get("terminated", {}).get("exitCode") if statuses else None
    return None if code is None else int(code)


def is_ready(pod: Any) -> bool:
    """Whether the pod's condition Ready is true."""
    conditions = {condition["type"]: condition["status"] for condition in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"


def wait(condition: Callable[[], Any], seconds: float, describe: Callable[[], str] = lambda: "") -> None:
    """Wait for what comes by itself; fails the test, with what `describe` says, when it does not come in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s\n{describe()}"
        time.sleep(0.5)
