"""kubectl reports faults with the messages that docs/troubleshooting.md quotes."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.releases import UNSUPERVISED, Release, exit_code, is_ready, wait

GUIDE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()


def waiting_reason(release: Release, pod: str) -> str:
    """The reason why the task's container waits; empty if it runs, or does not exist yet."""
    status = release.tasks().get(pod, {}).get("status", {})
    states = [container["state"] for container in status.get("containerStatuses", [])]
    return str(states[0].get("waiting", {}).get("reason", "")) if states else ""


@pytest.mark.parametrize(("policy", "reason"), [("IfNotPresent", "ImagePullBackOff"), ("Never", "ErrImageNeverPull")])
def test_an_absent_image(release: Release, policy: str, reason: str) -> None:
    release.install({"image": {"repository": "absent.invalid/trainer", "pullPolicy": policy}})
    wait(lambda: waiting_reason(release, "mnist-worker-0") == reason, 120, release.describe)
    assert reason in GUIDE


def test_an_absent_claim(release: Release) -> None:
    release.install({"trainingDirectory": {"existingClaim": "absent"}})
    message = 'persistentvolumeclaim "absent" not found'
    events = "--field-selector=involvedObject.name=mnist-worker-0"
    wait(lambda: message in release.kubectl("get", "events", events), 60, release.describe)
    assert 'persistentvolumeclaim "' in GUIDE


def test_an_absent_command_ends_with_127_and_is_not_retried(release: Release) -> None:
    worker: dict[str, Any] = {"command": ["absent-program"], "replicas": 1}
    release.install({"worker": worker} | UNSUPERVISED)
    wait(lambda: "task: ended with code 127" in release.log("mnist-worker-0"), 90, release.describe)
    pod = release.tasks()["mnist-worker-0"]
    assert exit_code(pod) == 127
    assert not is_ready(pod)
    assert "absent-program" in release.log("mnist-worker-0")
    assert "127" in GUIDE


def test_an_invalid_setting_ends_with_2_and_one_sentence(release: Release) -> None:
    release.install({"extraArgs": ["--batch_size=none"]} | UNSUPERVISED)
    wait(lambda: "task: ended with code 2" in release.log("mnist-worker-0"), 90, release.describe)
    lines = release.log("mnist-worker-0").splitlines()
    assert lines[0].startswith("trainer: --batch_size='none', but ")
    assert "Traceback" not in "\n".join(lines)
