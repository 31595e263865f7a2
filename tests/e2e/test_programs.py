"""Custom programs under the supervisor: those in `examples/`, and programs that fail or never end.

`test_supervisor.py` has the program with `ParameterServerStrategy`.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import trainer
from tests.e2e.releases import CHART, ROOT, SUPERVISOR, Release, wait

EXAMPLES = ROOT / "examples"
PROGRAM: dict[str, Any] = {
    "worker": {"replicas": 1},
    "ps": {"replicas": 0},
    "trainingDirectory": {"enabled": False},
    "tensorboard": {"enabled": False},
}
"""Values of a run with one task; each test sets its command."""
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def install_example(release: Release, name: str) -> None:
    """Install a values file in `examples/` with its programs."""
    release.kubectl("create", "configmap", "programs", f"--from-file={EXAMPLES / 'programs'}")
    release.install(yaml.safe_load((EXAMPLES / name).read_text()))


def wait_until_freed(release: Release) -> None:
    """Wait until all pods of tasks are gone, and check that every StatefulSet has 0 replicas."""
    wait(lambda: not release.tasks(), 90, release.describe)
    assert set(release.scales().values()) == {0}


def test_a_multi_worker_mirrored_run_succeeds(release: Release) -> None:
    install_example(release, "values-multi-worker-mirrored.yaml")
    assert "the run succeeded: mnist-worker-0 ended with code 0" in release.finish().splitlines()[-1]
    wait_until_freed(release)


def test_a_program_with_classic_flags_succeeds_and_its_parameter_servers_are_freed(release: Release) -> None:
    install_example(release, "values-classic-flags.yaml")
    assert "the run succeeded: mnist-worker-0 ended with code 0" in release.finish().splitlines()[-1]
    wait_until_freed(release)


def test_a_client_of_standard_servers_fits_the_line_and_ends_the_run(release: Release) -> None:
    install_example(release, "values-standard-servers.yaml")
    lines = release.finish().splitlines()
    assert "the run succeeded: mnist-client-0 ended with code 0" in lines[-1]
    wait_until_freed(release)
    (job,) = release.get("jobs", labelSelector="app.kubernetes.io/component=client")["items"]
    log = release.kubectl("logs", f"job/{job['metadata']['name']}")
    found = {name: float(figure) for name, figure in re.findall(r"(slope|intercept): (-?[\d.]+)", log)}
    assert found == {"slope": pytest.approx(2, rel=0.01), "intercept": pytest.approx(10, rel=0.01)}

    release.helm("upgrade", "mnist", str(CHART), "--reuse-values", "--set", "metrics.enabled=false")
    (after,) = release.get("jobs", labelSelector="app.kubernetes.io/component=client")["items"]
    assert after["metadata"]["uid"] == job["metadata"]["uid"], "an unchanged run is not started again"


def test_a_converted_tfjob_runs_to_its_end(namespace: str, packaged_images: None, tmp_path: Path) -> None:
    """Without Pod Security "restricted", because a TFJob does not set the fields that it requires."""
    release = Release("digits", namespace, tmp_path)
    convert = [sys.executable, "-m", "trainer", "convert-tfjob", str(EXAMPLES / "tfjob.yaml")]
    values = subprocess.run(convert, stdout=subprocess.PIPE, check=True)
    install = ["helm", "--namespace", namespace, "install", "digits", str(CHART), "--values", "-"]
    subprocess.run(install, input=values.stdout, check=True, stdout=subprocess.DEVNULL)
    assert "the run succeeded: digits-worker-0 ended with code 0" in release.finish().splitlines()[-1]
    wait_until_freed(release)
    assert release.get("persistentvolumeclaims")["items"] == []


@pytest.mark.parametrize(
    ("command", "run", "reason"),
    [
        pytest.param("exit 1", {}, r"mnist-worker-0 failed with code 1, which is not retried", id="it fails"),
        pytest.param(
            "kill -9 $$$$",  # of two $ Kubernetes leaves one
            {"backoffLimit": 1},
            r"2 incidents with \d restarts exceed run.backoffLimit \(1\); the last was mnist-worker-0 with code 137",
            id="it is killed repeatedly",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "sleep 3600",
            {"activeDeadlineSeconds": 5},
            r"it took longer than run.activeDeadlineSeconds \(5 s\)",
            id="it hangs",
        ),
    ],
)
def test_a_program_that_fails_or_hangs_fails_the_run(
    release: Release, command: str, run: dict[str, Any], reason: str
) -> None:
    release.install(PROGRAM | {"run": run, "worker": {"replicas": 1, "command": ["sh", "-c", command]}})
    assert re.search(f"the run failed: {reason}", release.finish("failed").splitlines()[-1])
    wait_until_freed(release)


def test_an_exit_code_from_128_on_is_retried(release: Release) -> None:
    command = ["sh", "-c", '[ "$TASK_RESTARTS" != 0 ] || exit 200']
    release.install(PROGRAM | {"worker": {"replicas": 1, "command": command}})
    assert "the run succeeded: mnist-worker-0 ended with code 0" in release.finish().splitlines()[-1]
    wait_until_freed(release)


def test_a_task_that_ran_well_restarts_without_the_kubelets_back_off(release: Release) -> None:
    count = "n=$(cat /training/n || echo 0); echo $((n + 1)) > /training/n; [ $n -lt 2 ] || exit 0"
    command = ["sh", "-c", f"{count}; echo attempt $n; sleep 32; exit 200"]
    release.install(PROGRAM | {"trainingDirectory": {}, "worker": {"replicas": 1, "command": command}})
    log = release.finish()
    assert re.search("mnist-worker-0 ran for 3. s: a new pod restarts it", log), log
    assert "| mnist-worker-0: attempt 1" in log
    assert "was replaced" not in log
    assert release.notes()["counted"]["restarts"] == 2


@pytest.mark.long
def test_a_drained_leader_that_ends_with_0_does_not_end_the_run(release: Release) -> None:
    """The program answers SIGTERM with code 0. Its replacement ends by itself."""
    first = "touch /training/tried; echo waiting; trap 'exit 0' TERM; sleep 3600 & wait"
    command = ["sh", "-c", f"if [ -e /training/tried ]; then sleep 20; exit 0; fi; {first}"]
    release.install(PROGRAM | {"trainingDirectory": {}, "worker": {"replicas": 1, "command": command}})
    wait(lambda: "waiting" in release.log("mnist-worker-0"), 120, release.describe)
    release.kubectl("delete", "pod", "mnist-worker-0")
    log = release.finish()
    assert "mnist-worker-0 was replaced" in log
    assert "the run succeeded: mnist-worker-0 ended with code 0" in log.splitlines()[-1]


@pytest.mark.parametrize(("policy", "servers"), [("Running", 0), pytest.param("None", 1, marks=pytest.mark.long)])
def test_clean_pod_policy_decides_which_tasks_are_removed(release: Release, policy: str, servers: int) -> None:
    tasks = {"worker": {"replicas": 1, "command": ["true"]}, "ps": {"replicas": 1, "command": ["sleep", "3600"]}}
    release.install(PROGRAM | tasks | {"run": {"cleanPodPolicy": policy}})
    release.finish()
    assert release.scales() == {"mnist-worker": 1, "mnist-ps": servers}


@pytest.mark.long
def test_an_umbrella_chart_with_two_runs_beside_another_release(release: Release) -> None:
    """The runs of one release differ by the chart's alias in the label app.kubernetes.io/name."""
    umbrella = release.folder / "umbrella"
    umbrella.mkdir()
    dependency = {"name": CHART.name, "version": "*", "repository": f"file://{CHART}"}
    aliases = [dependency | {"alias": "first"}, dependency | {"alias": "second"}]
    chart = {"apiVersion": "v2", "name": "umbrella", "version": "0.1.0", "dependencies": aliases}
    (umbrella / "Chart.yaml").write_text(yaml.safe_dump(chart))
    release.helm("dependency", "update", str(umbrella))
    worker = {"replicas": 1, "command": ["sleep", "3"]}
    second = PROGRAM | {"fullnameOverride": "second", "worker": worker | {"command": ["sh", "-c", "exit 7"]}}
    release.helm("install", "both", str(umbrella), values={"first": PROGRAM | {"worker": worker}, "second": second})
    release.install(PROGRAM | {"worker": worker})
    runs = {"both": "complete", "mnist": "complete", "second": "failed"}
    for job in release.get("jobs", labelSelector=SUPERVISOR)["items"]:
        name = job["metadata"]["name"]
        condition = runs.pop(name.partition("-")[0])
        release.kubectl("wait", f"--for=condition={condition}", f"job/{name}", "--timeout=120s")
        assert name.partition("-")[0] in release.kubectl("logs", f"job/{name}").splitlines()[-1]
    assert not runs


@pytest.mark.long
def test_a_client_with_a_sidecar_is_freed(release: Release) -> None:
    """The sidecar would run on, and with it the Job."""
    sidecar: dict[str, Any] = {
        "name": "proxy",
        "image": f"distributed-tensorflow/trainer:{trainer.__version__}",
        "command": ["sleep"],
    }
    sidecar |= {"args": ["3600"], "imagePullPolicy": "Never", "securityContext": RESTRICTED}
    client: dict[str, Any] = {"replicas": 1, "command": ["sleep", "3"], "sidecars": [sidecar]}
    release.install(PROGRAM | {"worker": {"replicas": 1, "command": ["sleep", "3600"]}, "client": client})
    assert "the run succeeded: mnist-client-0 ended with code 0" in release.finish().splitlines()[-1]
    selector = "app.kubernetes.io/component=client"
    wait(lambda: not release.get("pods", labelSelector=selector)["items"], 90, release.describe)
