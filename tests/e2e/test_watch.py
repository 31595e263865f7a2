"""`data.watch` on a real cluster: the supervisor begins a run for each version of the data."""

import json
from pathlib import Path
from typing import Any

import pytest

import trainer
from tests.e2e.conftest import load_or_skip
from tests.e2e.releases import Release, wait
from tests.e2e.test_stages import a_stage, stage_log

IMAGE = f"distributed-tensorflow/trainer:{trainer.__version__}"
DATASET = "/data/digits.lance"
IMPORT = f"""
set -e
mkdir /tmp/raw
python -c '
import numpy as np
from trainer.data import digits
for split, examples in zip(("train", "test"), digits.load()):
    np.savez(f"/tmp/raw/{{split}}.npz", x=examples.inputs, y=examples.targets)'
trainer data import /tmp/raw {DATASET} --overwrite --tag latest --force
"""


def values_with(tag: str, **more: Any) -> dict[str, Any]:
    watch = {"enabled": True, "tag": tag, "intervalSeconds": 1}
    data = {"enabled": True, "uri": DATASET, "size": "1Gi", "accessModes": ["ReadWriteOnce"], "watch": watch}
    return {
        "train": {"dataset": "lance", "train_steps": 200, "report_steps": 20},
        "worker": {"replicas": 1},
        "data": data,
        **more,
    }


def write(release: Release, name: str, image: str, program: str) -> None:
    """Run a shell program in a pod that mounts the data."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "fsGroup": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "write",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "command": ["sh", "-c", program],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": f"{release.name}-data"}}],
        },
    }
    release.kubectl("apply", "--filename=-", text=json.dumps(pod))
    done = release.try_kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", f"pod/{name}", "--timeout=180s")
    assert done.returncode == 0, release.try_kubectl("logs", name).stdout + release.describe()


def wait_for_run(release: Release, version: int, state: str, other_than: str = "") -> None:
    """Wait until the run on a version of the data has this state, under another supervisor if one is named."""

    def is_over() -> bool:
        notes = release.notes()
        found = (notes.get("data_version"), notes.get("state"))
        return found == (str(version), state) and notes["supervisor"] != other_than

    wait(is_over, 400, release.describe)


def test_each_version_begins_a_run_of_its_own_whatever_came_of_the_one_before(release: Release) -> None:
    """The image of CI cannot read Lance, so each run fails after its first stage."""
    before = [a_stage("look", 'echo "version $DATA_VERSION" && ls -d /training', volumes=["training"])]
    release.install(values_with("", stages={"before": before}))
    wait(lambda: release.notes().get("state") == "Suspended", 120, release.describe)
    assert not release.notes().get("data_version")

    def write_a_version(number: int) -> None:
        write(
            release,
            f"write-{number}",
            IMAGE,
            f"mkdir -p {DATASET}/_versions; touch {DATASET}/_versions/{number}.manifest",
        )

    write_a_version(1)
    wait_for_run(release, 1, "Failed")
    assert stage_log(release, "look") == "version 1\n/training\n"
    log = release.supervisor_log()
    assert "the run waits for a version of the data" in log
    assert "pylance" in log, "the task has read the dataset"
    supervisor = release.notes()["supervisor"]
    release.kubectl("delete", "pod", "--selector=app.kubernetes.io/component=supervisor", "--wait=false")
    write_a_version(2)
    wait_for_run(release, 2, "Failed", other_than=supervisor)
    assert stage_log(release, "look") == "version 2\n/training\n"


@pytest.mark.long  # CI does not build the image; `make e2e-long` does
@pytest.mark.timeout(1500)
def test_each_version_of_the_data_is_trained_on(release: Release, kubeconfig: Path) -> None:
    load_or_skip(kubeconfig, f"{IMAGE}-data", "make build-images DATA=yes")
    after = {"after": [a_stage("evaluate", "cat /training/result.json")]}
    values = values_with("latest", image={"tag": f"{trainer.__version__}-data"}, stages=after)
    release.install(values)
    wait(lambda: release.notes().get("state") == "Suspended", 120, release.describe)
    for version in (1, 2):
        write(release, f"import-{version}", f"{IMAGE}-data", IMPORT)
        wait_for_run(release, version, "Succeeded")
        result = json.loads(stage_log(release, "evaluate"))
        assert (result["dataset_version"], result["global_step"]) == (str(version), 200)

    supervisor = release.notes()["supervisor"]
    release.upgrade({**values, "train": {**values["train"], "train_steps": 300}})
    wait_for_run(release, 2, "Succeeded", other_than=supervisor)
    result = json.loads(stage_log(release, "evaluate"))
    assert (result["dataset_version"], result["global_step"]) == ("2", 300)
    folders = release.kubectl("exec", "deployment/mnist-tensorboard", "--", "ls", "/training").split()
    assert {"v1", "v2"} <= {*folders}
