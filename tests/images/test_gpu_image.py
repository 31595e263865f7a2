"""The GPU image finds its CUDA without help: all but the driver, which is the node's."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.images.conftest import IMAGE, LOCKED_DOWN, docker, inspected

GPU_IMAGE = f"{IMAGE}-gpu"
LIBRARIES = "/opt/trainer/lib/python3.11/site-packages/nvidia/"


@pytest.fixture(scope="module")
def gpu_image() -> Any:
    """What the engine says of the GPU image; skips where there is none, because it is large and seldom built."""
    found = inspected(GPU_IMAGE)
    if not found:
        pytest.skip(f"there is no image {GPU_IMAGE}: `make build-images TENSORFLOW=gpu` builds it")
    return found


def test_tensorflow_finds_cuda_in_its_wheels_and_misses_only_the_driver(gpu_image: Any) -> None:
    assert not [variable for variable in gpu_image["Config"]["Env"] if variable.startswith("LD_")]
    program = (Path(__file__).parent / "cuda_libraries.py").read_text()
    said = docker("run", "--rm", *LOCKED_DOWN, "--entrypoint=python", GPU_IMAGE, "-c", program)
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    elsewhere = {name: path for name, path in found["loaded"].items() if not (path or "").startswith(LIBRARIES)}
    assert not elsewhere
    assert found["devices"] == []
    assert "failed call to cuInit" in said.stderr  # so it had come as far as asking the driver


def test_it_trains_without_a_gpu_too(gpu_image: Any) -> None:
    said = docker("run", "--rm", *LOCKED_DOWN, GPU_IMAGE, "launch", "--train_steps", "200", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["test_accuracy"] > 0.9
