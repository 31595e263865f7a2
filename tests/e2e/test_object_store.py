"""A training directory on an S3 server that runs in the cluster: versitygw, in an image of that program alone."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hack.cluster import build
from hack.cluster.paths import KUBECONFIG
from tests.e2e.conftest import cluster_tool
from tests.e2e.releases import Release, wait

IMAGE = "versitygw:test"
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "not-to-be-printed"}
STORE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "store", "labels": {"app": "store"}},
    "spec": {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, "fsGroup": 10001},
        "containers": [
            {
                "name": "store",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "env": [
                    {"name": "ROOT_ACCESS_KEY", "value": KEYS["AWS_ACCESS_KEY_ID"]},
                    {"name": "ROOT_SECRET_KEY", "value": KEYS["AWS_SECRET_ACCESS_KEY"]},
                ],
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                # A folder of the served one is a bucket.
                "volumeMounts": [
                    {"name": "store", "mountPath": "/store"},
                    {"name": "bucket", "mountPath": "/store/runs"},
                ],
                "readinessProbe": {"tcpSocket": {"port": 7070}, "periodSeconds": 1},
            }
        ],
        "volumes": [{"name": "store", "emptyDir": {}}, {"name": "bucket", "emptyDir": {}}],
    },
}
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "store"},
    "spec": {"selector": {"app": "store"}, "ports": [{"port": 7070}]},
}
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "object-store"},
    "stringData": {**KEYS, "AWS_ENDPOINT_URL": "http://store:7070"},
}
FROM_SECRET = {"envFrom": [{"secretRef": {"name": "object-store"}}]}
DOCKERFILE = """
FROM scratch
COPY versitygw /
USER 10001
ENTRYPOINT ["/versitygw", "--quiet", "--port", ":7070", "posix", "--nometa", "/store"]
"""
SHOWN = "import urllib.request; print(urllib.request.urlopen('http://localhost:6006/data/runs').read().decode())"


@pytest.fixture(scope="module")
def store_image(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Builds the image of the store, and loads it onto the throw-away cluster's node."""
    if kubeconfig != KUBECONFIG:
        pytest.skip("the image of the object store is only on the throw-away cluster")
    folder = tmp_path_factory.mktemp("store")
    build.ensure_programs(["versitygw"])
    shutil.copy(build.binaries() / "versitygw", folder)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    subprocess.run(["docker", "build", "--quiet", "--tag", IMAGE, str(folder)], check=True, capture_output=True)
    done = cluster_tool("load", IMAGE)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("store_image")
def test_a_run_without_a_volume_continues_on_a_new_pod(release: Release) -> None:
    for item in (STORE, SERVICE, SECRET):
        release.kubectl("apply", "--filename=-", text=json.dumps(item))
    release.kubectl("wait", "--for=condition=ready", "pod/store", "--timeout=60s")
    values: dict[str, Any] = {
        "trainingDirectory": {"uri": "s3://runs/mnist"},
        "common": FROM_SECRET,
        "tensorboard": FROM_SECRET,
        "train": {"train_steps": 40_000, "save_seconds": 2},
    }
    release.install(values)
    assert not release.get("persistentvolumeclaims")["items"]
    wait(lambda: "steps/s" in release.supervisor_log(), 120, release.describe)
    before = release.containers()["mnist-worker-0"]
    release.kubectl("delete", "pod", "mnist-worker-0", "mnist-ps-0", "--grace-period=30")
    wait(lambda: release.containers().get("mnist-worker-0", before) != before, 60, release.describe)
    text = release.finish()
    assert "the run succeeded" in text.splitlines()[-1]
    events = release.kubectl("get", "events", "--output=yaml")
    assert re.search(r"CheckpointRestored", events), text
    logs = [release.log(pod) for pod in release.tasks()]
    assert not [each for each in (text, events, *logs) if KEYS["AWS_SECRET_ACCESS_KEY"] in each]
    wait(lambda: release.deployment_is_available("tensorboard"), 90, release.describe)
    board = ["exec", "deployment/mnist-tensorboard", "--", "python", "-c", SHOWN]
    wait(lambda: {"train", "test"} <= set(json.loads(release.try_kubectl(*board).stdout or "[]")), 60, release.describe)
