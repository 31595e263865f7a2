"""Tools that apply rendered manifests again and again, as Argo CD and Flux do."""

import subprocess
from typing import Any

import pytest
import yaml

from tests.e2e.releases import CHART, SUPERVISOR, Release, wait


def synchronise(release: Release, *settings: str) -> None:
    """Apply the manifests on the server's side, and prune what they no longer have.

    The objects get the label of Argo CD before version 3, whose value is the name of an Application.
    """
    command = [
        "helm",
        "template",
        release.name,
        str(CHART),
        "--namespace",
        release.namespace,
        "--skip-tests",
        *settings,
    ]
    rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    objects = [item for item in yaml.safe_load_all(rendered) if item]
    for item in objects:
        item["metadata"].setdefault("labels", {})["app.kubernetes.io/instance"] = "application"
    prune = ["--prune", "--applyset=configmap/applied"]
    text = yaml.safe_dump_all(objects)
    release.kubectl("apply", "--server-side", "--field-manager=gitops", *prune, "--filename=-", text=text)


@pytest.fixture(autouse=True)
def apply_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubectl prunes what is applied on the server's side only as an apply set, which it calls an alpha feature."""
    monkeypatch.setenv("KUBECTL_APPLYSET", "true")


@pytest.mark.long
def test_applying_the_manifests_again_does_not_disturb_the_run(release: Release) -> None:
    synchronise(release, "--set=train.train_steps=30000")
    wait(lambda: "steps/s" in release.supervisor_log(), 120, release.describe)
    wait(lambda: release.deployment_is_available("tensorboard"), 90, release.describe)
    before: dict[str, Any] = release.containers()
    for _ in range(5):
        synchronise(release, "--set=train.train_steps=30000")
    synchronise(release, "--set=train.train_steps=30000", "--set=tensorboard.labels.team=a")
    assert release.containers() == before
    assert "the run succeeded" in release.finish().splitlines()[-1]
    wait(lambda: not release.tasks(), 60, release.describe)
    result = release.wait_for_result(30_000)

    synchronise(release, "--set=train.train_steps=30000")
    wait(lambda: release.deployment_is_available("tensorboard"), 90, release.describe)
    assert (release.tasks(), release.result()) == ({}, result), "nothing starts again"

    synchronise(release, "--set=train.train_steps=31000")
    wait(lambda: release.result().get("global_step", 0) >= 31_000, 120, release.describe)
    assert len(release.get("jobs", labelSelector=SUPERVISOR)["items"]) == 1, "it is pruned"
