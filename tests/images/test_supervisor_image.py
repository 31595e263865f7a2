"""The supervisor's image has the supervisor and the conversion of TFJobs, and is small."""

from typing import Any

import pytest
from testinfra.host import Host

from tests.images.conftest import LOCKED_DOWN, SUPERVISOR_IMAGE, docker


@pytest.fixture(scope="module")
def image_name() -> str:
    return SUPERVISOR_IMAGE


def test_its_size_is_below_the_documented_limit(image: Any) -> None:
    print(f"{image['Size'] / 1e6:.1f} MB")
    assert image["Size"] < 170e6


@pytest.mark.parametrize("package", ["tensorflow", "numpy", "sklearn", "pip"])
def test_it_has_no_packages_of_training(container: Host, package: str) -> None:
    assert container.run(f"python -c 'import {package}'").stderr.endswith(f"No module named '{package}'\n")


def test_supervise_reports_an_invalid_run(image: Any) -> None:
    result = docker("run", "--rm", *LOCKED_DOWN, SUPERVISOR_IMAGE, "supervise", "--run=/etc/hostname")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("trainer: --run: /etc/hostname: ")


def test_it_converts_a_tfjob(image: Any) -> None:
    result = docker("run", "--rm", *LOCKED_DOWN, SUPERVISOR_IMAGE, "convert-tfjob", "/etc/hostname")
    assert (result.returncode, result.stdout) == (2, "")
    assert "/etc/hostname" in result.stderr


def test_train_reports_the_missing_package_in_one_sentence(image: Any) -> None:
    result = docker("run", "--rm", *LOCKED_DOWN, SUPERVISOR_IMAGE, "train")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("trainer: trainer train: the Python package tensorflow is not installed: ")
