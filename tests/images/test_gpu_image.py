"""The GPU image contains all of CUDA except the driver, which the node provides."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.images.conftest import IMAGE, LOCKED_DOWN, docker, inspected_or_skip

GPU_IMAGE = f"{IMAGE}-gpu"
LIBRARIES = "/opt/trainer/lib/python3.11/site-packages/nvidia/"

pytestmark = pytest.mark.long  # CI does not build this image


@pytest.fixture(scope="module")
def gpu_image() -> Any:
    """The output of `docker image inspect` for the GPU image; skips if it is not built, because it is large."""
    return inspected_or_skip(GPU_IMAGE, "make build-images TENSORFLOW=gpu")


def test_tensorflow_loads_cuda_from_its_wheels_and_lacks_only_the_driver(gpu_image: Any) -> None:
    assert not [variable for variable in gpu_image["Config"]["Env"] if variable.startswith("LD_")]
    program = (Path(__file__).parent / "cuda_libraries.py").read_text()
    result = docker("run", "--rm", *LOCKED_DOWN, "--entrypoint=python", GPU_IMAGE, "-c", program)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    elsewhere = {name: path for name, path in found["loaded"].items() if not (path or "").startswith(LIBRARIES)}
    assert not elsewhere
    assert found["devices"] == []
    assert "failed call to cuInit" in result.stderr  # TensorFlow called the driver


def test_it_trains_without_a_gpu(gpu_image: Any) -> None:
    result = docker("run", "--rm", *LOCKED_DOWN, GPU_IMAGE, "launch", "--train_steps", "200", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["test_accuracy"] > 0.9
