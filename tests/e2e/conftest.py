"""Fixtures for the end-to-end tests: the cluster, a namespace for each test, and a release in it.

If KUBECONFIG is set, the tests use that cluster. Otherwise they start a throw-away cluster on this machine, and stop it
after the last test unless KEEP_CLUSTER=1. Tests run side by side, except those with the mark `alone`.
"""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import trainer
from hack.browser import chromium
from hack.cluster import build
from hack.cluster.paths import KUBECONFIG, STATE
from tests.chart.chart import EXAMPLES
from tests.e2e.releases import Release
from tests.processes.mlflow_servers import MlflowApi

Kubectl = Callable[..., str]
USED = STATE / "used-by-tests"
"""Names the last session with a test that has needed the throw-away cluster; `down` removes the file."""
SESSION = os.environ.setdefault("E2E_SESSION", secrets.token_hex(4))  # xdist's workers inherit it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests without a cluster first, because one of them starts and stops the throw-away cluster itself."""
    items.sort(key=lambda item: "kubeconfig" in getattr(item, "fixturenames", ()))


def cluster_tool(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m hack.cluster`, and return its exit code and output."""
    return subprocess.run([sys.executable, "-m", "hack.cluster", *words], capture_output=True, text=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the throw-away cluster after the tests of all xdist workers."""
    is_worker = hasattr(session.config, "workerinput")
    is_mine = USED.exists() and USED.read_text() == SESSION
    if is_mine and not is_worker and os.environ.get("KEEP_CLUSTER") != "1":
        done = cluster_tool("down")
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def kubeconfig() -> Iterator[Path]:
    """The kubeconfig of the cluster. Programs that a test starts have it in KUBECONFIG, and kubectl on PATH."""
    if given := os.environ.get("KUBECONFIG"):
        yield Path(given)
        return
    done = cluster_tool("up")
    assert done.returncode == 0, done.stdout + done.stderr
    USED.write_text(SESSION)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(KUBECONFIG))
        patch.setenv("PATH", str(build.binaries()), prepend=os.pathsep)
        yield KUBECONFIG


@pytest.fixture(scope="session")
def packaged_images(kubeconfig: Path) -> None:
    """Load the packaged images onto the throw-away cluster's node. Any other cluster must have or pull them."""
    if kubeconfig == KUBECONFIG:
        for program in ("trainer", "supervisor"):
            done = cluster_tool("load", f"distributed-tensorflow/{program}:{trainer.__version__}")
            assert done.returncode == 0, f"{done.stderr}`make build-images` builds it."


def load_or_skip(kubeconfig: Path, image: str, command: str) -> None:
    """Load an image onto the throw-away cluster's node; any other cluster must have it. Otherwise skip the test.

    Args:
        kubeconfig: That of the cluster.
        image: The name of the image.
        command: What builds it.
    """
    if kubeconfig == KUBECONFIG:
        absent = cluster_tool("load", image).returncode != 0
    else:
        nodes = subprocess.run(["kubectl", "get", "nodes", "--output=json"], check=True, capture_output=True)
        listed = [each for node in json.loads(nodes.stdout)["items"] for each in node["status"].get("images", [])]
        names = [name for each in listed for name in each.get("names") or []]
        absent = not any(name == image or name.endswith(f"/{image}") for name in names)
    if absent:
        pytest.skip(f"the node has no image {image}: `{command}` makes it")


@pytest.fixture
def mlflow_server(release: Release, kubeconfig: Path) -> Iterator[MlflowApi]:
    """The server of examples/mlflow-server.yaml in the namespace of the release; skips without its images."""
    publisher = f"distributed-tensorflow/trainer:{trainer.__version__}-cpu-mlflow"
    load_or_skip(kubeconfig, publisher, "make build-images TENSORFLOW=cpu-mlflow")
    file = EXAMPLES / "mlflow-server.yaml"
    deployment = next(each for each in yaml.safe_load_all(file.read_text()) if each["kind"] == "Deployment")
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    load_or_skip(kubeconfig, image, f"docker pull {image}")
    release.kubectl("apply", "--filename", str(file))
    release.kubectl("rollout", "status", "deployment/mlflow", "--timeout=5m")
    with release.forward("service/mlflow", 5000) as address:
        yield MlflowApi(address)


@pytest.fixture
def namespace(kubeconfig: Path) -> Iterator[str]:
    """A new namespace, deleted after the test."""
    name = f"e2e-{secrets.token_hex(3)}"
    subprocess.run(["kubectl", "create", "namespace", name], check=True, capture_output=True)
    yield name
    subprocess.run(["kubectl", "delete", "namespace", name, "--wait=false"], check=True, capture_output=True)


@pytest.fixture
def kubectl(namespace: str) -> Kubectl:
    """Runs kubectl in the test's namespace; fails the test with kubectl's error if kubectl fails."""

    def run(*arguments: str, text: str | None = None) -> str:
        command = ["kubectl", "--namespace", namespace, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def release(namespace: str, packaged_images: None, tmp_path: Path) -> Release:
    """A release `mnist`, not yet installed, in a new namespace that enforces Pod Security "restricted"."""
    label = ["kubectl", "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"]
    subprocess.run(label, check=True, capture_output=True)
    return Release("mnist", namespace, tmp_path)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """Headless Chromium, which keeps what pages log and request."""
    with chromium(tmp_path / "browser", "--window-size=1400,1000", logs=True) as driver:
        yield driver
