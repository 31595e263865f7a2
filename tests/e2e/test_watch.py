"""`data.watch` on a real cluster: the release trains on each version of its data that gets the tag."""

import json
from pathlib import Path
from typing import Any

import pytest

import trainer
from tests.e2e.conftest import load_or_skip
from tests.e2e.releases import Release, wait
from tests.e2e.test_stages import CHEAP, a_stage, stage_log

DATA_IMAGE = f"distributed-tensorflow/trainer:{trainer.__version__}-data"
DATASET = "/data/digits.lance"
VALUES: dict[str, Any] = {
    "image": {"tag": f"{trainer.__version__}-data"},
    "train": {"dataset": "lance", "train_steps": 200, "report_steps": 20},
    "worker": {"replicas": 1},
    "data": {
        "enabled": True,
        "uri": DATASET,
        "size": "1Gi",
        "accessModes": ["ReadWriteOnce"],
        "watch": {"enabled": True, "tag": "latest", "intervalSeconds": 1, "resources": CHEAP},
    },
    "stages": {"after": [a_stage("evaluate", "cat /training/result.json")]},
}
IMPORT = f"""
set -e
python -c '
import numpy as np
from trainer.data import digits
for split, examples in zip(("train", "test"), digits.load()):
    np.savez(f"/tmp/raw/{{split}}.npz", x=examples.inputs, y=examples.targets)'
trainer data import /tmp/raw {DATASET} --overwrite --tag latest --force
"""

pytestmark = pytest.mark.long  # CI does not build the images; `make e2e-long` does


@pytest.fixture
def images(packaged_images: None, kubeconfig: Path) -> None:
    """Load the images that read Lance datasets, or skip the test."""
    load_or_skip(kubeconfig, DATA_IMAGE, "make build-images DATA=yes")
    load_or_skip(kubeconfig, f"distributed-tensorflow/watch:{trainer.__version__}", "make build-watch-image")


def write_a_version(release: Release, name: str) -> None:
    """Write a version of the dataset to the release's claim, and give it the tag."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "fsGroup": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "import",
                    "image": DATA_IMAGE,
                    "imagePullPolicy": "Never",
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "command": ["sh", "-c", f"mkdir /tmp/raw\n{IMPORT}"],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": f"{release.name}-data"}}],
        },
    }
    release.kubectl("apply", "--filename=-", text=json.dumps(pod))
    done = release.try_kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", "--timeout=180s")
    assert done.returncode == 0, release.try_kubectl("logs", name).stdout + release.describe()


def wait_for_run(release: Release, version: int, supervisor: str = "") -> None:
    """Wait until another supervisor has brought the run on a version of the data to success."""

    def is_over() -> bool:
        values = json.loads(release.helm("get", "values", release.name, "--output=json"))
        notes = release.notes()
        return bool(
            values["train"].get("data_version") == str(version)
            and notes.get("state") == "Succeeded"
            and notes["supervisor"] != supervisor
        )

    def describe() -> str:
        return release.try_kubectl("logs", "deployment/mnist-data-watch").stdout + release.describe()

    wait(is_over, 400, describe)


@pytest.mark.timeout(1500)
def test_each_version_of_the_data_is_trained_on(release: Release, images: None) -> None:
    release.install(VALUES)
    wait(lambda: release.notes().get("state") == "Suspended", 120, release.describe)
    assert "waits for a version of the data" in release.finish()

    write_a_version(release, "first")
    wait_for_run(release, 1)
    result = json.loads(stage_log(release, "evaluate"))
    assert (result["dataset_version"], result["global_step"]) == ("1", 200)
    first = release.notes()["supervisor"]

    write_a_version(release, "second")
    wait_for_run(release, 2, supervisor=first)
    result = json.loads(stage_log(release, "evaluate"))
    assert (result["dataset_version"], result["global_step"]) == ("2", 200)
    second = release.notes()["supervisor"]

    values = {**VALUES, "train": {**VALUES["train"], "train_steps": 300}}  # which name no version
    release.upgrade(values)
    wait_for_run(release, 2, supervisor=second)
    result = json.loads(stage_log(release, "evaluate"))
    assert (result["dataset_version"], result["global_step"]) == ("2", 300)
