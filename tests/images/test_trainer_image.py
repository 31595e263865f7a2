"""The trainer's image holds what training takes and trains when locked down. test_images.py tests what both share."""

import json
from typing import Any

from testinfra.host import Host

import trainer
from tests.images.conftest import IMAGE, LOCKED_DOWN, docker

PYTHON = "/opt/trainer/bin/python"


def test_it_is_no_larger_than_promised(image: Any) -> None:
    assert image["Size"] < 1.6e9


def test_its_versions_are_the_projects(container: Host) -> None:
    ask = "import platform, tensorflow; print(platform.python_version(), tensorflow.__version__)"
    python, tensorflow = container.check_output(f"{PYTHON} -c '{ask}'").split()
    assert python.startswith("3.11.")
    assert tensorflow.startswith("2.21.")
    assert container.check_output("trainer --version") == trainer.__version__


def test_its_packages_fit_together(container: Host) -> None:
    assert container.check_output("pip check") == "No broken requirements found."


def test_what_was_left_out_of_packages_is_not_missed(container: Host) -> None:
    modules = "tensorflow.lite, keras, h5py, numpy.testing, scipy.stats, scipy.special, sklearn.ensemble, clang.cindex"
    assert container.run(f"{PYTHON} -c 'import {modules}'").rc == 0


def test_a_cluster_trains_in_it(image: Any) -> None:
    command = ["launch", "--ps", "1", "--workers", "2", "--train_steps", "600", "--json"]
    said = docker("run", "--rm", *LOCKED_DOWN, IMAGE, *command)
    assert said.returncode == 0, said.stderr
    result = json.loads(said.stdout)
    assert result["global_step"] >= 600
    assert result["test_accuracy"] > 0.9


def test_tensorboard_is_there(container: Host) -> None:
    assert container.check_output("tensorboard --version").startswith("2.")
