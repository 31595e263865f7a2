"""The cluster that the end-to-end tests run on, and a namespace of its own for each test that asks for one.

With KUBECONFIG set that cluster is used and kept. Without it a throw-away cluster is started on this machine, and
ended after the last test unless KEEP_CLUSTER=1.
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import trainer
from hack.cluster import build
from hack.cluster.places import KUBECONFIG
from tests.e2e.releases import Release

Kubectl = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run first what needs no cluster: the test that starts and ends one itself cannot do so in the midst of others."""
    items.sort(key=lambda item: "kubeconfig" in getattr(item, "fixturenames", ()))


def cluster_tool(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the tool as a person would, and return what it said."""
    return subprocess.run([sys.executable, "-m", "hack.cluster", *words], capture_output=True, text=True)


@pytest.fixture(scope="session")
def kubeconfig() -> Iterator[Path]:
    """The cluster's kubeconfig, also in the environment of every program that a test starts, with kubectl on PATH."""
    if given := os.environ.get("KUBECONFIG"):
        yield Path(given)
        return
    said = cluster_tool("up")
    assert said.returncode == 0, said.stdout + said.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(KUBECONFIG))
        patch.setenv("PATH", str(build.binaries()), prepend=os.pathsep)
        yield KUBECONFIG
    if os.environ.get("KEEP_CLUSTER") != "1":
        said = cluster_tool("down")
        assert said.returncode == 0, said.stdout + said.stderr


@pytest.fixture(scope="session")
def packaged_images(kubeconfig: Path) -> None:
    """Load the packaged images onto the throw-away cluster's node. Any other cluster must have them already."""
    if kubeconfig == KUBECONFIG:
        for program in ("trainer", "supervisor"):
            said = cluster_tool("load", f"distributed-tensorflow/{program}:{trainer.__version__}")
            assert said.returncode == 0, f"{said.stderr}`make build-images` makes it."


@pytest.fixture
def namespace(kubeconfig: Path) -> Iterator[str]:
    """A new namespace, removed after the test."""
    name = f"e2e-{secrets.token_hex(3)}"
    subprocess.run(["kubectl", "create", "namespace", name], check=True, capture_output=True)
    yield name
    subprocess.run(["kubectl", "delete", "namespace", name, "--wait=false"], check=True, capture_output=True)


@pytest.fixture
def kubectl(namespace: str) -> Kubectl:
    """Run kubectl in the test's namespace; fails the test, with what kubectl said, when kubectl fails."""

    def run(*arguments: str, text: str | None = None) -> str:
        command = ["kubectl", "--namespace", namespace, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def release(namespace: str, packaged_images: None, tmp_path: Path) -> Release:
    """A release `mnist`, not installed yet, in a namespace of its own that enforces Pod Security "restricted"."""
    label = ["kubectl", "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"]
    subprocess.run(label, check=True, capture_output=True)
    return Release("mnist", namespace, tmp_path)
