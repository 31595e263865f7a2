"""A run under the supervisor, from `helm install` to its own end."""

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

from tests.cluster.kubernetes import BOX, CONTAINERD_SOCKET
from tests.cluster.places import KUBECONFIG
from tests.e2e.releases import ROOT, SUPERVISOR, Release, exit_code, wait

SHORT: dict[str, Any] = {"train": {"train_steps": 500, "learning_rate": 0.003}}


@pytest.fixture
def the_node_forgets(kubeconfig: Path) -> Callable[[str], None]:
    """Removes a dead container from the throw-away cluster's node, as its kubelet would, by the runtime's interface."""
    if kubeconfig != KUBECONFIG:
        pytest.skip("the cluster is another one, in KUBECONFIG: its nodes' runtime is out of reach")

    def remove(container: str) -> None:
        number = container.removeprefix("containerd://").encode()
        request = b"\n" + bytes([len(number)]) + number  # RemoveContainerRequest: container_id is its field 1
        with grpc.insecure_channel(f"unix:///proc/{BOX.first_process()}/root{CONTAINERD_SOCKET}") as channel:
            channel.unary_unary("/runtime.v1.RuntimeService/RemoveContainer")(request, timeout=60)

    return remove


def test_a_run_ends_by_itself_frees_what_it_held_and_is_left_alone(release: Release) -> None:
    release.install(SHORT)
    last = release.finish().splitlines()[-1]
    told = "the run succeeded: mnist-worker-0 ended with code 0; test accuracy 0.9"
    assert told in last
    command = shlex.split(last.partition(": kubectl ")[2])
    wait(lambda: release.try_kubectl(*command).returncode == 0, 60, release.describe)
    assert f"test accuracy {json.loads(release.kubectl(*command))['test_accuracy']:.4f}" in last
    wait(lambda: not release.tasks(), 60, release.describe)
    assert release.scales() == {"mnist-ps": 0, "mnist-worker": 0}
    result = release.wait_for_result(500)
    assert result["test_accuracy"] > 0.9
    assert "test accuracy" in release.kept_log("worker-0"), "the log outlives its pod"
    (pod,) = release.get("pods", f"--selector={SUPERVISOR}")["items"]
    message = pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
    assert message.startswith(told)
    assert message in release.kubectl("get", "events", "--field-selector=reason=RunSucceeded")

    # Another pod of TensorBoard finds its place although no task is left, whose node it would share.
    release.upgrade(SHORT | {"tensorboard": {"labels": {"team": "a"}}}, "--wait", "--timeout=2m")
    assert release.wait_for_result(500) == result
    assert release.scales() == {"mnist-ps": 0, "mnist-worker": 0}, "a run that is unchanged is left alone"
    assert "SUCCEEDED" in release.helm("test", "mnist", "--timeout=2m").upper()

    release.upgrade(SHORT | {"train": {"train_steps": 800}})
    release.finish()
    assert release.wait_for_result(800)["train_dir"] == "/training"
    assert "restored /training/model.ckpt-" in release.kept_log("worker-0")


def test_a_run_that_fails_says_which_task_and_why_and_holds_nothing(release: Release) -> None:
    program = 'echo "what went wrong"; exit 9'
    release.install(SHORT | {"worker": {"command": ["sh", "-c", program]}})
    lines = release.finish("failed").splitlines()
    assert "failed with code 9, which is not tried again" in lines[-1]
    assert any(line.endswith(": what went wrong") and " | mnist-worker-" in line for line in lines)
    wait(lambda: not release.tasks(), 60, release.describe)
    assert set(release.scales().values()) == {0}


def test_what_keeps_a_task_from_starting_is_said_and_ends_the_run(release: Release) -> None:
    values = {"worker": {"nodeSelector": {"no": "such-node"}}, "run": {"startTimeoutSeconds": 25}}
    release.install(SHORT | values)
    text = release.finish("failed")
    assert re.search(r"waiting for mnist-worker-0: no node has the labels .* asks for \(and 1 more\)", text)
    assert "did not start within run.startTimeoutSeconds (25 s)" in text.splitlines()[-1]
    assert set(release.scales().values()) == {0}


def test_a_corrected_image_replaces_the_tasks_that_were_made_with_the_wrong_one(release: Release) -> None:
    release.install(SHORT | {"image": {"repository": "absent.invalid/trainer"}})
    wait(lambda: "mnist-worker-0" in release.tasks(), 60, release.describe)
    release.upgrade(SHORT)
    assert "the run succeeded" in release.finish()


def test_a_task_that_nobody_can_find_is_named(release: Release) -> None:
    release.install(SHORT | {"run": {"startTimeoutSeconds": 40}})
    release.kubectl("delete", "service", "mnist-ps")
    text = release.finish("failed")
    assert "waiting for mnist-ps-0: the cluster's DNS does not know mnist-ps-0.mnist-ps" in text


def test_a_supervisor_that_is_killed_is_followed_by_another_that_goes_on(release: Release) -> None:
    values = SHORT | {"train": {"train_steps": 20_000}, "worker": {"replicas": 1}}
    release.install(values)
    wait(lambda: "steps/s" in release.said(), 120, release.describe)
    (pod,) = release.get("pods", f"--selector={SUPERVISOR}")["items"]
    metrics = f"/api/v1/namespaces/{release.namespace}/pods/{pod['metadata']['name']}:9100/proxy/metrics"
    assert 'trainer_run_state{state="Running"} 1.0' in release.kubectl("get", "--raw", metrics)
    release.kubectl("delete", "pod", f"--selector={SUPERVISOR}", "--now")
    wait(lambda: "going on with the run that is under way" in release.said(), 60, release.describe)
    release.upgrade(values | {"run": {"backoffLimit": 7}})  # which another supervisor is told
    assert "going on with the run that is under way" in release.finish(), "and its clock goes on"
    assert release.wait_for_result(20_000)["global_step"] < 20_200


def test_a_run_ends_although_its_node_has_forgotten_how_its_tasks_ended(
    release: Release, the_node_forgets: Callable[[str], None]
) -> None:
    """The kubelet's collector may remove a dead container when the next one is about to start."""
    release.install(SHORT)
    wait(lambda: "mnist-worker-1" in release.tasks(), 60, release.describe)
    job = release.kubectl("get", "jobs", f"--selector={SUPERVISOR}", "--output=name").strip()
    release.kubectl("patch", job, '--patch={"spec":{"suspend":true}}')
    release.wait_until_all_rest()
    for pod in release.tasks().values():
        the_node_forgets(pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["containerID"])
    release.kubectl("annotate", "pods", "--all", "looked=at")  # upon which the kubelet says anew what it knows
    wait(lambda: {exit_code(pod) for pod in release.tasks().values()} == {None}, 60, release.describe)
    release.kubectl("patch", job, '--patch={"spec":{"suspend":false}}')
    assert "the run succeeded: mnist-worker-0 ended with code 0" in release.finish().splitlines()[-1]
    wait(lambda: not release.tasks(), 60, release.describe)


def test_a_supervisor_may_die_after_any_of_its_writes(release: Release) -> None:
    """While it ends a changed run's old tasks, starts the new ones, watches them, and cleans up after them."""
    release.install({"train": {"train_steps": 300}, "run": {"suspend": True}})  # the chart's own supervisor waits
    (job,) = release.get("jobs", f"--selector={SUPERVISOR}")["items"]
    config = yaml.safe_load(release.kubectl("config", "view", "--raw", "--minify"))
    config["contexts"][0]["context"]["namespace"] = release.namespace
    (release.folder / "kubeconfig").write_text(yaml.safe_dump(config))
    known_to_it = {"KUBECONFIG": "kubeconfig", "JOB_UID": job["metadata"]["uid"], "PYTHONPATH": str(ROOT)}
    run = yaml.safe_load(release.get("configmap", "mnist-supervisor")["data"]["run.yaml"]) | {"metrics_port": None}
    lives: list[str] = []

    def live(writes: int) -> int:
        """Be a supervisor for so many writes; its exit code."""
        (release.folder / "run.yaml").write_text(yaml.safe_dump(run))
        done = subprocess.run(
            [sys.executable, "-m", "tests.e2e.mortal_supervisor", str(writes), "--run=run.yaml"],
            env=os.environ | known_to_it,
            cwd=release.folder,
            capture_output=True,
            text=True,
            timeout=180,
        )
        lives.append(f"dies after {writes} writes: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.returncode

    def known() -> tuple[str, Any]:
        """The state of the run, and all that lives after this one can know."""
        notes = release.get("configmap", "mnist-run")["data"]["notes.json"]
        return json.loads(notes)["state"], [notes, release.scales()]

    assert live(4) == -signal.SIGKILL, lives
    wait(lambda: len(release.tasks()) == 3, 60, release.describe)
    run["hash"] = "changed"
    for role in ("ps", "worker"):
        release.kubectl("set", "env", f"statefulset/mnist-{role}", "TASK_RUN=changed")
    writes, before = 1, known()
    while (code := live(writes)) == -signal.SIGKILL:
        now = known()
        # A life that changed nothing had not enough writes for that.
        writes = 1 if now[0] != before[0] else writes + (now == before)
        before = now
    said = "\n".join(lives)
    assert code == 0, said
    assert "the run succeeded: mnist-worker-0 ended with code 0" in said.splitlines()[-1]
    assert known()[0] == "Succeeded"
    assert set(release.scales().values()) == {0}
    assert release.wait_for_result(300)["global_step"] < 400


def test_a_suspended_run_holds_nothing_and_goes_on_later(release: Release) -> None:
    values = SHORT | {"train": {"train_steps": 1_000_000, "save_seconds": 2}}
    release.install(values)
    wait(lambda: "steps/s" in release.said(), 120, release.describe)
    release.upgrade(values | {"run": {"suspend": True}})
    wait(lambda: not release.tasks(), 90, release.describe)
    assert "restored" not in release.kept_log("worker-0")
    release.upgrade(values)
    wait(lambda: "restored /training/model.ckpt-" in release.kept_log("worker-0"), 120, release.describe)
    assert set(release.tasks()) == {"mnist-ps-0", "mnist-worker-0", "mnist-worker-1"}
    release.upgrade(values | {"run": {"activeDeadlineSeconds": 1}})
    assert "longer than run.activeDeadlineSeconds (1 s)" in release.finish("failed").splitlines()[-1]
    assert set(release.scales().values()) == {0}


def test_a_parameter_server_strategy_program_ends_although_its_servers_never_do(release: Release) -> None:
    """With the values of examples/, and a program that knows only TF_CONFIG."""
    release.kubectl("create", "configmap", "programs", f"--from-file={ROOT / 'examples' / 'programs'}")
    values = yaml.safe_load((ROOT / "examples" / "values-parameter-server-strategy.yaml").read_text())
    release.install(values)
    assert "the run succeeded: mnist-chief-0 ended with code 0" in release.finish().splitlines()[-1]
    wait(lambda: not release.tasks(), 90, release.describe)
