"""What goes wrong in a cluster is shown by kubectl in the words that docs/troubleshooting.md quotes."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.releases import ALONE, Release, exit_code, is_ready, wait

GUIDE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()


def waiting_reason(release: Release, pod: str) -> str:
    """Why the task's container does not run, in one word; empty where it does."""
    statuses = release.tasks()[pod]["status"].get("containerStatuses", [{}])
    return str(statuses[0].get("state", {}).get("waiting", {}).get("reason", ""))


@pytest.mark.parametrize(("policy", "word"), [("IfNotPresent", "ImagePullBackOff"), ("Never", "ErrImageNeverPull")])
def test_an_image_that_is_absent(release: Release, policy: str, word: str) -> None:
    release.install({"image": {"repository": "absent.invalid/trainer", "pullPolicy": policy}})
    wait(lambda: waiting_reason(release, "mnist-worker-0") == word, 120, release.describe)
    assert word in GUIDE


def test_a_claim_that_does_not_exist(release: Release) -> None:
    release.install({"trainingDirectory": {"existingClaim": "absent"}})
    said = 'persistentvolumeclaim "absent" not found'
    events = "--field-selector=involvedObject.name=mnist-worker-0"
    wait(lambda: said in release.kubectl("get", "events", events), 60, release.describe)
    assert 'persistentvolumeclaim "' in GUIDE


def test_a_command_that_does_not_exist_ends_with_127_and_is_not_tried_again(release: Release) -> None:
    worker: dict[str, Any] = {"command": ["absent-program"], "replicas": 1}
    release.install({"worker": worker} | ALONE)
    wait(lambda: "task: ended with code 127" in release.log("mnist-worker-0"), 90, release.describe)
    pod = release.tasks()["mnist-worker-0"]
    assert exit_code(pod) == 127
    assert not is_ready(pod)
    assert "absent-program" in release.log("mnist-worker-0")
    assert "127" in GUIDE


def test_a_wrong_setting_ends_with_2_and_one_sentence(release: Release) -> None:
    release.install({"extraArgs": ["--batch_size=none"]} | ALONE)
    wait(lambda: "task: ended with code 2" in release.log("mnist-worker-0"), 90, release.describe)
    said = release.log("mnist-worker-0").splitlines()
    assert said[0].startswith("trainer: --batch_size='none', but ")
    assert "Traceback" not in "\n".join(said)
