"""Fixtures for the images under test and for locked-down containers of them. They do not build images."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import testinfra
from testinfra.host import Host

import trainer

IMAGE = f"distributed-tensorflow/trainer:{trainer.__version__}"
SUPERVISOR_IMAGE = f"distributed-tensorflow/supervisor:{trainer.__version__}"
LOCKED_DOWN = (
    "--read-only",
    "--tmpfs=/tmp",
    "--tmpfs=/home/trainer:uid=10001,gid=10001",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--network=none",
)


def docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the docker command with these arguments, with a timeout."""
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=240)


def inspected(image: str) -> Any:
    """The output of `docker image inspect`; None if the engine does not have the image."""
    done = docker("image", "inspect", image)
    return json.loads(done.stdout)[0] if done.returncode == 0 else None


@pytest.fixture(scope="module")
def image_name() -> str:
    """The image that a file tests: the trainer's, unless the file overrides this fixture."""
    return IMAGE


@pytest.fixture(scope="module")
def image(image_name: str) -> Any:
    """The output of `docker image inspect` for the image."""
    found = inspected(image_name)
    assert found, f"the Docker engine has no image {image_name}: run `make build-images` first."
    return found


@pytest.fixture(scope="module")
def container(image_name: str, image: Any) -> Iterator[Host]:
    """An idle container of the image, to run commands in."""
    started = docker("run", "--detach", *LOCKED_DOWN, "--entrypoint=sleep", image_name, "infinity")
    assert started.returncode == 0, started.stderr
    name = started.stdout.strip()
    yield testinfra.get_host(f"docker://{name}")
    docker("rm", "--force", name)
