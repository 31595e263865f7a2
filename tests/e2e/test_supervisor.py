"""A run under the supervisor, from `helm install` to its own end."""

from typing import Any

import yaml

from tests.e2e.releases import ROOT, Release, wait

SUPERVISED: dict[str, Any] = {"supervisor": {"enabled": True}, "train": {"train_steps": 500}}
SUPERVISOR = "app.kubernetes.io/component=supervisor"


def finish(release: Release, condition: str = "complete") -> str:
    """Wait for the supervisor's Job, as a person would, and return what the supervisor said."""
    jobs = ["wait", f"--for=condition={condition}", "job", f"--selector={SUPERVISOR}", "--timeout=150s"]
    done = release.try_kubectl(*jobs)
    assert done.returncode == 0, f"{said(release)}\n{release.describe()}"
    return said(release)


def said(release: Release) -> str:
    """All that the supervisor said; nothing where it has not begun."""
    return release.try_kubectl("logs", f"--selector={SUPERVISOR}", "--tail=-1").stdout


def scales(release: Release) -> dict[str, int]:
    return {item["metadata"]["name"]: item["spec"]["replicas"] for item in release.get("statefulsets")["items"]}


def test_a_run_ends_by_itself_frees_what_it_held_and_is_left_alone(release: Release) -> None:
    release.install(SUPERVISED)
    last = finish(release).splitlines()[-1]
    assert last.endswith("the run succeeded: mnist-worker-0 ended with code 0")
    wait(lambda: not release.tasks(), 60, release.describe)
    assert scales(release) == {"mnist-ps": 0, "mnist-worker": 0}
    result = release.wait_for_result(500)
    assert result["test_accuracy"] > 0.9
    kept = release.kubectl("exec", "deployment/mnist-tensorboard", "--", "cat", "/training/logs/worker-0.log")
    assert "test accuracy" in kept, "the log outlives its pod"
    (pod,) = release.get("pods", f"--selector={SUPERVISOR}")["items"]
    message = pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
    assert message == "the run succeeded: mnist-worker-0 ended with code 0"
    assert message in release.kubectl("get", "events", "--field-selector=reason=RunSucceeded")

    release.upgrade(SUPERVISED | {"metrics": {"from": [{"podSelector": {}}]}}, "--wait", "--timeout=2m")
    assert scales(release) == {"mnist-ps": 0, "mnist-worker": 0}, "a run that is unchanged is left alone"

    release.upgrade(SUPERVISED | {"train": {"train_steps": 800}})
    finish(release)
    assert release.wait_for_result(800)["train_dir"] == "/training"
    assert "restored /training/model.ckpt-" in release.kubectl(
        "exec", "deployment/mnist-tensorboard", "--", "cat", "/training/logs/worker-0.log"
    )


def test_a_run_that_fails_says_which_task_and_why_and_holds_nothing(release: Release) -> None:
    program = 'echo "what went wrong"; exit 9'
    release.install(SUPERVISED | {"worker": {"command": ["sh", "-c", program]}})
    lines = finish(release, "failed").splitlines()
    assert "failed with code 9, which is not tried again" in lines[-1]
    assert any(line.endswith(": what went wrong") and " | mnist-worker-" in line for line in lines)
    wait(lambda: not release.tasks(), 60, release.describe)
    assert set(scales(release).values()) == {0}


def test_what_keeps_a_task_from_starting_is_said_and_ends_the_run(release: Release) -> None:
    values = {"worker": {"nodeSelector": {"no": "such-node"}}, "run": {"startTimeoutSeconds": 25}}
    release.install(SUPERVISED | values)
    text = finish(release, "failed")
    assert "mnist-worker-0 does not run: no node has the labels that worker.nodeSelector" in text
    assert "did not start within run.startTimeoutSeconds (25 s)" in text.splitlines()[-1]
    assert set(scales(release).values()) == {0}


def test_a_supervisor_that_is_killed_is_followed_by_another_that_goes_on(release: Release) -> None:
    release.install(SUPERVISED | {"train": {"train_steps": 3000}})
    wait(lambda: "steps/s" in said(release), 120, release.describe)
    release.kubectl("delete", "pod", f"--selector={SUPERVISOR}", "--now")
    text = finish(release)
    assert "going on with the run that is under way" in text
    assert release.wait_for_result(3000)["global_step"] < 3100


def test_a_suspended_run_holds_nothing_and_goes_on_later(release: Release) -> None:
    values = SUPERVISED | {"train": {"train_steps": 100_000, "save_seconds": 2}}
    release.install(values)
    wait(lambda: "steps/s" in said(release), 120, release.describe)
    release.upgrade(values | {"run": {"suspend": True}})
    wait(lambda: not release.tasks(), 90, release.describe)
    log = ["exec", "deployment/mnist-tensorboard", "--", "cat", "/training/logs/worker-0.log"]
    assert "restored" not in release.kubectl(*log)
    release.upgrade(values)
    wait(lambda: "restored /training/model.ckpt-" in release.try_kubectl(*log).stdout, 120, release.describe)
    release.upgrade(values | {"run": {"activeDeadlineSeconds": 1}})
    assert "longer than run.activeDeadlineSeconds (1 s)" in finish(release, "failed").splitlines()[-1]
    assert set(scales(release).values()) == {0}


def test_a_parameter_server_strategy_program_ends_although_its_servers_never_do(release: Release) -> None:
    """With the values of examples/, and a program that knows only TF_CONFIG."""
    release.kubectl("create", "configmap", "programs", f"--from-file={ROOT / 'examples' / 'programs'}")
    values = yaml.safe_load((ROOT / "examples" / "values-parameter-server-strategy.yaml").read_text())
    release.install(values | {"supervisor": {"enabled": True}})
    assert "the run succeeded: mnist-chief-0 ended with code 0" in finish(release).splitlines()[-1]
    wait(lambda: not release.tasks(), 90, release.describe)
