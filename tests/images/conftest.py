"""The images under test, and a container of each, locked down as a careful cluster does. Nothing is built here."""

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
    """Run the docker command with these arguments; a test that hangs in it is ended by its time-out."""
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=240)


def inspected(image: str) -> Any:
    """What the engine says of an image; None when it has none of this name."""
    said = docker("image", "inspect", image)
    return json.loads(said.stdout)[0] if said.returncode == 0 else None


@pytest.fixture(scope="module")
def image_name() -> str:
    """The image that the tests of a file are about: the trainer's, unless the file has a fixture of this name."""
    return IMAGE


@pytest.fixture(scope="module")
def image(image_name: str) -> Any:
    """What the engine says of the image."""
    found = inspected(image_name)
    assert found, f"the Docker engine has no image {image_name}: run `make build-images` first."
    return found


@pytest.fixture(scope="module")
def container(image_name: str, image: Any) -> Iterator[Host]:
    """A container of the image that does nothing, for commands to be run in."""
    started = docker("run", "--detach", *LOCKED_DOWN, "--entrypoint=sleep", image_name, "infinity")
    assert started.returncode == 0, started.stderr
    name = started.stdout.strip()
    yield testinfra.get_host(f"docker://{name}")
    docker("rm", "--force", name)
