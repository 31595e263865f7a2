"""The supervisor's image holds the supervisor and the conversion of TFJobs, and is small."""

from typing import Any

import pytest
from testinfra.host import Host

from tests.images.conftest import LOCKED_DOWN, SUPERVISOR_IMAGE, docker


@pytest.fixture(scope="module")
def image_name() -> str:
    return SUPERVISOR_IMAGE


def test_it_is_no_larger_than_promised(image: Any) -> None:
    print(f"{image['Size'] / 1e6:.1f} MB")
    assert image["Size"] < 150e6


@pytest.mark.parametrize("package", ["tensorflow", "numpy", "sklearn", "pip"])
def test_it_has_no_package_that_it_does_not_need(container: Host, package: str) -> None:
    assert container.run(f"python -c 'import {package}'").stderr.endswith(f"No module named '{package}'\n")


def test_it_reads_a_run_and_names_what_is_wrong_with_it(image: Any) -> None:
    said = docker("run", "--rm", *LOCKED_DOWN, SUPERVISOR_IMAGE, "supervise", "--run=/etc/hostname")
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith("trainer: --run: /etc/hostname: ")


def test_it_converts_a_tfjob(image: Any) -> None:
    said = docker("run", "--rm", *LOCKED_DOWN, SUPERVISOR_IMAGE, "convert-tfjob", "/etc/hostname")
    assert (said.returncode, said.stdout) == (2, "")
    assert "/etc/hostname" in said.stderr


def test_what_it_cannot_do_is_one_sentence(image: Any) -> None:
    said = docker("run", "--rm", *LOCKED_DOWN, SUPERVISOR_IMAGE, "train")
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith("trainer: trainer train: the Python package tensorflow is not installed: ")
