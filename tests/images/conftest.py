"""Fixtures for the images under test and for locked-down containers of them.

`make build-images` builds the images of trainer and supervisor. That of a model is built here, from a short run.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import testinfra
from testinfra.host import Host

import trainer

ROOT = Path(__file__).parents[2]
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


def inspected_or_skip(image: str, command: str) -> Any:
    """The output of `docker image inspect`; skips the test if the engine lacks the image, which a command builds."""
    found = inspected(image)
    if not found:
        pytest.skip(f"the Docker engine has no image {image}: `{command}` builds it")
    return found


@dataclass(frozen=True)
class Packaged:
    """An image that `make package-model` has built, and the export in it."""

    name: str
    image: str
    export: Path
    result: dict[str, Any]
    """The content of the run's result.json."""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on the digits."""
    run = tmp_path_factory.mktemp("trained") / "run"
    words = ["launch", "--ps", "1", "--workers", "1", "--train_steps", "300", "--train_dir", str(run), "--json"]
    done = subprocess.run([sys.executable, "-m", "trainer", *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="session")
def packaged(trained: Path) -> Iterator[Packaged]:
    """Package the model of the run."""
    run, name = trained, "image-test"
    # The environment of the tests stays as it is.
    make = ["make", "--old-file=.venv/.setup-done", "package-model", f"MODEL={run}", f"NAME={name}"]
    built = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, timeout=1000)
    assert built.returncode == 0, built.stdout + built.stderr
    result = json.loads((run / "result.json").read_text())
    export = Path(result["export"])
    image = f"distributed-tensorflow/model-{name}:{export.name}"
    assert f"built {image}" in built.stdout
    yield Packaged(name, image, export, result)
    docker("rmi", image)


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
