"""Runs with the supervisor, from `helm install` to the end of the run."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from hack.cluster.kubernetes import BOX, CONTAINERD_SOCKET
from hack.cluster.places import KUBECONFIG
from tests.e2e.releases import ROOT, SUPERVISOR, Release, exit_code, wait

SHORT: dict[str, Any] = {"train": {"train_steps": 500, "learning_rate": 0.003}}


@pytest.fixture
def remove_container(kubeconfig: Path) -> Callable[[str], None]:
    """Removes an exited container from the throw-away cluster's node through the runtime, as the kubelet would."""
    if kubeconfig != KUBECONFIG:
        pytest.skip("the container runtime of the cluster in KUBECONFIG is not accessible")

    def remove(container: str) -> None:
        number = container.removeprefix("containerd://").encode()
        request = b"\n" + bytes([len(number)]) + number  # RemoveContainerRequest: container_id is its field 1
        with grpc.insecure_channel(f"unix:///proc/{BOX.first_process()}/root{CONTAINERD_SOCKET}") as channel:
            channel.unary_unary("/runtime.v1.RuntimeService/RemoveContainer")(request, timeout=60)

    return remove


def test_a_run_ends_by_itself_frees_its_resources_and_stays_ended(release: Release) -> None:
    release.install(SHORT)
    last = release.finish().splitlines()[-1]
    outcome = "the run succeeded: mnist-worker-0 ended with code 0; test accuracy 0.9"
    assert outcome in last
    command = shlex.split(last.partition(": kubectl ")[2])
    wait(lambda: release.try_kubectl(*command).returncode == 0, 60, release.describe)
    assert f"test accuracy {json.loads(release.kubectl(*command))['test_accuracy']:.4f}" in last
    wait(lambda: not release.tasks(), 60, release.describe)
    assert release.scales() == {"mnist-ps": 0, "mnist-worker": 0}
    result = release.wait_for_result(500)
    assert result["test_accuracy"] > 0.9
    assert "test accuracy" in release.saved_log("worker-0"), "the log remains after its pod"
    (pod,) = release.get("pods", f"--selector={SUPERVISOR}")["items"]
    message = pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
    assert message.startswith(outcome)
    assert message in release.kubectl("get", "events", "--field-selector=reason=RunSucceeded")

    # A new TensorBoard pod is scheduled although all pods of tasks are gone.
    release.upgrade(SHORT | {"tensorboard": {"labels": {"team": "a"}}}, "--wait", "--timeout=2m")
    assert release.wait_for_result(500) == result
    assert release.scales() == {"mnist-ps": 0, "mnist-worker": 0}, "an unchanged run is not started again"
    assert "SUCCEEDED" in release.helm("test", "mnist", "--timeout=2m").upper()

    release.upgrade(SHORT | {"train": {"train_steps": 800}})
    release.finish()
    assert release.wait_for_result(800)["train_dir"] == "/training"
    assert "restored /training/model.ckpt-" in release.saved_log("worker-0")


def test_a_failed_run_reports_the_task_and_the_reason_and_frees_its_resources(release: Release) -> None:
    program = 'echo "the cause"; exit 9'
    release.install(SHORT | {"worker": {"command": ["sh", "-c", program]}})
    lines = release.finish("failed").splitlines()
    assert "failed with code 9, which is not retried" in lines[-1]
    assert any(line.endswith(": the cause") and " | mnist-worker-" in line for line in lines)
    wait(lambda: not release.tasks(), 60, release.describe)
    assert set(release.scales().values()) == {0}


def test_a_task_that_cannot_start_is_reported_and_fails_the_run(release: Release) -> None:
    values = {"worker": {"nodeSelector": {"no": "such-node"}}, "run": {"startTimeoutSeconds": 25}}
    release.install(SHORT | values)
    text = release.finish("failed")
    assert re.search(r"waiting for mnist-worker-0: no node has the labels .* asks for \(and 1 more\)", text)
    assert "did not start within run.startTimeoutSeconds (25 s)" in text.splitlines()[-1]
    assert set(release.scales().values()) == {0}


def test_a_corrected_image_replaces_the_tasks_with_the_wrong_image(release: Release) -> None:
    release.install(SHORT | {"image": {"repository": "absent.invalid/trainer"}})
    wait(lambda: "mnist-worker-0" in release.tasks(), 60, release.describe)
    release.upgrade(SHORT)
    assert "the run succeeded" in release.finish()


def test_a_task_whose_dns_name_does_not_resolve_is_reported(release: Release) -> None:
    release.install(SHORT | {"run": {"startTimeoutSeconds": 40}})
    release.kubectl("delete", "service", "mnist-ps")
    text = release.finish("failed")
    assert "waiting for mnist-ps-0: the cluster's DNS does not know mnist-ps-0.mnist-ps" in text


def test_a_new_supervisor_continues_the_run_of_a_killed_one(release: Release) -> None:
    values = SHORT | {"train": {"train_steps": 20_000}, "worker": {"replicas": 1}}
    release.install(values)
    wait(lambda: "steps/s" in release.supervisor_log(), 120, release.describe)
    (pod,) = release.get("pods", f"--selector={SUPERVISOR}")["items"]
    metrics = f"/api/v1/namespaces/{release.namespace}/pods/{pod['metadata']['name']}:9100/proxy/metrics"
    assert 'trainer_run_state{state="Running"} 1.0' in release.kubectl("get", "--raw", metrics)
    release.kubectl("delete", "pod", f"--selector={SUPERVISOR}", "--now")
    wait(lambda: "continuing the run in progress" in release.supervisor_log(), 60, release.describe)
    release.upgrade(values | {"run": {"backoffLimit": 7}})  # starts a new supervisor
    assert "continuing the run in progress" in release.finish(), "the new supervisor continues the same run"
    assert release.wait_for_result(20_000)["global_step"] < 20_200


def test_a_run_ends_although_its_node_no_longer_reports_the_exit_codes(
    release: Release, remove_container: Callable[[str], None]
) -> None:
    """The kubelet may garbage-collect an exited container when the next one starts."""
    release.install(SHORT)
    wait(lambda: "mnist-worker-1" in release.tasks(), 60, release.describe)
    job = release.kubectl("get", "jobs", f"--selector={SUPERVISOR}", "--output=name").strip()
    release.kubectl("patch", job, '--patch={"spec":{"suspend":true}}')
    release.wait_until_parked()
    for pod in release.tasks().values():
        remove_container(pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["containerID"])
    release.kubectl("annotate", "pods", "--all", "changed=now")  # makes the kubelet report the status again
    wait(lambda: {exit_code(pod) for pod in release.tasks().values()} == {None}, 60, release.describe)
    release.kubectl("patch", job, '--patch={"spec":{"suspend":false}}')
    assert "the run succeeded: mnist-worker-0 ended with code 0" in release.finish().splitlines()[-1]
    wait(lambda: not release.tasks(), 60, release.describe)


def test_a_supervisor_may_be_killed_after_any_of_its_writes(release: Release) -> None:
    """While it ends the tasks of a changed run, starts new ones, watches them, and frees them."""
    release.install(
        {"train": {"train_steps": 300}, "run": {"suspend": True}}
    )  # the chart's own supervisor is suspended
    (job,) = release.get("jobs", f"--selector={SUPERVISOR}")["items"]
    config = yaml.safe_load(release.kubectl("config", "view", "--raw", "--minify"))
    config["contexts"][0]["context"]["namespace"] = release.namespace
    (release.folder / "kubeconfig").write_text(yaml.safe_dump(config))
    environment = {"KUBECONFIG": "kubeconfig", "JOB_UID": job["metadata"]["uid"], "PYTHONPATH": str(ROOT)}
    run = json.loads(release.get("configmap", "mnist-supervisor")["data"]["run.json"]) | {"metricsPort": None}
    attempts: list[str] = []

    def supervise(writes: int) -> int:
        """Run a supervisor that is killed after this number of writes; return its exit code."""
        (release.folder / "run.json").write_text(json.dumps(run))
        done = subprocess.run(
            [sys.executable, "-m", "tests.e2e.killed_supervisor", str(writes), "--run=run.json"],
            env=os.environ | environment,
            cwd=release.folder,
            capture_output=True,
            text=True,
            timeout=180,
        )
        attempts.append(f"killed after {writes} writes: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.returncode

    def observed() -> tuple[str, Any]:
        """Return the state of the run, and all data that the next supervisor can read."""
        notes = release.get("configmap", "mnist-run")["data"]["notes.json"]
        return json.loads(notes)["state"], [notes, release.scales()]

    assert supervise(4) == -signal.SIGKILL, attempts
    wait(lambda: len(release.tasks()) == 3, 60, release.describe)
    run["hash"] = "changed"
    for role in ("ps", "worker"):
        release.kubectl("set", "env", f"statefulset/mnist-{role}", "TASK_RUN=changed")
    writes, before = 1, observed()
    while (code := supervise(writes)) == -signal.SIGKILL:
        now = observed()
        # A supervisor that changed nothing needs more writes.
        writes = 1 if now[0] != before[0] else writes + (now == before)
        before = now
    output = "\n".join(attempts)
    assert code == 0, output
    assert "the run succeeded: mnist-worker-0 ended with code 0" in output.splitlines()[-1]
    assert observed()[0] == "Succeeded"
    assert set(release.scales().values()) == {0}
    assert release.wait_for_result(300)["global_step"] < 400


def test_a_suspended_run_frees_its_resources_and_resumes_later(release: Release) -> None:
    values = SHORT | {"train": {"train_steps": 1_000_000, "save_seconds": 2}}
    release.install(values)
    wait(lambda: "steps/s" in release.supervisor_log(), 120, release.describe)
    release.upgrade(values | {"run": {"suspend": True}})
    wait(lambda: not release.tasks(), 90, release.describe)
    assert "restored" not in release.saved_log("worker-0")
    release.upgrade(values)
    wait(lambda: "restored /training/model.ckpt-" in release.saved_log("worker-0"), 120, release.describe)
    assert set(release.tasks()) == {"mnist-ps-0", "mnist-worker-0", "mnist-worker-1"}
    release.upgrade(values | {"run": {"activeDeadlineSeconds": 1}})
    assert "longer than run.activeDeadlineSeconds (1 s)" in release.finish("failed").splitlines()[-1]
    assert set(release.scales().values()) == {0}


def test_a_parameter_server_strategy_run_ends_although_its_servers_never_end(release: Release) -> None:
    """With the values in examples/, and a program that reads only TF_CONFIG."""
    release.kubectl("create", "configmap", "programs", f"--from-file={ROOT / 'examples' / 'programs'}")
    values = yaml.safe_load((ROOT / "examples" / "values-parameter-server-strategy.yaml").read_text())
    release.install(values)
    assert "the run succeeded: mnist-chief-0 ended with code 0" in release.finish().splitlines()[-1]
    wait(lambda: not release.tasks(), 90, release.describe)
