"""Runs with the supervisor, from `helm install` to the end of the run."""

import contextlib
import dataclasses
import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from hack.cluster.node import FIRST, SANDBOX
from hack.cluster.paths import KUBECONFIG
from tests.e2e import api
from tests.e2e.releases import CHART, ROOT, SUPERVISOR, YIELDING, Release, exit_code, is_ready, wait

LONG: dict[str, Any] = {"train": {"train_steps": 1_000_000, "save_seconds": 2}} | YIELDING
SHORT: dict[str, Any] = {"train": {"train_steps": 1500, "learning_rate": 0.003}}
UNTIL_TOLD: dict[str, Any] = {
    "common": {"command": ["sh", "-c", "until [ -e /training/end ]; do sleep 1; done"]},
    "ps": {"replicas": 0},
    "worker": {"replicas": 1},
}
"""Values of a task without TensorFlow, for tests of the supervisor alone: it ends when /training/end exists."""
HAS_STARTED = "every task has started"


@pytest.fixture
def kubelet(kubeconfig: Path) -> Iterator[int]:
    """The process id of the throw-away cluster's kubelet, which runs again after the test."""
    if kubeconfig != KUBECONFIG:
        pytest.skip("the kubelet of the cluster in KUBECONFIG is not accessible")
    found = subprocess.run(["pgrep", "--full", "^kubelet --kubeconfig"], capture_output=True, text=True, check=True)
    (number,) = map(int, found.stdout.split())
    yield number
    os.kill(number, signal.SIGCONT)


@pytest.fixture
def remove_container(kubeconfig: Path) -> Callable[[str], None]:
    """Removes an exited container from the throw-away cluster's node through the runtime, as the kubelet would."""
    if kubeconfig != KUBECONFIG:
        pytest.skip("the container runtime of the cluster in KUBECONFIG is not accessible")

    def remove(container: str) -> None:
        number = container.removeprefix("containerd://").encode()
        request = b"\n" + bytes([len(number)]) + number  # RemoveContainerRequest: container_id is its field 1
        with grpc.insecure_channel(f"unix:///proc/{SANDBOX.first_process()}/root{FIRST.socket}") as channel:
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
    result = release.wait_for_result(1500)
    assert result["test_accuracy"] > 0.9
    assert "test accuracy" in release.saved_log("worker-0"), "the log remains after its pod"
    (pod,) = release.get("pods", labelSelector=SUPERVISOR)["items"]
    message = pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
    assert message.startswith(outcome)
    assert message in release.kubectl("get", "events", "--field-selector=reason=RunSucceeded")

    # A new TensorBoard pod is scheduled although all pods of tasks are gone.
    release.upgrade(SHORT | {"tensorboard": {"labels": {"team": "a"}}}, "--wait", "--timeout=2m")
    assert release.wait_for_result(1500) == result
    assert release.scales() == {"mnist-ps": 0, "mnist-worker": 0}, "an unchanged run is not started again"
    assert "SUCCEEDED" in release.helm("test", "mnist", "--timeout=2m").upper()

    release.upgrade(SHORT | {"train": {"train_steps": 1800}})
    release.finish()
    assert release.wait_for_result(1800)["train_dir"] == "/training"
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
    values = {"worker": {"nodeSelector": {"no": "such-node"}}, "run": {"schedulingTimeoutSeconds": 25}}
    release.install(SHORT | values)
    text = release.finish("failed")
    assert re.search(r"waiting for mnist-worker-0: no node has the labels .* asks for \(and 1 more\)", text)
    assert "did not start within run.schedulingTimeoutSeconds (25 s)" in text.splitlines()[-1]
    assert set(release.scales().values()) == {0}


@pytest.mark.long
def test_a_corrected_image_replaces_the_tasks_with_the_wrong_image(release: Release) -> None:
    release.install(SHORT | {"image": {"repository": "absent.invalid/trainer"}})
    wait(lambda: "mnist-worker-0" in release.tasks(), 60, release.describe)
    release.upgrade(SHORT)
    assert "the run succeeded" in release.finish()


def test_a_task_whose_dns_name_does_not_resolve_is_reported(release: Release) -> None:
    release.install(SHORT | {"run": {"startTimeoutSeconds": 40}})
    release.kubectl("delete", "service", "mnist-ps")
    what = "waiting for mnist-ps-0: the supervisor's pod cannot resolve mnist-ps-0.mnist-ps"
    wait(lambda: what in release.supervisor_log(), 120, release.describe)
    time.sleep(30)  # longer than run.startTimeoutSeconds
    assert not release.notes()["ended"]


def test_a_new_supervisor_continues_the_run_of_a_killed_one(release: Release) -> None:
    values = LONG | {"worker": {"replicas": 1}}
    release.install(values)
    wait(lambda: "steps/s" in release.supervisor_log(), 120, release.describe)
    (pod,) = release.get("pods", labelSelector=SUPERVISOR)["items"]
    metrics = f"/api/v1/namespaces/{release.namespace}/pods/{pod['metadata']['name']}:9100/proxy/metrics"
    assert 'trainer_run_state{state="Running"} 1.0' in release.kubectl("get", "--raw", metrics)
    before, known = release.containers(), {pod["metadata"]["name"]}

    def a_new_one_continues() -> bool:
        """Whether a pod that is not known follows the run that goes on."""
        pods = {each["metadata"]["name"] for each in release.get("pods", labelSelector=SUPERVISOR)["items"]}
        logs = [api.log(release.namespace, name) for name in pods - known]
        return any("the supervisor continues the run in progress" in log and "steps/s" in log for log in logs)

    release.kubectl("delete", "pod", f"--selector={SUPERVISOR}", "--now")
    wait(a_new_one_continues, 120, release.describe)
    known |= {each["metadata"]["name"] for each in release.get("pods", labelSelector=SUPERVISOR)["items"]}
    release.upgrade(values | {"run": {"backoffLimit": 7}})  # starts a new supervisor
    wait(a_new_one_continues, 120, release.describe)
    assert release.containers() == before, "the same tasks go on"


@pytest.mark.long
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

    def are_forgotten() -> bool:
        """Whether the kubelet has noticed it, which reports the status again when a pod changes."""
        release.kubectl("annotate", "pods", "--all", "--overwrite", f"changed={time.time()}")
        return {exit_code(pod) for pod in release.tasks().values()} == {None}

    wait(are_forgotten, 60, release.describe)
    release.kubectl("patch", job, '--patch={"spec":{"suspend":false}}')
    assert "the run succeeded: mnist-worker-0 ended with code 0" in release.finish().splitlines()[-1]
    wait(lambda: not release.tasks(), 60, release.describe)


def test_a_supervisor_may_be_killed_after_any_of_its_writes(release: Release) -> None:
    """While it ends the tasks of a changed run, starts new ones, watches them, and frees them."""
    release.install({"train": {"train_steps": 300}, "run": {"suspend": True}})
    release.finish()  # the chart's own supervisor
    (job,) = release.get("jobs", labelSelector=SUPERVISOR)["items"]
    config = yaml.safe_load(release.kubectl("config", "view", "--raw", "--minify"))
    config["contexts"][0]["context"]["namespace"] = release.namespace
    (release.folder / "kubeconfig").write_text(yaml.safe_dump(config))
    environment = {"KUBECONFIG": "kubeconfig", "JOB_UID": job["metadata"]["uid"], "PYTHONPATH": str(ROOT)}
    settings = release.get("configmap", job["metadata"]["name"].replace("-run-", "-supervisor-"))["data"]["run.json"]
    run = json.loads(settings) | {"metricsPort": None, "suspend": False}
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

    assert supervise(8) == -signal.SIGKILL, attempts
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
    # The tasks of the run before the change may have taken all steps by then.
    done = r"the run succeeded: (nothing was trained, .*; )?mnist-worker-0 ended with code 0"
    assert re.search(done, output.splitlines()[-1]), output
    assert observed()[0] == "Succeeded"
    assert set(release.scales().values()) == {0}
    assert release.wait_for_result(300)["global_step"] < 400


def test_a_suspended_run_frees_its_resources_and_resumes_later(release: Release) -> None:
    values = SHORT | {"train": {"train_steps": 1_000_000, "save_seconds": 2}}
    release.install(values)
    wait(lambda: "steps/s" in release.supervisor_log(), 120, release.describe)
    release.upgrade(values | {"run": {"suspend": True}})
    assert "the run is suspended" in release.finish()
    assert (release.notes()["state"], release.tasks()) == ("Suspended", {})
    assert "restored" not in release.saved_log("worker-0")
    release.upgrade(values)
    wait(lambda: "restored /training/model.ckpt-" in release.saved_log("worker-0"), 120, release.describe)
    assert set(release.tasks()) == {"mnist-ps-0", "mnist-worker-0", "mnist-worker-1"}
    release.upgrade(values | {"run": {"activeDeadlineSeconds": 1}})
    assert "longer than run.activeDeadlineSeconds (1 s)" in release.finish("failed").splitlines()[-1]
    assert set(release.scales().values()) == {0}


@pytest.mark.long
def test_a_parameter_server_strategy_run_ends_although_its_servers_never_end(release: Release) -> None:
    """With the values in examples/, and a program that reads only TF_CONFIG."""
    release.kubectl("create", "configmap", "programs", f"--from-file={ROOT / 'examples' / 'programs'}")
    values = yaml.safe_load((ROOT / "examples" / "values-parameter-server-strategy.yaml").read_text())
    release.install(values)
    assert "the run succeeded: mnist-chief-0 ended with code 0" in release.finish().splitlines()[-1]
    wait(lambda: not release.tasks(), 90, release.describe)


@pytest.mark.parametrize("program", ["helm", pytest.param("helm3", marks=pytest.mark.long)])
def test_the_life_of_a_release(release: Release, program: str, tmp_path: Path) -> None:
    """Helm 3 merges manifests; Helm 4 applies them on the server's side."""
    if not shutil.which(program):
        pytest.skip(f"{program} is not on PATH")
    release = dataclasses.replace(release, program=program)
    release.install(LONG)
    wait(lambda: "steps/s" in release.supervisor_log(), 120, release.describe)
    wait(lambda: release.deployment_is_available("tensorboard"), 90, release.describe)
    before = release.containers()
    release.upgrade(LONG | {"tensorboard": {"labels": {"team": "a"}}})
    release.helm("rollback", "mnist", "1")
    wait(lambda: release.deployment_is_available("tensorboard"), 90, release.describe)
    assert release.containers() == before

    newer = tmp_path / "newer"
    shutil.copytree(CHART, newer)
    for name, old, new in (
        ("Chart.yaml", "\nversion: 0", "\nversion: 9"),
        ("files/task.sh", "\n", "\n# another line\n"),
    ):
        text = (newer / name).read_text()
        assert old in text
        (newer / name).write_text(text.replace(old, new, 1))
    supervisor = release.notes()["supervisor"]
    assert "STATUS: deployed" in release.helm("upgrade", "mnist", str(newer), values=LONG)
    assert (release.containers(), release.notes()["supervisor"]) == (before, supervisor), "the images are the same"
    release.helm("rollback", "mnist", "1")

    release.upgrade(LONG | {"run": {"suspend": True}})
    assert "the run is suspended" in release.finish()
    assert (release.notes()["state"], release.tasks()) == ("Suspended", {})
    release.helm("rollback", "mnist", "1")  # to before the suspension
    wait(lambda: "restored /training/model.ckpt-" in release.saved_log("worker-0"), 120, release.describe)

    release.upgrade({"train": {"train_steps": 500}})
    assert "the run succeeded" in release.finish().splitlines()[-1]
    release.helm("uninstall", "mnist", "--wait")
    kinds = "all,configmaps,serviceaccounts,roles,networkpolicies"
    wait(lambda: "mnist" not in release.kubectl("get", kinds, "--output=name"), 60, release.describe)


def test_a_corrected_installation_starts_the_run_that_a_refused_one_could_not(release: Release) -> None:
    """The API server refuses a StatefulSet whose requests exceed its limits, after it has created other objects."""
    extra = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {}}}
    extra["spec"] = {"hard": {"count/statefulsets.apps": "1"}}
    release.kubectl("create", "--filename=-", text=json.dumps(extra))
    release.kubectl("wait", "--for=jsonpath={.status.hard}", "resourcequota/few", "--timeout=60s")
    # A worker needs its parameter server: without one it would end, and the run with it.
    waits = ["sh", "-c", "until getent hosts mnist-ps-0.mnist-ps; do sleep 1; done"]
    values = {"worker": {"command": waits}, "ps": {"command": ["sleep", "infinity"]}}
    file = release.folder / "refused.yaml"
    file.write_text(yaml.safe_dump(values))
    words = ["--namespace", release.namespace, "install", "mnist", str(CHART), "--values", str(file)]
    refused = subprocess.run([release.program, *words], capture_output=True, text=True)
    assert refused.returncode, "the quota allows one StatefulSet only"
    wait(lambda: "does not exist: complete the installation" in release.supervisor_log(), 60, release.describe)
    release.kubectl("delete", "resourcequota", "few")
    release.upgrade(values)
    assert "the run succeeded" in release.finish().splitlines()[-1]


def test_an_upgrade_that_fails_leaves_one_supervisor(release: Release) -> None:
    """The API server refuses an Ingress of the upgrade, so Helm does not delete the Job of the old supervisor."""
    release.install(UNTIL_TOLD)
    wait(lambda: HAS_STARTED in release.supervisor_log(), 120, release.describe)
    before, old = release.containers(), release.notes()["job"]
    backend = {"service": {"name": "mnist-worker", "port": {"number": 80}}}
    paths = {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}
    metadata = {"name": "wrong", "namespace": release.namespace}
    ingress = {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata}
    ingress["spec"] = {"rules": [{"host": "not a host", "http": paths}]}
    changed = release.folder / "changed.yaml"
    changed.write_text(yaml.safe_dump({"run": {"backoffLimit": 5}, "extraObjects": [ingress]}))
    command = [release.program, "--namespace", release.namespace, "upgrade", "mnist", str(CHART), "--reuse-values"]
    refused = subprocess.run([*command, "--values", str(changed)], capture_output=True, text=True)
    assert "host" in refused.stderr, refused.stderr
    wait(lambda: release.notes()["job"] != old, 120, release.describe)
    wait(lambda: "this one waits" in release.supervisor_log(), 120, release.describe)
    new, log = release.notes()["job"], release.supervisor_log()
    time.sleep(30)
    jobs = {
        each["metadata"]["name"]: each["metadata"] for each in release.get("jobs", labelSelector=SUPERVISOR)["items"]
    }
    assert jobs.keys() == {old, new}
    assert jobs[old]["ownerReferences"][0]["name"] == "mnist-run", "it goes with the release, if Helm has forgotten it"
    assert (release.notes()["job"], release.notes()["state"]) == (new, "Running")
    assert release.containers() == before, "the tasks are not affected"
    assert "set it again" not in log
    release.helm("rollback", "mnist")
    wait(lambda: release.notes()["job"] == old, 120, release.describe)
    assert release.containers() == before
    release.helm("uninstall", "mnist")  # Helm may know only one of the Jobs
    wait(lambda: not release.get("jobs", labelSelector=SUPERVISOR)["items"], 120, release.describe)


@contextlib.contextmanager
def denied(release: Release, resource: str, operation: str, is_denied: Callable[[], bool]) -> Iterator[None]:
    """A policy of the cluster denies an operation in the namespace of a release, from when `is_denied` on."""
    group = "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": [operation], "resources": [resource]}
    denies = {"expression": "false", "message": "not today"}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": release.namespace}}}
    specs = {
        "ValidatingAdmissionPolicy": {"matchConstraints": {"resourceRules": [rule]}, "validations": [denies]},
        "ValidatingAdmissionPolicyBinding": {
            "policyName": release.namespace,
            "validationActions": ["Deny"],
            "matchResources": here,
        },
    }
    try:
        for kind, spec in specs.items():
            policy = {"apiVersion": group, "kind": kind, "metadata": {"name": release.namespace}, "spec": spec}
            release.kubectl("create", "--filename=-", text=json.dumps(policy))
        wait(is_denied, 60, release.describe)
        yield
    finally:
        for kind in specs:
            release.try_kubectl("delete", "--ignore-not-found", kind, release.namespace)


def test_requests_that_the_cluster_refuses_are_repeated_and_the_run_goes_on(release: Release) -> None:
    """A policy denies the supervisor to start the task, and later to free it."""
    scale = ["scale", "statefulset/mnist-worker", "--replicas=0", "--dry-run=server"]
    refuses = functools.partial(denied, release, "statefulsets/scale", "UPDATE")

    def refusals() -> int:
        return release.supervisor_log().count("not today")

    release.install(UNTIL_TOLD | {"run": {"suspend": True}})
    release.finish()
    with refuses(lambda: release.try_kubectl(*scale).returncode != 0):
        release.upgrade(UNTIL_TOLD)
        wait(refusals, 120, release.describe)
        assert not release.tasks()
    wait(lambda: HAS_STARTED in release.supervisor_log(), 120, release.describe)
    with refuses(lambda: release.try_kubectl(*scale).returncode != 0):
        before = refusals()
        release.kubectl("exec", "mnist-worker-0", "--", "touch", "/training/end")
        wait(lambda: refusals() > before, 120, release.describe)
        assert release.tasks(), "the task is not freed yet"
    assert "the run succeeded" in release.finish().splitlines()[-1]
    assert release.scales()["mnist-worker"] == 0


def test_the_supervisor_killed_while_a_service_is_absent_goes_on(release: Release) -> None:
    release.install(UNTIL_TOLD | {"run": {"startTimeoutSeconds": 25}})
    wait(lambda: HAS_STARTED in release.supervisor_log(), 120, release.describe)
    before = release.containers()
    service = release.get("service", "mnist-worker")
    release.kubectl("delete", "service", "mnist-worker")
    release.kubectl("delete", "pod", f"--selector={SUPERVISOR}", "--now")
    wait(lambda: "cannot resolve" in release.supervisor_log(), 90, release.describe)
    time.sleep(30)  # longer than run.startTimeoutSeconds
    for key in ("uid", "resourceVersion", "creationTimestamp"):
        del service["metadata"][key]
    release.kubectl("create", "--filename=-", text=json.dumps(service))
    assert (release.notes()["state"], release.containers()) == ("Running", before)


@pytest.mark.long
def test_a_rule_restarts_all_tasks(release: Release) -> None:
    """A worker ends with 42 at its first start. With the rule, parameter servers and workers start again."""
    program = 'if [ ! -e /training/tried ] && [ "$POD_INDEX" = 1 ]; then touch /training/tried; exit 42; fi; sleep 5'
    rule = {"action": "RestartAll", "onExitCodes": {"operator": "In", "values": [42]}}
    release.install(
        {
            "run": {
                "failurePolicy": {"rules": [rule], "maxRestarts": 1},
                "successPolicy": "AllWorkers",
                "lastLines": 5,
            },
            "worker": {"command": ["sh", "-c", f"echo begins; {program}"]},
            "ps": {"command": ["sleep", "3600"]},
        }
    )
    log = release.finish()
    assert "mnist-worker-1 failed with code 42: restarting all tasks (restart 1 of 1)" in log
    assert "| mnist-worker-0: begins" in log, "run.lastLines copies the logs of tasks that succeeded"
    assert "the run succeeded: every worker ended with code 0" in log.splitlines()[-1]


@pytest.mark.long
def test_the_job_shows_the_state_the_progress_and_the_outcome(release: Release) -> None:
    release.install({"train": {"train_steps": 60_000}})
    (job,) = release.get("jobs", labelSelector=SUPERVISOR)["items"]

    def shown() -> dict[str, str]:
        found = release.get("job", job["metadata"]["name"])["metadata"].get("annotations", {})
        return {
            key.partition("/")[2]: value for key, value in found.items() if key.startswith("distributed-tensorflow/")
        }

    wait(lambda: {"progress", "estimated-end"} <= shown().keys(), 120, release.describe)
    assert shown()["state"] == "Running"
    assert re.match(r"step \d+/60000: .* steps/s", shown()["progress"])
    last = release.finish().splitlines()[-1]
    assert shown()["state"] == "Succeeded"
    assert last.endswith(shown()["outcome"])
    reasons = {event["reason"] for event in release.get("events", fieldSelector="involvedObject.kind=Job")["items"]}
    assert {"RunStarted", "RunSucceeded"} <= reasons


@pytest.mark.alone
@pytest.mark.long
def test_a_pod_of_a_node_that_does_not_answer_is_removed(release: Release, kubelet: int) -> None:
    release.install(LONG | {"run": {"nodeLossSeconds": 5}, "common": {"terminationGracePeriodSeconds": 1}})
    wait(lambda: "steps/s" in release.supervisor_log(), 120, release.describe)
    before = release.containers()["mnist-worker-1"][0]

    def worker() -> Any:
        return release.tasks().get("mnist-worker-1", {"metadata": {"uid": before}, "status": {}})

    os.kill(kubelet, signal.SIGSTOP)
    release.kubectl("delete", "pod", "mnist-worker-1", "--wait=false")
    wait(lambda: worker()["metadata"]["uid"] != before, 60, release.describe)
    release.kubectl("delete", "pod", f"--selector={SUPERVISOR}", "--wait=false")
    wait(lambda: len(release.get("pods", labelSelector=SUPERVISOR)["items"]) == 2, 60)  # its Job has replaced it
    os.kill(kubelet, signal.SIGCONT)
    wait(lambda: is_ready(worker()), 90, release.describe)
    wait(lambda: "the supervisor continues the run in progress" in release.supervisor_log(), 60, release.describe)
